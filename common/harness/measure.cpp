// What a run takes: time, registers, and what DRAM served.

#include <fmt/format.h>

#include <algorithm>

#include "harness/messages.h"
#include "harness/run.h"

namespace ladder {
namespace {

/// What a block takes of an SM and for how many FLOPs a byte serves: the budget that
/// 05_flash_v2/design_a_tile.md works out. How many blocks an SM holds at once, at most.
int print_budget(const Report& r) {
  constexpr int64_t kReserved = 1024;  // of an SM's shared memory for each block, beside its own
  const Plan& plan = r.plan;
  const Problem& p = r.workload.problem;
  const int64_t by_memory = (r.device.sram_bytes + kReserved) / (plan.smem_bytes + kReserved);
  int64_t at_once = std::min<int64_t>(by_memory, 64 / plan.warps);
  say(fmt::format("shared memory: {} B a block, of {}: room for {}", plan.smem_bytes,
                  r.device.sram_bytes, by_memory));

  int64_t asked = 0;
  bool keeps_rows = false;  // whether a block keeps rows of Q until their LSE is known
  for (const auto& kernel : *r.model)
    for (const auto& [array, read, write] : kernel.arrays) {
      asked += read + write;
      keeps_rows |= array == "LSE" && write > 0;
    }
  if (keeps_rows) {
    const int threads = 32 * std::clamp(plan.block_q / 16, 1, plan.warps);  // a producer has no row
    const int S = plan.block_q * plan.block_kv / threads;
    const int O = plan.block_q * plan.head_dim / threads;
    at_once = std::min<int64_t>(at_once, 65536 / (threads * (S + O)));
    say(fmt::format("registers of a thread: {} for S and {} for O, of 255", S, O));
    say(fmt::format("copies: {} B of K or V each, {} in flight at most",
                    plan.block_kv * plan.head_dim * (plan.quantisation ? 1 : kIoBytes),
                    plan.stages > 1 ? 2 * plan.stages : 1));
  }
  const int64_t once = kIoBytes * p.B * p.d * 2 * (int64_t{p.N} * p.H + int64_t{p.N_kv} * p.Hk) *
                       (r.backward() ? 2 : 1);
  std::string served =
      fmt::format("FLOPs a byte: {:.3g} of what is asked for, {:.3g} of inputs and outputs once",
                  r.flops() / static_cast<double>(asked), r.flops() / static_cast<double>(once));
  int64_t executed = 0, operands = 0;  // on the sim; operands: bytes of shared memory
  for (const auto& kernel : r.kernels)
    if (const auto& counts = kernel.counts)
      executed += counts->matmul_flops, operands += counts->sram_operands;
  if (operands)
    served += fmt::format(", {:.3g} of operands in shared memory",
                          static_cast<double>(executed) / static_cast<double>(operands));
  say(served);
  return static_cast<int>(at_once);
}

/// How blocks fill the device, a line a kernel: by the driver's word, or on the sim by the budget.
void print_occupancy(const Report& r) {
  const int at_once = r.plan.block_q && r.model ? print_budget(r) : 0;
  for (const auto& kernel : r.kernels) {
    const bool multiplies = at_once && kernel.counts && kernel.counts->matmul_flops;
    if (!kernel.occupancy && !multiplies) continue;
    const Occupancy o =
        kernel.occupancy ? *kernel.occupancy : Occupancy{0, at_once, kernel.counts->blocks};
    say(fmt::format("{}: {} blocks, {} at once on each SM of {}: {:.2f} waves{}", kernel.name,
                    o.blocks, o.blocks_per_sm, r.device.multiprocessors,
                    static_cast<double>(o.blocks) / (o.blocks_per_sm * r.device.multiprocessors),
                    o.registers ? fmt::format("; {} registers a thread", o.registers)
                                : ", or more if registers allow fewer blocks"));
  }
}

/// Adds what HBM served to the reports; a line on stderr where that cannot be counted.
void count_dram(Device& device, std::vector<PassRun>& passes) {
  try {
    const Progress progress("counting DRAM bytes");
    for (auto& [launch, r] : passes) {
      const DramReport dram = device.dram(launch);
      r.dram = dram.all;
      for (auto& kernel : r.kernels) kernel.dram = dram.kernels.at(kernel.name);
    }
  } catch (const Error& e) {
    if (e.status != Exit::no_device) throw;
    say(fmt::format("--dram: no DRAM bytes: {}", e.what()));
  }
}

}  // namespace

void measure(Device& device, const RunOptions& options, std::vector<PassRun>& passes) {
  const bool timed = device.info().kind == DeviceKind::gpu;
  if (options.time_ms && !timed) say("--time: the sim is not timed, only counted");
  for (auto& [launch, r] : passes) {
    if (options.verbose) print_occupancy(r);
    if (!timed) continue;
    const Progress progress(fmt::format("timing {}{}", r.step, r.backward() ? " backward" : ""));
    r.timing = device.time(launch, options.time_ms.value_or(kTimingMs));
    const auto times = device.time_kernels(launch);
    for (auto& kernel : r.kernels) kernel.time_ms = times.at(kernel.name);
  }
  // Counters come last: CUPTI stays in the driver, where it could be in the way of timing.
  if (options.dram) count_dram(device, passes);
}

}  // namespace ladder
