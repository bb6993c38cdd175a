// 06 on Hopper: code that the steps from `producer` on share: small kernels, structs that hold
// their data, and host code for plans, launches and traffic. Most of it first appears in wgmma.cu.
#pragma once

#include "machine/hopper.h"
#include "rung.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: {largest head size, Br, Bc}.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}};

constexpr int kConsumersBackward = 2;                              // warpgroups that multiply
constexpr int kBackwardThreads = kWarpgroup * kConsumersBackward;  // their threads
constexpr int kWarpgroupKeys = 64;                                 // keys per consumer
constexpr int kStages = 2;  // stages of Q and of dO; from `transposed` on, also of dS

/// Registers per thread in a consumer and in the producer. The threads of all three warpgroups
/// start with 168, and 2 · 240 + 24 = 3 · 168.
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kAll = 1;             // number of the consumers' common named barrier
constexpr unsigned kFirstLane = 1;  // mask of lane 0, because the producer is one thread

/// The part of an R × C matrix of sums that a consumer computes, from row() and column() on: 64
/// rows if R is 128, or half of the columns if R is 64.
template <int R, int C>
struct Part {
  static_assert(R == 64 ? C % 16 == 0 : R == 64 * kConsumersBackward);
  static constexpr int kColumns = R == 64 ? C / 2 : C;
  int consumer;
  __device__ int row() const { return R == 64 ? 0 : consumer * 64; }
  __device__ int column() const { return R == 64 ? consumer * kColumns : 0; }
};

constexpr int kElementwise = 256;  // threads per block in the small kernels

/// The arrays that one kernel leaves in HBM for the next. They hold all B·H heads, each padded to
/// whole tiles of rows.
struct Kept {
  Hbm<float> minus_delta, LSE_log2e, dQ_sum;
  int rows, tiles;  // padded rows per head of Q; tiles of keys per head of K and V
};

/// Does one lane's work for row `at` of all heads' padded rows; kLanes lanes, at least Dh/8, share
/// the row. They write minus_delta = −D = −rowsum(dO∘O) and LSE in units of ln 2, and set dQ's sums
/// to 0. In key_gradients dP's sums start at minus_delta, and so end as dP − D. Rows past p.N, and
/// rows that attend to no key (LSE = −∞), get LSE = +∞, which makes their P 0.
template <int kLanes, int Dh, class T>
__device__ __forceinline__ void preprocess_row(int64_t at, Hbm<const T> O, Hbm<const T> dO,
                                               Hbm<const float> LSE, const Kept& kept,
                                               const Problem& p) {
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / kept.rows;
  const int row = static_cast<int>(at % kept.rows);
  const bool real = row < p.N;
  const float lse = real && column == 0 ? LSE[head * p.N + row] : -INFINITY;
  float sum = 0;
  if (column < Dh) write_chunk(kept.dQ_sum + (at * Dh + column), Chunk<float>{});
  if (real && column < p.d) {
    const int64_t from = (head * p.N + row) * p.d + column;
    const auto o = read_chunk(O + from), g = read_chunk(dO + from);
    for (int e = 0; e < 8; ++e) sum += float(o[e]) * float(g[e]);
  }
  for (int bit = kLanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffff, sum, bit);
  if (column == 0) {
    kept.minus_delta[at] = -sum;
    kept.LSE_log2e[at] = lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
}
/// Calls preprocess_row for all rows. grid: Dh/8 lanes for each padded row. A tile's rows fill
/// whole blocks, so no lane is left without a row.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE, Kept kept,
                           Problem p) {
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / (Dh / 8);
  preprocess_row<Dh / 8, Dh>(at, O, dO, LSE, kept, p);
}

/// Returns the work of block `index`: one of the B·Hk heads of K and V, and one of the head's
/// `tiles` tiles of keys. The tiles that take longest come first: under the mask, the most rows
/// attend to the first keys.
__device__ __forceinline__ WorkTile work_of(int index, int tiles, const Problem& p) {
  return longest_first(index, {.heads = p.B * p.Hk,
                               .tiles = tiles,
                               .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),  // Q, dO, dQ
                               .uneven = p.causal});
}

/// A block's work: the tile of keys that starts at `key`, in head `bh` of the B·Hk heads of K and
/// V. The block processes the query heads that share this head one after the other. In each, the
/// first tile of Q with a row that attends to one of the keys starts at first_row.
struct KeyTile {
  int bh, key, first_row;
};

