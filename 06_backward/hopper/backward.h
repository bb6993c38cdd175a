// 06 on Hopper: what the steps from `producer` on share. wgmma.cu shows most of it where it is
// used first. This header is not a step of its own.
#pragma once

#include "machine/hopper.h"
#include "rung.h"
#include "tile/schedule.h"
#include "tile/stages.h"
#include "tile/warpgroup.h"

namespace ladder::MACHINE {
namespace {

constexpr float kLog2e = 1.44269504f;

/// Compiled tiles of the backward pass: heads up to …, Br, Bc.
constexpr TileSize kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}};

constexpr int kConsumersBackward = 2;                              // warpgroups that multiply
constexpr int kBackwardThreads = kWarpgroup * kConsumersBackward;  // of them
constexpr int kWarpgroupKeys = 64;                                 // of a consumer
constexpr int kStages = 2;  // of copies of Q and dO; from `transposed` on, of dS too

/// Registers of a thread of a consumer, and of the producer: together what three started with.
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kAll = 1;             // the named barrier of all consumers
constexpr unsigned kFirstLane = 1;  // a mask of lanes: the producer is one thread

/// A consumer's part of R × C sums: 64 rows of them or, where there are but 64, half of the
/// columns.
template <int R, int C>
struct Part {
  static_assert(R == 64 ? C % 16 == 0 : R == 64 * kConsumersBackward);
  static constexpr int kColumns = R == 64 ? C / 2 : C;
  int consumer;
  __device__ int row() const { return R == 64 ? 0 : consumer * 64; }
  __device__ int column() const { return R == 64 ? consumer * kColumns : 0; }
};

constexpr int kElementwise = 256;  // threads of a block of a small kernel

/// What is kept between the kernels: arrays in whole tiles of rows, of all B·H heads; how many of
/// these rows a head has, and how many tiles of keys a head of K and V.
struct Kept {
  Hbm<float> minus_delta, LSE_log2e, dQ_sum;
  int rows, tiles;
};

/// What a lane of preprocess does for row `at` of all, which has kLanes lanes, at least Dh/8:
/// minus_delta = −D = −rowsum(dO∘O), with which the sums dP begin, so that they give dP − D; LSE in
/// units of ln 2; and dQ's sums, 0 to begin with. Rows past p.N have LSE = +∞, which makes their P
/// 0. So has a row that attends to no key, whose LSE is −∞.
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
/// All rows. Dh/8 lanes per row: those of a tile fill whole blocks.
template <class T, int Dh>
__global__ void preprocess(Hbm<const T> O, Hbm<const T> dO, Hbm<const float> LSE, Kept kept,
                           Problem p) {
  const int64_t at = (int64_t{blockIdx.x} * kElementwise + threadIdx.x) / (Dh / 8);
  preprocess_row<Dh / 8, Dh>(at, O, dO, LSE, kept, p);
}

/// Returns the tile of keys that block `index` works on, and its head of the B·Hk heads of K and V.
/// The longest tiles come first: under the mask the most rows attend to the first keys.
__device__ __forceinline__ WorkTile work_of(int index, int tiles, const Problem& p) {
  return longest_first(index, {.heads = p.B * p.Hk,
                               .tiles = tiles,
                               .head_bytes = 4 * kIoBytes * p.N * p.d * (p.H / p.Hk),
                               .uneven = p.causal});
}

/// A block's work: the tile of keys from `key` on, of one of the B·Hk heads of K and V. The rows of
/// Q that attend to one of them begin with first_row, in whole tiles, in each query head that
/// shares the head of K and V; the block goes over them one head after the other.
struct KeyTile {
  int bh, key, first_row;
};

/// What producer and consumers share: the block's tile of K and of V, filled once, and rings of
/// stages of Q, with LSE, and of dO, with D.
template <class T, int Dh, int Br, int Bc>
struct Rings {
  Stages<SwizzledTile<T, Bc, Dh>, 1> K, V;
  StagesWithRows<SwizzledTile<T, Br, Dh>, kStages, Br> Q, dO;

