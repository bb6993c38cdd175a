// The sim: a SIMT machine on the CPU. One OS thread a core runs whole blocks; the CUDA threads of a
// block are fibers. Every access to global and shared memory is checked against a shadow byte for
// each byte, one to global memory also against what other blocks did there, and is counted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "machine/device.h"
#include "machine/sim/block.h"
#include "machine/sim/tracked.h"

namespace ladder::sim {

/// The machine: its arrays, its blocks, the report of the run under way.
class Sim : public Device {
 public:
  explicit Sim(const SimOptions& options);

  const DeviceInfo& info() const override { return info_; }
  Array* allocate(const std::string& name, int64_t bytes) override;
  void release(Array* array) noexcept override;
  void upload(Array& array, const void* host) override;
  void download(void* host, const Array& array) override;
  std::vector<KernelReport> run(const std::string& rung,
                                const std::function<void()>& work) override;

  /// Runs one kernel to its end. Throws its Fault.
  /// `function`: the kernel's code, by which a trace finds its lines. `early`: Start::early.
  void launch(const char* kernel, dim3 grid, dim3 block, int64_t shared_bytes, const void* function,
              const std::function<void()>& body, bool early = false);
  static Sim& current();

  Trace take_trace() override { return recorder_ ? recorder_->take() : Trace{}; }

 private:
  SimOptions options_;
  DeviceInfo info_;
  std::string rung_;
  std::vector<std::unique_ptr<Tracked>> arrays_;
  std::vector<std::unique_ptr<Block>> blocks_;  // of each OS thread
  std::optional<Recorder> recorder_;
  std::vector<KernelReport> reports_;
  bool next_may_start_ = false;  // early, as the last kernel said
};

}  // namespace ladder::sim
