// Formats JSON as text: value(), array() and list() return JSON values, and Members makes objects.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <optional>
#include <string>
#include <string_view>

#include "float16.h"

namespace ladder::json {

/// Returns a JSON string; quotes, backslashes and control characters are escaped.
inline std::string value(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out + "\"";
}
std::string value(std::integral auto x) {
  return fmt::format("{}", x);
}
/// Formats x with nine significant digits; returns null if x is not finite.
inline std::string value(double x) {
  return is_finite(x) ? fmt::format("{:.9g}", x) : "null";
}
template <class T>
std::string value(const std::optional<T>& x) {
  return x ? value(*x) : "null";
}

/// Returns an array with to_json(x) for each x in the range.
template <class Range, class F>
std::string array(const Range& range, F to_json) {
  std::string text;
  for (const auto& x : range) text += (text.empty() ? "" : ", ") + to_json(x);
  return fmt::format("[{}]", text);
}
/// Returns an array of the values, which may differ in type.
std::string list(const auto&... values) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + value(values)), ...);
  return fmt::format("[{}]", text);
}

/// Collects the members of a JSON object, in the order of the calls.
class Members {
 public:
  template <class T>
  Members& add(std::string_view key, const T& x) {
    return raw(key, value(x));
  }
  /// Adds x unless it is 0 or empty.
  template <class T>
  Members& add_if_any(std::string_view key, const T& x) {
    return x == T{} ? *this : add(key, x);
  }
  /// Adds a member whose value is already JSON.
  Members& raw(std::string_view key, const std::string& json) {
    text_ += fmt::format("{}{}: {}", text_.empty() ? "" : ", ", value(key), json);
    return *this;
  }
  std::string object() const { return fmt::format("{{{}}}", text_); }

 private:
  std::string text_;
};

}  // namespace ladder::json
