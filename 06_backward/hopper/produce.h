// 06 on Hopper: the producer of the steps `transposed`, `bulk_add` and `ahead`. It first appears in
// producer.cu. The steps `split` and `sm90` define their own producers.
#pragma once

#include "backward.h"

namespace ladder::MACHINE {
namespace {

/// Runs the producer thread: starts the copies of the block's tiles of K and V, and of the tiles of
/// Q and dO in all query heads that share them, into their rings. LSE arrives with Q, −D with dO.
template <class T, int Dh, int Br, int Bc>
__device__ __forceinline__ void produce(Rings<T, Dh, Br, Bc> rings, const Maps& maps,
                                        const Kept& kept, const KeyTile& keys, const Problem& p) {
  const int group = p.H / p.Hk, batch = keys.bh / p.Hk, head_kv = keys.bh % p.Hk;
  rings.K.fill(maps.K, 0, keys.key, head_kv, batch);
  rings.V.fill(maps.V, 0, keys.key, head_kv, batch);
#pragma unroll 1  // these loops mostly wait; unrolled, they would make up a fifth of the code
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
