#include "machine/sim/wgmma_engine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "float16.h"
#include "float8.h"
#include "machine/sim/fp8_sums.h"

namespace ladder::sim {
namespace {

constexpr unsigned kOwnedOperand = 0x7fed7fed;

/// A matrix in shared memory as a descriptor tells it (PTX ISA: “Matrix Descriptor Format”), in
/// lines of 128 bytes under 128-byte swizzle or, as it stands, of 64 under theirs.
struct Descriptor {
  int64_t start, leading, stride, line;
  explicit Descriptor(uint64_t bits)
      : start(static_cast<int64_t>(bits & 0x3fff) << 4),
        leading(static_cast<int64_t>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<int64_t>(bits >> 32 & 0x3fff) << 4),
        line(bits >> 62 == 2 ? 64 : 128) {
    if (bits >> 49 & 7) fault("wgmma: a matrix descriptor with a base offset, unknown to the sim");
    if (bits >> 62 == 0 || bits >> 62 == 3)
      fault("wgmma: a matrix descriptor without swizzle, or of 32 bytes, unknown to the sim");
  }
  /// The 16 bytes that begin with element k of row i, elements of so many bytes.
  int64_t in_row(int i, int k, int element) const {
    return swizzled(start + i / 8 * stride + i % 8 * line + k * element, line);
  }
  /// Transposed: the 16 bytes that hold elements i … i + 7 of column k, of 16 bits.
  int64_t in_column(int i, int k) const {
    if (line != 128)
      fault("wgmma: a transposed operand of another swizzle than 128 bytes, unknown to the sim");
    return swizzled(start + i / 64 * leading + i % 64 * 2 + k % 8 * 128 + k / 8 * stride, line);
  }
};

/// Calls f(at, i, k) for each 16 bytes of an operand of `rows` rows (or columns).
template <class F>
void for_each_chunk(const Wgmma& wgmma, uint64_t descriptor, int rows, bool transposed, F f) {
  const Descriptor d(descriptor);
  const int elements = 16 / wgmma.bytes();  // in 16 bytes
  const int step_i = transposed ? elements : 1, step_k = transposed ? 1 : elements;
  for (int i = 0; i < rows; i += step_i)
    for (int k = 0; k < wgmma.k(); k += step_k)
      f(transposed ? d.in_column(i, k) : d.in_row(i, k, wgmma.bytes()), i, k);
}

}  // namespace

WgmmaEngine::WgmmaEngine(Block& block)
    : block_(block), memory_(block.memory), warpgroups_(block.threads() / 128) {
  for (auto& group : warpgroups_) group = std::make_unique<Warpgroup>();
}

WgmmaEngine::Warpgroup& WgmmaEngine::mine(const char* what) {
  if (!group()) fault("{} by a warpgroup of fewer than 128 threads", what);
  return *group();
}

void WgmmaEngine::end_thread() const {
  const Warpgroup* const g = group();
  if (g && g->lanes[block_.running() % 128].issued > g->first_op)
    fault("ends with a wgmma that was never waited for");
}

void WgmmaEngine::set_registers(int n) {
  mine("setmaxnreg").registers = n;
  // Once all warpgroups have said how many they want, the block must have as many: those that its
  // threads were started with, all alike and a multiple of 8. On the chip the last would wait for
  // ever.
  int sum = 0;
  for (const auto& group : warpgroups_) {
    if (!group->registers) return;
    sum += group->registers;
  }
  const int threads = 128 * static_cast<int>(warpgroups_.size());
  const int given = 65536 / threads / 8 * 8 * threads;
  if (128 * sum > given)
    fault(
        "setmaxnreg: the block's warpgroups want {} registers, and its {} threads "
        "were started with {}",
        128 * sum, threads, given);
}

void WgmmaEngine::done_with(const SharedPlace& place, int64_t bytes) {
  memory_.check_read_by_others(place, bytes, block_.running());
  if (!group()) return;
  for (const Op& op : group()->ops)
    for (const int64_t at : op.reads)
      if (at >= place.at && at < place.at + bytes)
        fault("releases {}, which a wgmma not waited for still reads",
              (place + (at - place.at)).text());
}

// ------------------------------------------------------------------------------------- registers

void WgmmaEngine::fence_registers(const void* registers, size_t bytes) {
  const int l = block_.running() % 128;
  Lane& lane = mine().lanes[l];
  const auto* begin = static_cast<const char*>(registers);
  std::erase_if(lane.ended, [&](const std::shared_ptr<Chain>& chain) {
    float* const d = chain->lanes[l];
    if (reinterpret_cast<const char*>(d) != begin) return false;
    check_untouched(d, block_.running(), *chain);
    for (int i = 0; i < chain->N / 2; ++i) d[i] = chain->sum(l, i);
    return true;
  });
  std::erase_if(lane.fenced, [&](const Lane::Fenced& f) {  // registers that lived there before
    return f.registers < begin + bytes && begin < f.registers + f.contents.size();
  });
  lane.fenced.push_back({begin, std::vector<char>(begin, begin + bytes)});
}

/// Registers pass from other code to a wgmma: they must be as they were at a fence.
void WgmmaEngine::hand_over(const Lane& lane, const void* registers, size_t bytes,
                            const char* what) {
  const auto* begin = static_cast<const char*>(registers);
  for (const Lane::Fenced& f : lane.fenced) {
    if (begin < f.registers || begin + bytes > f.registers + f.contents.size()) continue;
    if (std::memcmp(begin, f.contents.data() + (begin - f.registers), bytes) == 0) return;
    fault("wgmma: its {} changed since the last wgmma_fence() of it", what);
  }
  fault("wgmma without a wgmma_fence() of its {} before", what);
}

void WgmmaEngine::check_untouched(const float* d, int thread, const Chain& chain) const {
  for (int i = 0; i < chain.N / 2; ++i) {
    if (std::bit_cast<uint32_t>(d[i]) == kOwnedByWgmma) continue;
    const auto [row, column] = accumulator_element(thread % 128, i);
    block_.fault_in(thread,
                    "accumulator of a wgmma m64n{}k{}, row {}, column {}: other code wrote to "
                    "it between the wgmma and the wgmma_wait() for it",
                    chain.N, chain.k, row, column);
  }
}

// -------------------------------------------------------------------------------------- products

void WgmmaEngine::issue(const Wgmma& wgmma, float* d, unsigned* a) {
  const int t = block_.running(), l = t % 128, N = wgmma.N;
  Warpgroup& group = mine();
  Lane& lane = group.lanes[l];
  const int64_t number = lane.issued++ - group.first_op;
  if (number == std::ssize(group.ops)) {  // the first lane to come
    Op& op = group.ops.emplace_back(Op{wgmma, lane.group, nullptr, {}, {}});
    for (const Op& before : group.ops)
      if (before.chain && before.chain->lanes[l] == d) op.chain = before.chain;
    if (!op.chain) {
      op.chain = std::make_shared<Chain>();
      op.chain->N = N;
      op.chain->k = wgmma.k();
      op.chain->sums.resize(64 * N);
    }
    ++op.chain->ops;
    if (wgmma.a_in_registers) op.a.resize(128);
    const auto read = [&](int64_t chunk, int, int) {
      memory_.begin_async_read("wgmma", chunk, wgmma.bytes());
      op.reads.push_back(chunk);
      if (Recorder* const r = block_.recorder())
        r->touch(memory_.place_of(chunk, wgmma.bytes()), 16, false);
      block_.counts.sram_read += 16;
      block_.counts.sram_operands += 16;
    };
    if (!wgmma.a_in_registers) for_each_chunk(wgmma, wgmma.a, 64, wgmma.transposed_a, read);
    for_each_chunk(wgmma, wgmma.b, N, wgmma.transposed_b, read);
    block_.counts.matmul_flops += wgmma.flops();
  }
  Op& op = group.ops[number];
  Chain& chain = *op.chain;
  if (op.wgmma != wgmma || op.group != lane.group || (chain.lanes[l] && chain.lanes[l] != d))
    fault("lanes of a warpgroup disagree on a wgmma: its descriptors, shape or accumulator");
  if (chain.N != N)
    fault("wgmma m64n{}k{} on the accumulator of an m64n{}k{} not waited for", N, wgmma.k(),
          chain.N, chain.k);
  if (chain.lanes[l]) {
    check_untouched(d, t, chain);
  } else {
    chain.lanes[l] = d;
    hand_over(lane, d, static_cast<size_t>(N / 2) * sizeof(float), "accumulator");
    for (int i = 0; i < N / 2; ++i) {
      chain.sum(l, i) = d[i];
      d[i] = std::bit_cast<float>(kOwnedByWgmma);
    }
  }
  if (!a) return;
  auto held = std::find_if(lane.operands.begin(), lane.operands.end(),
                           [&](const Lane::Operand& o) { return o.registers == a; });
  if (held == lane.operands.end()) {
    hand_over(lane, a, 4 * sizeof(unsigned), "left operand");
    held = lane.operands.insert(lane.operands.end(), {a, {a[0], a[1], a[2], a[3]}, 0});
    std::fill_n(a, 4, kOwnedOperand);
  }
  held->last_op = lane.issued - 1;
  op.a[l] = held->contents;
}

void WgmmaEngine::commit() {
  Warpgroup& group = mine();
  const int number = group.lanes[block_.running() % 128].group++;
  if (block_.recorder() && block_.lane() == 0) trace_products(group, number);
}

/// A group's products as events: wgmmas in a row on one accumulator, and on one array, are one.
void WgmmaEngine::trace_products(const Warpgroup& group, int number) {
  struct Product {
    const Chain* chain;
    std::string array;
    int64_t flops;
  };
  std::vector<Product> products;
  for (const Op& op : group.ops) {
    if (op.group != number) continue;
    const int64_t flops = op.wgmma.flops();
    const std::string array = memory_.place_of(Descriptor(op.wgmma.b).start, 1).name;
    if (!products.empty() && products.back().chain == op.chain.get() &&
        products.back().array == array)
      products.back().flops += flops;
    else
      products.push_back({op.chain.get(), array, flops});
  }
  for (const Product& p : products) block_.trace_event("wgmma", p.array, number, p.flops);
}

void WgmmaEngine::wait(int groups_left, std::source_location where) {
  const int t = block_.running();
  Warpgroup& group = mine();
  const Lane& self = group.lanes[t % 128];
  const int done = self.group - groups_left;  // groups below this number
  block_.trace_event_of_warp("wgmma_wait", "", done);
  if (group.ops.empty() || group.ops.front().group >= done) return;
  group.done = done;
  group.waiting.push_back(t);
  const bool all = group.waiting.size() == 128;
  if (all)
    for (const Lane& lane : group.lanes)
      if (lane.issued != self.issued || lane.group != self.group)
        fault("lanes of a warpgroup disagree at wgmma_wait() on which wgmmas they have issued");
  if (all && !block_.late()) {
    end_group(static_cast<size_t>(t / 128));
    return block_.yield();
  }
  block_.wait_for(
      [&group] {
        return fmt::format("wgmma_wait, where {} of 128 threads are missing",
                           128 - group.waiting.size());
      },
      where);
}

bool WgmmaEngine::deliver() {
  for (size_t g = 0; g < warpgroups_.size(); ++g)
    if (warpgroups_[g]->waiting.size() == 128) {
      end_group(g);
      return true;
    }
  return false;
}

void WgmmaEngine::end_group(size_t g) {
  Warpgroup& group = *warpgroups_[g];
  while (!group.ops.empty() && group.ops.front().group < group.done) {
    finish(g, group.ops.front());
    group.ops.pop_front();
    ++group.first_op;
  }
  for (const int t : group.waiting) block_.wake(t);
  group.waiting.clear();
}

void WgmmaEngine::read_operands(const Op& op, std::vector<float>& A, std::vector<float>& B) {
  const Wgmma& w = op.wgmma;
  const int bytes = w.bytes(), elements = 16 / bytes;  // in 16 bytes
  /// Element e of some bytes.
  const auto value = [&](const void* from, int e) -> float {
    if (w.element == Element::e4m3) return e4m3::from_bits(static_cast<const uint8_t*>(from)[e]);
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(from) + 2 * e, 2);
    return w.element == Element::bf16 ? float(bf16::from_bits(bits)) : float(fp16::from_bits(bits));
  };
  const auto read = [&](uint64_t descriptor, int rows, bool transposed, std::vector<float>& to,
                        int by_row, int by_k) {
    for_each_chunk(w, descriptor, rows, transposed, [&](int64_t chunk, int i, int k) {
      const int step = transposed ? by_row : by_k;
      for (int e = 0; e < elements; ++e)
        to[i * by_row + k * by_k + e * step] = value(memory_.data() + chunk, e);
      memory_.end_async_read(chunk);
    });
  };
  if (w.a_in_registers) {
    // A register has 4 bytes of a row; a quad of lanes has 16, registers 2 and 3 the next 16.
    for (int l = 0; l < 128; ++l)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < elements / 4; ++e) {
          const int row = l / 32 * 16 + l % 32 / 4 + i % 2 * 8;
          const int k = l % 4 * (elements / 4) + e + i / 2 * elements;
          A[w.k() * row + k] = value(&op.a[l][i], e);
        }
  } else {
    read(w.a, 64, w.transposed_a, A, w.k(), 1);
  }
  read(w.b, w.N, w.transposed_b, B, 1, w.N);
}

