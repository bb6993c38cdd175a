// Opens libraries at run time, so that programs start even where the libraries are missing.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "machine/device.h"

namespace ladder::gpu {

/// Throws Error(no_device) with this message.
template <class... Parts>
[[noreturn]] void no_device(fmt::format_string<Parts...> message, Parts&&... parts) {
  throw Error(Exit::no_device, fmt::format(message, std::forward<Parts>(parts)...));
}

/// An opened library. It is never closed, because the driver may free its objects at exit. The
/// member functions throw Error(no_device) on failure.
class Library {
 public:
  /// Opens `file` from the first of `folders` that has it; "" stands for the system loader's search
  /// path. `title` names the library in the error message.
  Library(const char* title, const std::string& file, const std::vector<std::string>& folders) {
    std::string why;
    for (const std::string& folder : folders) {
      path_ = folder.empty() ? file : folder + "/" + file;
      library_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library_) return;
      why += fmt::format("{}{}", why.empty() ? "" : "; ", dlerror());
    }
    no_device(
        "cannot open {} ({}); it comes with the CUDA Toolkit: install that, or name its folder in "
        "LD_LIBRARY_PATH",
        title, why);
  }

  /// Returns the library's function `name`, of type F.
  template <class F>
  F* function(const std::string& name) const {
    void* const found = dlsym(library_, name.c_str());
    if (!found) no_device("{} is too old: it has no {}; install a newer one", path_, name);
    return reinterpret_cast<F*>(found);
  }

 private:
  void* library_ = nullptr;
  std::string path_;
};

/// Returns the driver's function `name`. The CUDA runtime has already opened the driver.
template <class F>
F* driver_function(const char* name) {
  static const Library driver("the NVIDIA driver", "libcuda.so.1", {""});
  return driver.function<F>(name);
}

}  // namespace ladder::gpu
