// What the sim knows of each byte of an array or of shared memory: a byte of its own, its shadow.
// (Which blocks touched an array is in tracked.h.)
#pragma once

#include <bit>
#include <cstdint>
#include <tuple>

namespace ladder::sim {

enum ShadowBit : uint8_t {
  kWritten = 1,  // somebody wrote it
  // of arrays
  kReadHere = 2,     // read in this kernel
  kWrittenHere = 4,  // written in this kernel
  kAddedHere = 8,    // added to atomically in this kernel
  kShared = 16,      // several blocks read it in this kernel, or added to it, and did nothing else
  kReadBefore = 32,  // by the kernel before, and this one has started early
  kWrittenBefore = 64,
  // of shared memory
  kFloats = 2,       // came by bulk_load: of each thread that reads it this is noted
  kInFlight = 8,     // the target of an asynchronous copy that nobody has waited for
  kBeingRead = 16,   // by a wgmma or a TMA store that nobody has waited for
  kOrdinary = 32,    // written by ordinary stores, and not fenced for wgmma and TMA since
  kOneThreads = 64,  // copied by a thread that waited for it, and has come to no barrier since
  kWatched = 128     // a trace is told of ordinary accesses; of all bytes or of none
};

/// The bits of an accumulator register that a wgmma still owns: a signalling NaN. Arithmetic with
/// it gives the quiet one, bit 22, so a register that was computed with and written back is found.
inline constexpr uint32_t kOwnedByWgmma = 0x7fadbeef;

/// The unsigned integer of n bytes, and a shadow bit repeated in each of them.
template <int n>
using Word = std::tuple_element_t<std::countr_zero(unsigned{n}),
                                  std::tuple<uint8_t, uint16_t, uint32_t, uint64_t>>;
template <int n>
constexpr auto repeat(unsigned bits) {
  using W = Word<n>;
  return static_cast<W>(static_cast<W>(~W{0}) / 0xff * bits);
}

}  // namespace ladder::sim