void WgmmaEngine::finish(size_t g, Op& op) {
  Warpgroup& group = *warpgroups_[g];
  const Wgmma& w = op.wgmma;
  const int N = w.N;
  static thread_local std::vector<float> A(64 * 32), B(32 * 256), sum(256);
  read_operands(op, A, B);
  for (int row = 0; row < 64; ++row) {
    if (w.element == Element::e4m3) {
      float* const c = op.chain->sums.data() + row * N;
      if (!w.scale_d) std::fill_n(c, N, 0.0f);
      add_fp8_products(c, A.data() + 32 * row, B.data(), N);
      continue;
    }
    std::fill_n(sum.data(), N, 0.0f);
    for (int k = 0; k < 16; ++k) {
      const float a = A[16 * row + k];
      const float* const b = B.data() + k * N;
      for (int j = 0; j < N; ++j) sum[j] += a * b[j];
    }
    float* const c = op.chain->sums.data() + row * N;
    for (int j = 0; j < N; ++j) c[j] = (w.scale_d ? c[j] : 0) + sum[j];
  }

  const int first = static_cast<int>(128 * g);
  for (int l = 0; l < 128; ++l)
    std::erase_if(group.lanes[l].operands, [&](const Lane::Operand& o) {
      if (o.last_op > group.first_op) return false;
      for (int i = 0; i < 4; ++i)
        if (o.registers[i] != kOwnedOperand)
          block_.fault_in(
              first + l,
              "left operand of a wgmma: other code wrote to its registers, or it went out of "
              "scope, between the wgmma and the wgmma_wait() for it");
      std::copy(o.contents.begin(), o.contents.end(), o.registers);
      return true;
    });
  Chain& chain = *op.chain;
  if (--chain.ops > 0) return;
  for (int l = 0; l < 128; ++l) check_untouched(chain.lanes[l], first + l, chain);
  for (Lane& lane : group.lanes) lane.ended.push_back(op.chain);
}

}  // namespace ladder::sim
