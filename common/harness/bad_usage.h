#pragma once

#include <fmt/format.h>

#include <utility>

#include "machine/device.h"

namespace ladder {

/// Throws Error(bad_usage) with this message. Apart from options.h for the sake of nvcc, whose host
/// compiler refuses fmt.
template <class... Parts>
[[noreturn]] void bad_usage(fmt::format_string<Parts...> message, Parts&&... parts) {
  throw Error(Exit::bad_usage, fmt::format(message, std::forward<Parts>(parts)...));
}

}  // namespace ladder