  /// Takes the tiles.
  __device__ __forceinline__ explicit Rings(SharedMemory& smem)
      : K{smem, "K"}, V{smem, "V"}, Q{smem, "Q"}, dO{smem, "dO"} {}
  /// Takes the barriers, once all tiles of the kernel are taken. By all threads.
  __device__ __forceinline__ void init(SharedMemory& smem) {
    constexpr int kReleases = 4 * kConsumersBackward;  // one by each warp
    Q.init(smem, "LSE_log2e", "Q_full", "Q_free", kReleases);
    dO.init(smem, "minus_delta", "dO_full", "dO_free", kReleases);
    K.init(smem, "K_full", "K_free", 1);
    V.init(smem, "V_full", "V_free", 1);
    if (threadIdx.x == 0) fence_mbarrier_init();  // before TMA counts bytes at the barriers,
    __syncthreads();                              // and before anybody waits there
  }
};

/// A consumer's rows of dK and dV, as sums.
template <int Dh>
struct KeyGradients {
  Accumulator<16, Dh> dK, dV;
};

/// Adds a warp's sums of dQ, which begin at this row and column of a tile of Q, to the tile's sums
/// in HBM. They lie in blocks of 8 × 8, as in `split_sums`: a lane's pair is the lane-th of each
/// block.
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

/// Multiplies the sums of dQ by the scale and rounds them to the I/O type. Dh/8 lanes per row.
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

/// An array of keys, K, V, dK or dV, as TMA copies it: a tile of Bc rows at a time.
template <class T, int Bc>
TensorMap map_of_keys(const Problem& p, Array& array) {
  return tensor_map<T>(array, p.d, p.N_kv, p.Hk, p.B, Bc);
}
/// What a block reads by TMA; and what it writes, from `bulk_add` on.
struct Maps {
  TensorMap Q, K, V, dO;
};
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

/// The plan of a step whose blocks take smem_bytes(Dh, Br, Bc) of shared memory.
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
/// Blocks of a small kernel that has `lanes` lanes for each kept row; and tiles of keys of all.
inline dim3 row_blocks(const Problem& p, const Kept& kept, int lanes) {
  return dim3(ceil_div(int64_t{p.B} * p.H * kept.rows * lanes, kElementwise));
}
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

/// Bytes of dQ's sums that postprocess reads: of dQ's own elements, or of whole tiles.
inline int64_t bytes_of_elements(const Problem& p) {
  return int64_t{p.B} * p.H * p.N * p.d * 4;
}
inline int64_t bytes_of_tiles(const Problem& p, const Plan& plan) {
  return int64_t{p.B} * p.H * ceil_div(p.N, plan.block_q) * plan.block_q * plan.head_dim * 4;
}

/// Requested bytes of the backward pass where one block has a tile of keys: it reads Q and dO from
/// the first row that attends to one of its keys, and adds to dQ there. What is kept between the
/// kernels has whole tiles. sums_read: by postprocess.
inline Traffic traffic_of(const Problem& p, const Plan& plan, int64_t sums_read) {
  const int64_t heads = int64_t{p.B} * p.H, kv_heads = int64_t{p.B} * p.Hk;
  const int64_t q = heads * p.N * p.d * kIoBytes;         // bytes of Q, O, dO and dQ
  const int64_t kv = kv_heads * p.N_kv * p.d * kIoBytes;  // bytes of K, V, dK and dV
  const int64_t padded = heads * ceil_div(p.N, plan.block_q) * plan.block_q;  // rows
  int64_t queries = 0, tiles = 0;  // rows, and tiles of Q, that the tiles of keys of a head read
  for (int64_t key = 0; key < p.N_kv; key += plan.block_kv) {
    const int first = p.first_query(static_cast<int>(key)) / plan.block_q * plan.block_q;
    queries += p.N - first;
    tiles += ceil_div(p.N - first, plan.block_q);
  }
  const int64_t read = heads * queries * p.d * kIoBytes;  // bytes of Q, and of dO
  const int64_t rows = heads * tiles * plan.block_q;      // of LSE, D and dQ's sums
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
