// cuBLAS's version of 01's two products, for --baseline cublas.
#pragma once

#include <functional>

#include "rung.h"

namespace ladder::gpu {

/// See Device::cublas_products.
std::function<void(const Problem&, const Arrays&)> open_cublas_products();

}  // namespace ladder::gpu
