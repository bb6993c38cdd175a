// Implements a warpgroup's asynchronous products, and a warp's ldmatrix and mma.
#include "machine/sim/wgmma.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "float16.h"
#include "machine/sim/fp8_sums.h"
#include "machine/sim/sim_machine.h"

namespace ladder::sim {
namespace {

constexpr unsigned kOwnedOperand = 0x7fed7fed;  // marks a left operand's registers in flight

/// A matrix in shared memory, decoded from its descriptor (PTX ISA: “Matrix Descriptor Format”).
/// All members are in bytes. Lines have 128 bytes, or 64 with 64-byte swizzle.
struct Descriptor {
  int64_t start, leading, stride, line;
  explicit Descriptor(uint64_t bits)
      : start(static_cast<int64_t>(bits & 0x3fff) << 4),
        leading(static_cast<int64_t>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<int64_t>(bits >> 32 & 0x3fff) << 4),
        line(bits >> 62 == 2 ? 64 : 128) {
    if (bits >> 49 & 7)
      fault("wgmma: a matrix descriptor with a base offset: not supported by the simulator");
    if (bits >> 62 == 0 || bits >> 62 == 3)
      fault(
          "wgmma: a matrix descriptor without swizzle, or with one of 32 bytes: not supported by "
          "the simulator");
  }
  /// Returns the byte offset of the 16 bytes from element k of row i on; `element` is in bytes.
  int64_t in_row(int i, int k, int element) const {
    return swizzled(start + i / 8 * stride + i % 8 * line + k * element, line);
  }
  /// For a transposed 16-bit operand: returns the byte offset of elements i to i + 7 of column k.
  int64_t in_column(int i, int k) const {
    if (line != 128)
      fault(
          "wgmma: a transposed operand with another swizzle than 128 bytes: not supported by the "
          "simulator");
    return swizzled(start + i / 64 * leading + i % 64 * 2 + k % 8 * 128 + k / 8 * stride, line);
  }
};

/// Faults if a descriptor's fields do not match the layout of the tile at which it points, if that
/// array was taken as tiles. The operand has `rows` rows (for B: columns).
void check_layout(const SharedBytes& memory, const Wgmma& wgmma, uint64_t descriptor, int rows,
                  bool transposed) {
  const Descriptor d(descriptor);
  for (const auto& [array, begin, bytes, panel, row] : memory.regions()) {
    if (d.start < begin || d.start >= begin + bytes || panel == 0) continue;
    const auto check = [&](const char* field, int64_t is, int64_t needed) {
      if (is != needed)
        fault("wgmma of {}: its descriptor has the {} {}, and the tile's layout needs {}",
              memory.place_of(d.start, wgmma.bytes()).text(), field, is, needed);
    };
    check("swizzle width", d.line, row);
    check("stride byte offset", d.stride, 8 * row);
    if (transposed && rows > 64) check("leading byte offset", d.leading, panel);
  }
}

/// Calls f(at, i, k) for each 16-byte chunk of an operand with `rows` rows (columns, for B). `at`
/// is its byte offset; i and k are the indices of its first element.
template <class F>
void for_each_chunk(const Wgmma& wgmma, uint64_t descriptor, int rows, bool transposed, F f) {
  const Descriptor d(descriptor);
  const int elements = 16 / wgmma.bytes();  // per 16 bytes
  const int stride_i = transposed ? elements : 1, stride_k = transposed ? 1 : elements;
  for (int i = 0; i < rows; i += stride_i)
    for (int k = 0; k < wgmma.k(); k += stride_k)
      f(transposed ? d.in_column(i, k) : d.in_row(i, k, wgmma.bytes()), i, k);
}

}  // namespace

// ------------------------------------------------------------------------------------- registers

void Warpgroup::fence_registers(const void* registers, size_t bytes) {
  const auto* begin = static_cast<const char*>(registers);
  std::erase_if(lane().ended, [&](const std::shared_ptr<Chain>& chain) {
    const int l = block_.running() % 128;
    float* const d = chain->lanes[l];
    if (d != registers) return false;  // this call does not name the chain's accumulator
    check_untouched(l, *chain);
    for (int i = 0; i < chain->N / 2; ++i) d[i] = chain->sum(l, i);
    return true;
  });
  std::erase_if(lane().operands, [&](const auto& operand) {
    const auto& [a, was] = operand;
    const bool ended = was.last_op < first_op_;
    if (!ended || a < registers || begin + bytes <= reinterpret_cast<char*>(a)) return false;
    if (std::any_of(a, a + 4, [](unsigned r) { return r != kOwnedOperand; }))
      fault(
          "left operand of a wgmma: other code wrote to its registers between the wgmma and a "
          "wgmma_wait() for it that names it");
    std::copy(was.contents.begin(), was.contents.end(), a);
    return true;
  });
  std::erase_if(lane().fenced, [&](const auto& fenced) {  // older entries that overlap this one
    return fenced.first < begin + bytes && begin < fenced.first + fenced.second.size();
  });
  lane().fenced[begin].assign(begin, begin + bytes);
}

/// Hands registers over to a wgmma. Faults unless they are unchanged since a fence that named them.
void Warpgroup::hand_over(const void* registers, size_t bytes, const char* what) {
  const auto* begin = static_cast<const char*>(registers);
  for (const auto& [from, contents] : lane().fenced) {
    if (begin < from || begin + bytes > from + contents.size()) continue;
    if (std::memcmp(begin, contents.data() + (begin - from), bytes) == 0) return;
    fault("wgmma: its {} changed since the last wgmma_fence() of it", what);
  }
  fault("wgmma without a wgmma_fence() of its {} before", what);
}

void Warpgroup::check_untouched(int lane, const Chain& chain) const {
  for (int i = 0; i < chain.N / 2; ++i) {
    if (std::bit_cast<uint32_t>(chain.lanes[lane][i]) == kOwnedByWgmma) continue;
    const auto [row, column] = accumulator_element(lane, i);
    block_.fault_in(first_thread_ + lane,
                    "accumulator of a wgmma m64n{}k{}, row {}, column {}: other code wrote to "
                    "it between the wgmma and the wgmma_wait() for it",
                    chain.N, chain.k, row, column);
  }
}

// -------------------------------------------------------------------------------------- products

/// Starts a wgmma for all lanes; the first lane to issue it calls this.
void Warpgroup::start(const Wgmma& wgmma, const float* d) {
  const int l = block_.running() % 128;
  Op op{wgmma, lane().group, nullptr, {}, {}};
  for (const Op& before : ops_)
    if (before.chain->lanes[l] == d) op.chain = before.chain;
  if (!op.chain) {
    op.chain = std::make_shared<Chain>();
    op.chain->N = wgmma.N;
    op.chain->k = wgmma.k();
    op.chain->sums.resize(64 * wgmma.N);
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
  const auto read_all = [&](uint64_t descriptor, int rows, bool transposed) {
    check_layout(memory_, wgmma, descriptor, rows, transposed);
    for_each_chunk(wgmma, descriptor, rows, transposed, read);
  };
  if (!wgmma.a_in_registers) read_all(wgmma.a, 64, wgmma.transposed_a);
  read_all(wgmma.b, wgmma.N, wgmma.transposed_b);
  block_.counts.matmul_flops += wgmma.flops();
  ++block_.counts.products;
  ops_.push_back(std::move(op));
}

void Warpgroup::issue(const Wgmma& wgmma, float* d, unsigned* a) {
  const int l = block_.running() % 128, N = wgmma.N;
  block_.count_product(wgmma.flops() / 128);
  const int64_t number = lane().issued++ - first_op_;
  if (number == std::ssize(ops_)) start(wgmma, d);
  Op& op = ops_[number];
  Chain& chain = *op.chain;
  if (op.wgmma != wgmma || op.group != lane().group || (chain.lanes[l] && chain.lanes[l] != d))
    fault("lanes of a warpgroup disagree on a wgmma: its descriptors, shape or accumulator");
  if (chain.N != N)
    fault("wgmma m64n{}k{} on the accumulator of an m64n{}k{} that was not waited for", N,
          wgmma.k(), chain.N, chain.k);
  if (chain.lanes[l]) {
    check_untouched(l, chain);
  } else {
    chain.lanes[l] = d;
    hand_over(d, N / 2 * sizeof(float), "accumulator");
    for (int i = 0; i < N / 2; ++i) {
      chain.sum(l, i) = d[i];
      d[i] = std::bit_cast<float>(kOwnedByWgmma);
    }
  }
  if (!a) return;
  const auto [operand, is_new] = lane().operands.try_emplace(a);
  auto& [contents, last_op] = operand->second;
  if (is_new || last_op < first_op_) {
    hand_over(a, 4 * sizeof(unsigned), "left operand");
    std::copy_n(a, 4, contents.begin());
    std::fill_n(a, 4, kOwnedOperand);
  }
  last_op = lane().issued - 1;
  op.a[l] = contents;
}

void Warpgroup::commit() {
  const int number = lane().group++;
  block_.set_products(lane().group - lane().waited);
  if (!block_.recorder() || block_.lane() != 0) return;
  // Records the products: consecutive wgmmas on one accumulator and one array form one event.
  for (size_t i = 0; i < ops_.size();) {
    const Op& first = ops_[i];
    const auto array_of = [&](const Op& op) {
      return std::string(memory_.place_of(Descriptor(op.wgmma.b).start, 1).name);
    };
    int64_t flops = 0;
    for (; i < ops_.size() && ops_[i].chain == first.chain && ops_[i].group == first.group &&
           array_of(ops_[i]) == array_of(first);
         ++i)
      flops += ops_[i].wgmma.flops();
    if (first.group == number) block_.trace_event(EventKind::wgmma, array_of(first), number, flops);
  }
}

void Warpgroup::wait(int groups_left, Where where) {
  const int done = lane().group - groups_left;  // groups below this number must end
  lane().waited = std::max(lane().waited, done);
  block_.set_products(lane().group - lane().waited);
  block_.trace_event(EventKind::wgmma_wait, "", done);
  if (ops_.empty() || ops_.front().group >= done) return;
  done_ = done;
  if (++waiting_ == 128) {
    for (const Lane& other : lanes_)
      if (other.issued != lane().issued || other.group != lane().group)
        fault("lanes of a warpgroup disagree at wgmma_wait() on which wgmmas they have issued");
    if (!block_.late()) {
      deliver();
      return block_.yield();
    }
  }
  block_.wait_for(
      [this] {
        return fmt::format("wgmma_wait, where {} of 128 threads are missing", 128 - waiting_);
      },
      where);
}

bool Warpgroup::deliver() {
  if (waiting_ < 128) return false;
  while (!ops_.empty() && ops_.front().group < done_) {
    finish(ops_.front());
    ops_.pop_front();
    ++first_op_;
  }
  for (int l = 0; l < 128; ++l) block_.wake(first_thread_ + l);
  waiting_ = 0;
  return true;
}

void Warpgroup::end_thread() {
  if (lane().issued > first_op_) fault("ends with a wgmma that was never waited for");
  if (!lane().operands.empty())
    fault("ends with a left operand of a wgmma that no wgmma_wait() for it has named");
}

void Warpgroup::done_with(const SharedPlace& place, int64_t bytes) const {
  for (const Op& op : ops_)
    for (const int64_t at : op.reads)
      if (at >= place.at && at < place.at + bytes)
        fault("releases {}, which a wgmma is still reading: wait for it first",
              (place + (at - place.at)).text());
}

void Warpgroup::read_operands(const Op& op, std::vector<float>& A, std::vector<float>& B) {
  const Wgmma& w = op.wgmma;
  const int bytes = w.bytes(), elements = 16 / bytes;  // elements per 16 bytes
  /// Returns element e of the bytes at `from`.
  const auto value = [&](const void* from, int e) -> float {
    if (w.element == Element::e4m3) return e4m3::from_bits(static_cast<const uint8_t*>(from)[e]);
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char*>(from) + 2 * e, 2);
    return w.element == Element::bf16 ? float(bf16::from_bits(bits)) : float(fp16::from_bits(bits));
  };
  const auto read = [&](uint64_t descriptor, int rows, bool transposed, std::vector<float>& to,
                        int by_row, int by_k) {
    for_each_chunk(w, descriptor, rows, transposed, [&](int64_t chunk, int i, int k) {
      const int stride = transposed ? by_row : by_k;
      for (int e = 0; e < elements; ++e)
        to[i * by_row + k * by_k + e * stride] = value(memory_.data() + chunk, e);
      memory_.end_async_read(chunk);
    });
  };
  if (w.a_in_registers) {
    // A register holds 4 bytes of a row, four lanes hold 16; registers 2 and 3 hold the next 16.
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
  if (w.element == Element::e4m3)
    read(w.b, w.N, false, B, w.k(), 1);
  else
    read(w.b, w.N, w.transposed_b, B, 1, w.N);
}

void Warpgroup::finish(Op& op) {
  const Wgmma& w = op.wgmma;
  const int N = w.N;
  static thread_local std::vector<float> A(64 * 32), B(32 * 256), sum(256);
  read_operands(op, A, B);
  for (int row = 0; row < 64; ++row) {
    float* const c = op.chain->sums.data() + row * N;
    if (!w.scale_d) std::fill_n(c, N, 0.0f);
    if (w.element == Element::e4m3) {
      for (int j = 0; j < N; ++j) c[j] = add_fp8_products(c[j], &A[32 * row], &B[32 * j]);
      continue;
    }
    std::fill_n(sum.data(), N, 0.0f);
    for (int k = 0; k < 16; ++k) {
      const float a = A[16 * row + k];
      const float* const b = B.data() + k * N;
      for (int j = 0; j < N; ++j) sum[j] += a * b[j];
    }
    for (int j = 0; j < N; ++j) c[j] += sum[j];
  }

  if (--op.chain->ops > 0) return;
  for (int l = 0; l < 128; ++l) check_untouched(l, *op.chain);
  for (Lane& lane : lanes_) lane.ended.push_back(op.chain);
}

// ------------------------------------------------------------------------- ldmatrix, mma.m16n8k16

// Not in sim_machine.h, because each kernel would then compile these again, and optimised less.
void ldmatrix(unsigned (&r)[4], const Smem<uint16_t>& row, bool transposed) {
  using Row = std::array<uint16_t, 8>;
  struct Lane {
    Row row;
    int64_t at;
    unsigned out[4];
  } mine{row.load_as<Row>("ldmatrix.x4 of a row"), row.byte(0), {}};
  this_block->counts.sram_operands += int{sizeof(Row)};
  whole_warp(transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4", mine, [=](Lane* const* lanes, int) {
    count_conflicts(lanes);
    for (int m = 0; m < 4; ++m)
      for (int l = 0; l < 32; ++l) {
        const int i = l / 4, j = 2 * (l % 4);
        const auto at = [&](int a, int b) -> unsigned { return lanes[8 * m + a]->row[b]; };
        lanes[l]->out[m] =
            transposed ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
      }
  });
  for (int m = 0; m < 4; ++m) r[m] = mine.out[m];
}
template <class T>
void multiply_as(MmaLane* const* lanes) {
  const auto unpack = [](unsigned pair, int half) -> float {
    return T::from_bits(static_cast<uint16_t>(pair >> 16 * half));
  };
  using Row [[gnu::vector_size(8 * sizeof(float))]] = float;
  float A[16][16];
  Row B[16];
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4, t = l % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i)  // a0, a1: columns 0–7 of rows g and g + 8; a2, a3: 8–15
        A[g + 8 * (i % 2)][2 * t + half + 8 * (i / 2)] = unpack(lanes[l]->a[i], half);
      for (int i = 0; i < 2; ++i) B[2 * t + half + 8 * i][g] = unpack(lanes[l]->b[i], half);
    }
  }
  for (int row = 0; row < 16; ++row) {
    Row sums = {};
    for (int k = 0; k < 16; ++k) sums += A[row][k] * B[k];
    for (int column = 0; column < 8; ++column)
      lanes[row % 8 * 4 + column / 2]->c[row / 8 * 2 + column % 2] += sums[column];
  }
}
void multiply(MmaLane& mine, bool is_bf16) {
  constexpr int kFlops = 2 * 16 * 8 * 16;
  this_block->count_product(kFlops / 32);
  whole_warp("mma.m16n8k16", mine, [=](MmaLane* const* lanes, int) {
    is_bf16 ? multiply_as<bf16>(lanes) : multiply_as<fp16>(lanes);
    ++this_block->counts.products;
    this_block->counts.matmul_flops += kFlops;
  });
}

}  // namespace ladder::sim