/// The shared memory that the producer fills for the consumers: the block's tiles of K and V, which
/// are filled once, a ring of stages of Q with LSE, and a ring of stages of dO with −D.
template <class T, int Dh, int Br, int Bc>
struct Rings {
  Stages<SwizzledTile<T, Bc, Dh>, 1> K, V;
  StagesWithRows<SwizzledTile<T, Br, Dh>, kStages, Br> Q, dO;

  /// Allocates the tiles in shared memory.
  __device__ __forceinline__ explicit Rings(SharedMemory& smem)
      : K{smem, "K"}, V{smem, "V"}, Q{smem, "Q"}, dO{smem, "dO"} {}
  /// Allocates LSE, −D and the barriers in shared memory, and initialises the barriers. All threads
  /// call it, after all of the kernel's tiles have been allocated.
  __device__ __forceinline__ void init(SharedMemory& smem) {
    constexpr int kReleases = 4 * kConsumersBackward;  // one arrival per consumer warp
    Q.init(smem, "LSE_log2e", "Q_full", "Q_free", kReleases);
    dO.init(smem, "minus_delta", "dO_full", "dO_free", kReleases);
    K.init(smem, "K_full", "K_free", 1);
    V.init(smem, "V_full", "V_free", 1);
    if (threadIdx.x == 0) fence_mbarrier_init();  // makes the initialised barriers visible to TMA
    __syncthreads();                              // all threads see them initialised
  }
};

/// A warp's sums: 16 rows of dK and 16 rows of dV.
template <int Dh>
struct KeyGradients {
  Accumulator<16, Dh> dK, dV;
};

/// Adds a warp's part of dQ, whose first element is at (row, column) of a tile, to the tile's sums
/// in HBM, which start at dQ_at. The sums are stored as 8 × 8 matrices, as in `split_sums`: lane l
/// adds two neighbouring sums, floats 2·l and 2·l + 1 of each matrix.
template <int Dh, int N>
__device__ __forceinline__ void add_to_dQ(Hbm<float> dQ_at, const Accumulator<16, N>& dQ, int row,
                                          int column) {
  const auto block = dQ_at + (row * Dh + 8 * column + 2 * lane_id());
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      atomic_add_pair(block + (8 * half * Dh + 64 * j), dQ.r[0][j][2 * half],
                      dQ.r[0][j][2 * half + 1]);
}

/// Writes dQ: its sums (`rows` rows per head) times the scale, rounded. Dh/8 lanes share a row.
template <class T, int Dh>
__global__ void postprocess(Hbm<const float> dQ_sum, Hbm<T> dQ, int rows, Problem p) {
  constexpr int kLanes = Dh / 8;
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / kLanes;
  const int column = threadIdx.x % kLanes * 8;
  const int64_t head = at / rows;
  const int row = static_cast<int>(at % rows);
  if (row >= p.N || column >= p.d) return;
  const auto sum = read_chunk(dQ_sum + (at / 8 * 8 * Dh + 8 * column + row % 8 * 8));
  Chunk<T> out;
  for (int e = 0; e < 8; ++e) out[e] = T(p.scale * sum[e]);
  write_chunk(dQ + ((head * p.N + row) * p.d + column), out);
}

/// Returns the tensor map of K, V, dK or dV; TMA copies Bc of its rows at a time.
template <class T, int Bc>
TensorMap map_of_keys(const Problem& p, Array& array) {
  return tensor_map<T>(array, p.d, p.N_kv, p.Hk, p.B, Bc);
}
/// The tensor maps of the arrays that a block reads.
struct Maps {
  TensorMap Q, K, V, dO;
};
/// The tensor maps of the gradients that TMA stores, from `bulk_add` on.
struct KeyMaps {
  TensorMap dK, dV;
};
template <class T, int Br, int Bc>
Maps maps_of(const Problem& p, const Arrays& a) {
  return {tensor_map<T>(a["Q"], p.d, p.N, p.H, p.B, Br), map_of_keys<T, Bc>(p, a["K"]),
          map_of_keys<T, Bc>(p, a["V"]), tensor_map<T>(a["dO"], p.d, p.N, p.H, p.B, Br)};
}

template <class T, int Bc>
KeyMaps key_maps_of(const Problem& p, const Arrays& a) {
  return {map_of_keys<T, Bc>(p, a["dK"]), map_of_keys<T, Bc>(p, a["dV"])};
}

