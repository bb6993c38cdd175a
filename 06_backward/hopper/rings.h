// 06 on Hopper: what the steps from `transposed` on share, and producer.cu shows where it is used
// first. This header is not a step of its own.
#pragma once

#include "backward.h"

namespace ladder::MACHINE {
namespace {

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

/// The producer, one thread: fetches the block's tile of keys, and the tiles of Q and dO of its
/// heads into their rings.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ void produce(Rings<T, Dh, Br, Bc> rings, const Maps& maps,
                                        const Kept& kept, const KeyTile& keys, const Problem& p) {
  const int group = p.H / p.Hk, batch = keys.bh / p.Hk, head_kv = keys.bh % p.Hk;
  rings.K.fill(maps.K, 0, keys.key, head_kv, batch);
  rings.V.fill(maps.V, 0, keys.key, head_kv, batch);
#pragma unroll 1  // or a fifth of the code would be copies of these loops, which only wait
  for (int head = keys.bh * group; head < (keys.bh + 1) * group; ++head)
#pragma unroll 1
    for (int row = keys.first_row; row < p.N; row += Br) {
      const int64_t at = int64_t{head} * kept.rows + row;
      rings.Q.acquire();
      rings.Q.fill(maps.Q, 0, row, head % p.H, batch, kept.LSE_log2e + at);
      rings.dO.acquire();
      rings.dO.fill(maps.dO, 0, row, head % p.H, batch, kept.minus_delta + at);
    }
}

}  // namespace
}  // namespace ladder::MACHINE
