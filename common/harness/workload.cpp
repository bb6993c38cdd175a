// Checks a workload's sizes, draws or loads its inputs, and caches its references.
#include "harness/workload.h"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>

#include "harness/messages.h"
#include "harness/npy.h"

namespace ladder {
namespace {

/// Draws the inputs or, if spec.load names a folder, reads them there and sets the spec's shapes
/// from the files. Without a file do.npy, dO is drawn. If not `backward`, dO stays empty.
Inputs make_inputs(WorkloadSpec& spec, bool backward) {
  Problem& p = spec.problem;
  const auto make = [&](int heads, int rows, Stream stream) {
    return draw(p.dtype, int64_t{p.B} * heads * rows * p.d, spec.input, spec.seed, stream);
  };
  if (spec.load.empty())
    return {make(p.H, p.N, Stream::Q), make(p.Hk, p.N_kv, Stream::K), make(p.Hk, p.N_kv, Stream::V),
            backward ? make(p.H, p.N, Stream::dO) : Tensor{}};

  using Shape = std::vector<int64_t>;
  namespace fs = std::filesystem;
  const auto path = [&](const char* name) { return fmt::format("{}/{}.npy", spec.load, name); };
  // Returns whether the file exists; refuses a similar one in its place (dO.npy, do.npy.txt).
  const auto is_there = [&](const char* name) {
    std::error_code error;
    if (fs::exists(fs::symlink_status(path(name), error))) return true;
    for (const fs::path& other : fs::directory_iterator(spec.load, error)) {
      const std::string file = other.filename().string();
      if (strcasecmp(file.substr(0, file.find('.')).c_str(), name) == 0)
        bad_usage("'{}': no such file, but there is '{}': rename it or move it away", path(name),
                  other.string());
    }
    return false;
  };
  const auto read = [&](const char* name, Tensor& tensor) -> Shape {
    is_there(name);
    const NpyArray array = read_npy(path(name));
    if (array.shape.size() != 4 || std::ranges::max(array.shape) > INT_MAX)
      bad_usage("{} has shape {}: it must have the 4 dimensions (batch, heads, length, head size)",
                path(name), shape_text(array.shape));
    tensor = round_all(p.dtype, array.values);
    for (const uint16_t bits : tensor.bits)
      if (!is_finite(widen(p.dtype, bits)))
        bad_usage("{}: a value is too large for {}", path(name),
                  p.dtype == DType::fp16 ? "fp16; try --dtype bf16" : "bf16");
    return array.shape;
  };
  // Refuses two files whose shapes differ in one of the dimensions.
  const auto agree = [&](const char* one, const Shape& a, const char* other, const Shape& b,
                         std::initializer_list<size_t> dimensions) {
    for (const size_t i : dimensions)
      if (a[i] != b[i])
        bad_usage("{} has shape {} and {} has {}: they must agree in dimension {}, counted from 0",
                  path(one), shape_text(a), path(other), shape_text(b), i);
  };
  Inputs in;
  const Shape q = read("q", in.Q), k = read("k", in.K), v = read("v", in.V);
  agree("k", k, "v", v, {0, 1, 2, 3});
  agree("q", q, "k", k, {0, 3});
  const auto size = [](int64_t n) { return static_cast<int>(n); };
  p = {size(q[0]), size(q[1]), size(k[1]), size(q[2]), size(k[2]), size(q[3]), p.causal, p.dtype};
  spec.complete();
  if (!backward) return in;
  if (is_there("do")) {
    agree("do", read("do", in.dO), "q", q, {0, 1, 2, 3});
    return in;
  }
  say(fmt::format("{} does not exist: dO is drawn from seed {}", path("do"), spec.seed));
  in.dO = make(p.H, p.N, Stream::dO);
  return in;
}

}  // namespace

void WorkloadSpec::complete() {
  Problem& p = problem;
  p.scale = scale.value_or(static_cast<float>(1 / std::sqrt(static_cast<double>(p.d))));
  if (p.d < 8 || p.d > 256 || p.d % 8 != 0)
    bad_usage("head-dim {}: give a multiple of 8 from 8 to 256", p.d);
  if (p.Hk < 1 || p.H % p.Hk != 0)
    bad_usage("kv-heads {} does not divide heads {}; give a divisor of {}", p.Hk, p.H, p.H);
  // Kernels count rows, and therefore heads, tiles and blocks, in ints. A count may run past the
  // end by a tile, a GPU full of blocks or a group of heads, so the limit is 2³⁰, not 2³¹.
  constexpr int kMostRows = 1 << 30;
  const auto require = [&](const char* heads, int of, const char* length, int rows) {
    if (__int128{p.B} * of * rows > kMostRows)
      bad_usage(
          "batch {} x {} {} x {} {} is too large: give at most {} rows in all, which a "
          "kernel's ints can count",
          p.B, heads, of, length, rows, kMostRows);
  };
  require("heads", p.H, "seqlen", p.N);
  require("kv-heads", p.Hk, "seqlen-kv", p.N_kv);
}

void add_workload(json::Members& members, const WorkloadSpec& spec) {
  const Problem& p = spec.problem;
  members.add("batch", p.B).add("heads", p.H).add("kv_heads", p.Hk).add("seqlen", p.N);
  members.add("seqlen_kv", p.N_kv).add("head_dim", p.d).add("causal", p.causal);
  members.add("dtype", p.dtype == DType::fp16 ? "fp16" : "bf16").add("scale", p.scale);
  members.add("input", !spec.load.empty()              ? "load"
                       : spec.input == Input::outliers ? "outliers"
                                                       : "normal");
  members.add("seed", spec.seed);
}

const Inputs& Workload::inputs(bool backward) {
  if (!inputs_ || (backward && inputs_->dO.bits.empty())) {
    const Progress progress("making the inputs");
    inputs_ = make_inputs(spec_, backward);
  }
  return *inputs_;
}

const Reference& Workload::reference(const Step& step,
                                     const std::optional<Quantisation>& quantisation) {
  const bool gradients{step.backward};
  return references_
      .try_emplace({step.rounding, quantisation, gradients}, problem(), inputs(gradients),
                   step.rounding, to_check(problem(), spec_.check, gradients), quantisation)
      .first->second;
}

}  // namespace ladder