/// Returns the plan of a step whose blocks have `consumers` consumers. key_gradients needs
/// smem_bytes(Dh, Br, Bc) bytes of shared memory per block.
template <const auto& tiles = kBackwardTiles, const auto& sizes = kHeadDims, class F>
Plan plan_of(const Problem& p, const DeviceInfo& device, F smem_bytes,
             int consumers = kConsumersBackward) {
  const int Dh = padded_head_dim<sizes>(p.d);
  Plan plan{.head_dim = Dh, .warps = 4 * (1 + consumers), .stages = kStages};
  choose_tile(plan, tiles, {}, device.smem_bytes,
              [&](int Br, int Bc) { return smem_bytes(Dh, Br, Bc); });
  const int64_t rows = int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q;
  plan.workspace = {{"minus_delta", rows * 4}, {"LSE_log2e", rows * 4}, {"dQ_sum", rows * Dh * 4}};
  return plan;
}

inline Kept kept_of(const Problem& p, const Plan& plan, const Arrays& a) {
  return {hbm<float>(a["minus_delta"]), hbm<float>(a["LSE_log2e"]), hbm<float>(a["dQ_sum"]),
          static_cast<int>(ceil_div(p.N, plan.block_q)) * plan.block_q,
          static_cast<int>(ceil_div(p.N_kv, plan.block_kv))};
}
/// Returns the grid of a small kernel with `lanes` lanes per padded row of Q.
inline dim3 row_blocks(const Problem& p, const Kept& kept, int lanes) {
  return dim3(ceil_div(int64_t{p.B} * p.H * kept.rows * lanes, kElementwise));
}
/// Returns the number of tiles of keys in all heads.
inline int64_t key_tiles(const Problem& p, const Kept& kept) {
  return int64_t{p.B} * p.Hk * kept.tiles;
}
template <class T, int Dh>
void launch_preprocess(const Problem& p, const Kept& kept, const Arrays& a) {
  launch("preprocess", preprocess<T, Dh>, row_blocks(p, kept, Dh / 8), dim3(kElementwise), 0,
         hbm<const T>(a["O"]), hbm<const T>(a["dO"]), hbm<const float>(a["LSE"]), kept, p);
}
template <class T, int Dh>
void launch_postprocess_rows(const Problem& p, const Kept& kept, const Arrays& a) {
  launch("postprocess", postprocess<T, Dh>, row_blocks(p, kept, Dh / 8), dim3(kElementwise), 0,
         kept.dQ_sum, hbm<T>(a["dQ"]), kept.rows, p);
}

/// Returns the bytes of dQ's sums without padding, as postprocess reads them up to `transposed`.
inline int64_t bytes_of_elements(const Problem& p) {
  return int64_t{p.B} * p.H * p.N * p.d * 4;
}
/// Returns the bytes of dQ's sums in whole tiles, as postprocess reads them from `bulk_add` on.
inline int64_t bytes_of_tiles(const Problem& p, const Plan& plan) {
  return int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q * plan.head_dim * 4;
}

/// Predicts the requested bytes of the backward pass with one block per tile of keys. It reads
/// Q and dO from the first tile of Q that attends to one of its keys on, and adds to dQ's sums for
/// the same tiles of Q. minus_delta, LSE_log2e and dQ_sum hold whole tiles of rows. `sums_read` is
/// how many bytes of dQ's sums postprocess reads.
inline Traffic traffic_of(const Problem& p, const Plan& plan, int64_t sums_read) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO or dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK or dV
  const int64_t padded = heads * ceil_div(p.N, plan.block_q) * plan.block_q;  // rows in whole tiles
  int64_t queries = 0, tiles = 0;  // rows and tiles of Q that a head's tiles of keys read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    queries += p.N - first;
    tiles += ceil_div(p.N - first, plan.block_q);
  }
  const int64_t read = heads * queries * p.d * kIoBytes;  // bytes of Q or dO
  const int64_t rows = heads * tiles * plan.block_q;      // rows of LSE, D or dQ's sums
  return {{"preprocess",
           {{"O", q, 0},
            {"dO", q, 0},
            {"LSE", heads * p.N * 4, 0},
            {"minus_delta", 0, padded * 4},
            {"LSE_log2e", 0, padded * 4},
            {"dQ_sum", 0, bytes_of_tiles(p, plan)}}},
          {"key_gradients",
           {{"Q", read, 0},
            {"K", kv, 0},
            {"V", kv, 0},
            {"dO", read, 0},
            {"minus_delta", rows * 4, 0},
            {"LSE_log2e", rows * 4, 0},
            {"dQ_sum", rows * plan.head_dim * 4, rows * plan.head_dim * 4},
            {"dK", 0, kv},
            {"dV", 0, kv}}},
          {"postprocess", {{"dQ_sum", sums_read, 0}, {"dQ", 0, q}}}};
}

}  // namespace
}  // namespace ladder::MACHINE
