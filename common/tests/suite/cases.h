// The cases of suite_test.cpp: shapes that combine any three conditions, and constructed inputs for
// mistakes that random inputs hardly ever reveal. Each case names a shape, a type and inputs.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "harness/run.h"

namespace ladder {
namespace {

struct Case;

/// Constructed inputs. A Maker returns those of a case.
using Elements = std::function<float(int row, int column)>;  // rows numbered across all heads
struct MadeInputs {
  float scale;           // 0: the case's scale
  Elements Q, K, V, dO;  // empty: drawn at random
  bool tight = false;    // whether the tolerance covers only the rounding of the output itself
};
using Maker = MadeInputs(const Case& c);
Maker logits_far_below_0, logits_rising, queries_of_0, logits_as_stored, sums, shares_of_43,
    tiles_that_cancel, tiles_that_rise, sums_that_rise, six_keys, keys_far_above, parts_that_rise,
    rounds_that_rise, values_that_grow;

struct Case {
  const char* name;
  int B, H, Hk, N, N_kv, d;
  bool causal = false;
  DType dtype = DType::fp16;
  Input input = Input::normal;
  float scale = 1;        // in units of 1/√d
  Maker* made = nullptr;  // constructs the inputs; null: drawn at random
};

constexpr DType bf = DType::bf16;
constexpr DType fp = DType::fp16;

constexpr Case made_case(const char* name, int N, int N_kv, int d, Maker* made) {
  return {name, 1, 1, 1, N, N_kv, d, false, bf, Input::normal, 1, made};
}

constexpr Case kCases[] = {
    // Every combination of three of these conditions occurs, because a mistake may need three at
    // once: causal; grouped heads; a padded head size; queries that do not fill their last tile;
    // more or fewer keys than queries; a batch; N, N_kv > 256, which reuses any step's stages.
    {"grouped", 2, 2, 1, 64, 40, 48, false, fp, Input::outliers},
    {"wide_causal", 1, 1, 1, 50, 50, 256, true, bf, Input::outliers},
    {"long_causal", 1, 2, 2, 320, 333, 40, true, bf},
    {"ragged_grouped", 2, 2, 1, 33, 70, 128, false, bf},
    {"long_grouped", 1, 2, 1, 320, 320, 128, false, fp, Input::outliers},
    {"ragged_wide", 2, 1, 1, 33, 33, 200, false, fp},
    {"blind_rows_grouped", 1, 4, 2, 50, 33, 96, true, bf},
    {"blind_rows", 2, 2, 2, 64, 40, 64, true, fp},
    {"long_ragged", 2, 1, 1, 270, 258, 64, false, fp},
    {"long_grouped_causal", 2, 2, 1, 320, 320, 48, true, bf},
    {"long_grouped_ragged", 1, 2, 1, 258, 266, 88, false, fp, Input::outliers},
    {"whole", 1, 2, 2, 64, 64, 80, false, fp},
    {"ragged_grouped_causal", 2, 2, 1, 33, 33, 128, true, fp, Input::outliers},
    {"long_wide_causal", 1, 1, 1, 270, 270, 216, true, fp, Input::outliers},
    {"grouped_wide", 1, 2, 1, 64, 64, 256, false, fp},
    {"long_ragged_causal", 1, 1, 1, 300, 300, 128, true, fp},
    {"blind_rows_wide", 2, 1, 1, 50, 33, 184, true, fp, Input::outliers},
    // Rarer shapes.
    {"one_query_one_key", 2, 2, 2, 1, 1, 64},
    {"one_query", 1, 4, 1, 1, 217, 128, true, bf},
    {"one_key", 2, 2, 1, 7, 1, 8, false, bf, Input::outliers},
    {"seven", 1, 9, 3, 7, 7, 40, true, bf, Input::outliers},
    {"narrow", 1, 2, 1, 130, 65, 16, false, bf},
    {"many_rounds", 1, 1, 1, 577, 650, 32, true, fp},
    {"keys_before", 1, 2, 2, 34, 224, 144, true, fp},  // the first query attends to 191 keys
    {"blind_tiles", 1, 2, 1, 300, 70, 64, true, bf},
    {"blind_tiles_wide", 1, 2, 2, 270, 140, 128, true, fp, Input::outliers},
    {"small_scale", 1, 2, 2, 70, 90, 32, false, fp, Input::normal, 0.01f},
    {"least_scale", 1, 2, 2, 66, 70, 24, true, bf, Input::normal, 1e-44f},
    {"large_logits", 1, 2, 1, 113, 128, 64, false, fp, Input::normal, 50},
    {"large_logits_bf16", 1, 2, 2, 130, 150, 40, true, bf, Input::normal, 50},
    {"large_logits_outliers", 1, 2, 2, 65, 66, 128, true, bf, Input::outliers, 20},
    {"far_below_zero", 1, 2, 1, 70, 66, 64, true, fp, Input::normal, 1, logits_far_below_0},
    {"far_below_zero_bf16", 1, 2, 2, 150, 150, 40, true, bf, Input::normal, 1, logits_far_below_0},
    {"far_below_zero_unmasked", 1, 1, 1, 260, 200, 128, false, fp, Input::normal, 1,
     logits_far_below_0},
    {"far_below_zero_wide", 1, 1, 1, 40, 50, 256, false, fp, Input::normal, 1, logits_far_below_0},
    {"rising", 1, 1, 1, 33, 390, 64, false, fp, Input::normal, 1, logits_rising},
    {"zero_queries", 1, 2, 1, 66, 66, 40, true, fp, Input::normal, 1, queries_of_0},
    made_case("logits_as_stored", 3, 15, 16, logits_as_stored),
    {"sums", 1, 1, 1, 4, 64, 16, false, fp, Input::normal, 1, sums},
    made_case("shares_of_43", 2, 43, 16, shares_of_43),
    made_case("tiles_that_cancel", 3, 300, 16, tiles_that_cancel),
    made_case("tiles_that_rise", 3, 557, 16, tiles_that_rise),
    made_case("sums_that_rise", 2, 525, 16, sums_that_rise),
    made_case("six_keys", 2, 6, 16, six_keys),
    {"keys_far_above", 1, 2, 1, 8, 200, 64, false, fp, Input::normal, 1, keys_far_above},
    {"values_that_grow", 1, 2, 1, 70, 300, 64, false, bf, Input::normal, 1, values_that_grow},
    made_case("keys_far_above_wide", 8, 200, 256, keys_far_above),
};

WorkloadSpec spec_of(const Case& c) {
  WorkloadSpec spec{.problem = {c.B, c.H, c.Hk, c.N, c.N_kv, c.d, c.causal, c.dtype}};
  spec.problem.scale = c.scale / std::sqrt(static_cast<float>(c.d));
  spec.scale = spec.problem.scale;
  spec.input = c.input;
  // Each case gets a seed of its own, so that no two cases share inputs.
  for (const char* s = c.name; *s; ++s)
    spec.seed = spec.seed * 131 + static_cast<unsigned char>(*s);
  spec.check = Check::full;
  return spec;
}

/// Splits x into a sum of three numbers of the I/O type and returns number `which` (0, 1 or 2).
float piece(const Case& c, float x, int which) {
  const auto first = static_cast<float>(rounded(c.dtype, x));
  return which == 0 ? first : piece(c, x - first, which - 1);
}

/// Two kinds of rows whose dot product is x(row), almost exactly. Only three columns are nonzero:
/// they are 1 in in_three_columns(), and the three pieces of x(row) in in_pieces().
float in_three_columns(int, int column) {
  return column < 3 ? 1 : 0;
}
Elements in_pieces(const Case& c, std::function<float(int row)> x) {
  return [=](int row, int column) { return column < 3 ? piece(c, x(row), column) : 0; };
}
Elements constant(float x) {
  return [=](int, int) { return x; };
}

/// Constructs scores of −256 and below. In a kernel whose running maximum starts at 0 instead of
/// −∞, all exponentials, their sum and the output underflow. Each row of Q and of K repeats one
/// number and the scale is 8/d, so every score has few bits, and is exact even if S is stored.
MadeInputs logits_far_below_0(const Case& c) {
  const auto K = [](int j, int) { return -4 - static_cast<float>(j * 7 % 5) / 32; };
  return {8.0f / static_cast<float>(c.d), [](int i, int) { return i % 3 ? 8.0f : 16.0f; }, K};
}

/// Constructs scores that rise from key to key: over all keys exp(S) grows by a factor of 2^27, but
/// only a little within a tile. P overflows in a kernel that does not update its maximum in time.
MadeInputs logits_rising(const Case& c) {
  const auto K = [](int j, int) { return static_cast<float>(j) * 0.006f; };
  return {8.0f / static_cast<float>(c.d), [](int i, int) { return i % 3 ? 1.0f : 0.5f; }, K};
}

/// Constructs queries of 0, like padding: all keys weigh the same, and LSE is 0 for a query with
/// one key, unlike one with none. All of V is below 1, so that FP8's scale must adapt to it.
MadeInputs queries_of_0(const Case&) {
  const auto V = [](int j, int column) { return static_cast<float>(7 * j % 13 + column) / 64; };
  return {0, constant(0), {}, V};
}

// Most remaining inputs find kernels that round to the I/O type more often than the algorithm must.
// Values that the algorithm must round are numbers of the I/O type already (to within about 2⁻²⁴),
// so the tolerance is half a unit in the last place. Other values are almost halfway between two
// such numbers, so rounding them changes an output by a unit or more.

/// Finds kernels that round anything but S and P. S is exactly 58.75 for 11 keys, 55.25 for one and
/// 49 for 3, and P is exact for these 3. No other value is a number of the I/O type: not q·k, the
/// scale, the scale times log₂e, the exponentials (with or without a maximum), their sums, the
/// sums' inverses or LSE. O comes from the 3 keys; their V is large because their P is small.
MadeInputs logits_as_stored(const Case& c) {
  const auto K = [](int j) { return (j % 5 == 0 ? 49 : j == 7 ? 55.25f : 58.75f) / 1.51995f; };
  const auto V = [](int j, int) { return j % 5 == 0 ? 0x1p16f : 0; };
  return {1.51995f, in_three_columns, in_pieces(c, K), V, constant(1), true};
}

/// Finds kernels that round exponentials, D or dP to fp16, or dQ and dK before they are scaled. P
/// is 1/64, from scores whose exponentials are not fp16 numbers. For the first two of the four
/// queries, D = 4098/512, which is not an fp16 number, and dP is D or (4098 ± 2)/512. For the other
/// two, dS = ±1, and some columns of dQ and dK are fp16 numbers only after they are scaled.
MadeInputs sums(const Case& c) {
  const float scale = 1205 / 1204.5f;
  const auto Q = [](int i, int column) {
    return column < 3 ? 1.0f : column == 3 && i >= 2 ? 1202.0f + static_cast<float>(i) : 0;
  };
  const auto K = [=](int j, int column) {
    const float sign = j % 2 ? -1 : 1, odd = static_cast<float>(j / 2 % 2);
    return column < 3                    ? piece(c, 7.0625f / scale, column)
           : column == 8                 ? 1024.0f
           : column == 9 || column == 10 ? sign * (1204 + odd) / 64
                                         : 0;
  };
  const auto V = [](int j, int column) {
    const float last = j % 2 ? -2 : 2;
    return column == 8 ? 4094 : column == 9 ? 4 : column == 10 ? last : 0;
  };
  const auto dO = [](int i, int column) {
    if (i >= 2) return column == 10 ? 32.0f : 0;
    return column >= 8 && column < 10 + i ? 0x1p-9f : 0;
  };
  return {scale, Q, K, V, dO, true};
}

/// Finds kernels that round a sum before dividing it, or P or dP − D before multiplying them. O =
/// 224 is (43 · 224)/43 and dS = ±224 is P · (dP − D), of which bf16 represents only O and dS.
MadeInputs shares_of_43(const Case&) {
  const auto V = [](int j, int column) {
    const float sign = j < 21 ? 1 : j < 42 ? -1 : 0;
    return column == 0 ? sign * 9600 : column == 1 ? sign * 32 : 224;  // 9632 = 43·224
  };
  const auto Q = [](int i, int column) { return i == 0 && column == 0 ? 1.0f : 0; };
  const auto K = [](int j, int column) { return j == 0 && column == 8 ? 1.0f : 0; };
  const auto dO = [](int i, int column) { return i == 0 && column < 2 ? 1.0f : 0; };
  return {1, Q, K, V, dO, true};
}

/// Finds kernels that round O, or the weights in it, between tiles. P is 1/300, and O = 1 is what
/// remains of sums 30 times larger, so rounding them causes errors 30 times larger.
MadeInputs tiles_that_cancel(const Case&) {
  const auto V = [](int j, int) { return j < 256 ? 34.0f : -191.0f; };
  return {1, constant(0), constant(1), V, {}, true};
}

/// Makes key j's P proportional to share(j) and all columns of its row of V equal to V(j). Keys
/// last, last + 1 and last + 2 are an exception: their share must be 1, and their V makes O = 1.
MadeInputs of_shares(const Case& c, std::function<float(int)> share, std::function<float(int)> V,
                     int last) {
  double rest = 0;
  for (int j = 0; j < c.N_kv; ++j) {
    const bool is_last = j >= last && j < last + 3;
    rest += share(j) * (is_last ? 1.0 : 1.0 - double{V(j)});
  }
  return {1,
          in_three_columns,
          in_pieces(c, [=](int j) { return std::log(share(j)); }),
          [=](int j, int) {
            const bool is_last = j >= last && j < last + 3;
            return is_last ? piece(c, static_cast<float>(rest), j - last) : V(j);
          },
          {},
          true};
}

/// Finds kernels that round the factor that rescales O when the maximum grows. The P of the first
/// 256 keys, the next 256 and the last 45 are bf16 numbers in the ratio of about 2⁻¹⁷ : 2⁻⁸ : 1,
/// but the first factor is not. The first group adds about 20 times the final O, so errors show.
MadeInputs tiles_that_rise(const Case& c) {
  const auto share = [](int j) { return j < 256 ? 0x1.fep-18f : j < 512 ? 0x1.fcp-9f : 1; };
  const auto V = [](int j) { return j < 256 ? 473088.0f : j < 512 ? 0 : -19.375f; };
  return of_shares(c, share, V, 554);
}

/// Like tiles_that_rise, but for warps or blocks that split the keys and rescale O when they agree
/// on a maximum. P is smallest for keys 0 to 31 and 128 to 159, larger for 32 to 127, still larger
/// for 160 to 255, and 1 for the next 256. All P are bf16 numbers; the factors are not.
MadeInputs parts_that_rise(const Case& c) {
  const float first = 0x1.fep-18f;
  const auto share = [=](int j) {
    if (j >= 256) return j < 512 ? 1 : 0x1.1ap-2f;
    return j % 128 < 32 ? first : j < 128 ? 0x1.fcp-9f : 0x1.0ap-4f;
  };
  const auto V = [=](int j) {
    return share(j) == 1 ? -19.125f : share(j) == first ? 0x1.4p23f : 0;
  };
  return of_shares(c, share, V, 509);
}

/// Like parts_that_rise, but for kernels that merge the results of 128-key parts in rounds of 32
/// parts: P is about 1/4 in the first part, larger in the next seven, 1 in the ninth, negligible in
/// the next 23, and just below 1 in the 33rd. O = 1 remains of large sums; rounded factors show.
MadeInputs rounds_that_rise(const Case& c) {
  const auto share = [](int j) {
    if (j < 1024) return j < 128 ? 0x1.fep-3f : 0x1.74p-2f;
    return j < 1152 ? 1 : j < 4096 ? 1e-30f : 0x1.fcp-1f;
  };
  return of_shares(
      c, share, [](int j) { return j < 64 ? 1024.0f : 0; }, 1024);
}

/// Finds kernels that round the sum l, or the exponentials in it. P (unnormalised) is 1 for 13 keys
/// in the middle, and 0.502 for 256 keys before (query 0) or after them (query 1); neither 0.502
/// nor l is a bf16 number. V is 0 except for 3 of the 13, so rounding P changes nothing else.
MadeInputs sums_that_rise(const Case& c) {
  const float share = 0.5019140625f, sum = 13 + 256 * share;
  const auto K = [=](int j, int column) {
    const bool before = j < 256, after = j >= 269, first = column < 3;
    const float S = before || after ? (before == first ? std::log(share) : -60) : 0;
    return column < 6 ? piece(c, S, column % 3) : 0;
  };
  const auto V = [=](int j, int) {
    return j >= 256 && j < 259 ? piece(c, sum * 1.9921875f, j - 256) : 0;
  };
  const auto Q = [](int i, int column) { return column / 3 == i && column < 6 ? 1.0f : 0; };
  return {1, Q, K, V, {}, true};
}

/// Like sums_that_rise, but with six keys, so one lane holds a whole row. V is 0 except for the
/// first key. The sum l = 2.008 is not a bf16 number, but P = 1/l is within 2⁻¹⁵ of one.
MadeInputs six_keys(const Case&) {
  const auto K = [](int j, int column) { return j > 0 && column == 0 ? -1.6015625f : 0; };
  const auto V = [](int j, int) { return j > 0 ? 0.0f : 4; };
  return {1, [](int, int column) { return column == 0 ? 1.0f : 0; }, K, V, {}, true};
}

/// Each query scores every eighth group of 16 keys so far above the rest that their P underflows.
/// Warps or blocks that split the keys hold the maxima of some rows and must get the others.
MadeInputs keys_far_above(const Case&) {
  const auto K = [](int j, int column) { return column == j / 16 % 8 ? 1.0f : 0; };
  return {1, [](int i, int column) { return column == i % 8 ? 200.0f : 0; }, K};
}

/// V doubles every 64 keys, so that every tile of V has a scale of its own if it is quantised.
MadeInputs values_that_grow(const Case& c) {
  const auto V = [=](int j, int column) {
    return std::ldexp(column % 2 ? 1.0f : -1.0f, j % c.N_kv / 64);
  };
  return {0, {}, {}, V};
}

/// Returns a case's workload. It is cached, so that its references are computed once per process.
Workload& workload_of(const Case& c) {
  static std::map<std::tuple<std::string, int, int, int, DType>, Workload> all;
  const auto key = std::tuple(std::string(c.name), c.N, c.N_kv, c.d, c.dtype);
  if (const auto there = all.find(key); there != all.end()) return there->second;
  WorkloadSpec spec = spec_of(c);
  if (!c.made) return all.try_emplace(key, spec).first->second;
  const MadeInputs made = c.made(c);
  if (made.scale > 0) spec.problem.scale = made.scale;
  const auto make = [&](int heads, int rows, const Elements& value, Stream stream) {
    if (!value) return draw(c.dtype, int64_t{c.B} * heads * rows * c.d, Input::normal, 0, stream);
    std::vector<float> values;
    for (int row = 0; row < c.B * heads * rows; ++row)
      for (int column = 0; column < c.d; ++column) values.push_back(value(row, column));
    return round_all(c.dtype, values);
  };
  Inputs inputs{make(c.H, c.N, made.Q, Stream::Q), make(c.Hk, c.N_kv, made.K, Stream::K),
                make(c.Hk, c.N_kv, made.V, Stream::V), make(c.H, c.N, made.dO, Stream::dO)};
  return all.try_emplace(key, spec, std::move(inputs)).first->second;
}

DType type_on(const Device& device, DType type) {
  return device.info().has_bf16() ? type : fp;
}

RunOptions quick(const Device& device, const TileRequest& tile = {}) {
  RunOptions options{.tile = tile};
  if (device.info().kind == DeviceKind::gpu) options.time_ms = 1.0f;
  return options;
}

/// Runs a case, in fp16 if the device lacks bf16, and returns run_step()'s reports.
std::vector<Report> run_case(Device& device, const Step& step, Case c, const TileRequest& tile = {},
                             Outputs* out = nullptr) {
  c.dtype = type_on(device, c.dtype);
  return run_step(device, step, quick(device, tile), workload_of(c), out);
}

}  // namespace
}  // namespace ladder
