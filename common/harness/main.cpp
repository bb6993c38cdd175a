// The main program of every rung: parses the options, runs the steps and prints the reports. Each
// rung links it with its own steps, which determine the program's name.

#include <fmt/format.h>

#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "harness/atomic_file.h"
#include "harness/json.h"
#include "harness/messages.h"
#include "harness/npy.h"
#include "harness/options.h"
#include "harness/run.h"
#include "harness/steps.h"

namespace ladder {
namespace {

const char* rung_name() {
  return all_steps().front().rung.c_str();
}

/// Prints --list for scripts: one line of JSON per step and device, from the step's registration.
void list_all_steps() {
  for (const DeviceKind kind : {DeviceKind::sim, DeviceKind::gpu}) {
    const auto all = steps_for(kind);
    const auto by_default =
        std::find_if(all.rbegin(), all.rend(), [](const Step& step) { return step.is_default; });
    for (const Step& step : all) {
      json::Members m;
      m.add("rung", step.rung).add("step", step.name);
      m.add("device", kind == DeviceKind::gpu ? "gpu" : "sim");
      m.add("default", step.name == by_default->name).add("by_name_only", by_name_only(step));
      m.add("idea", step.shown.idea).add("summary", step.shown.summary);
      m.add("colour", step.shown.colour);
      const auto& [count, how, on] = step.shown.change;
      m.raw("change", json::list(count, how, on));
      m.add("after", step.after).add("backward", bool{step.backward});
      m.add("deterministic", step.deterministic).add("needs", step.needs.capability());
      m.add("exact_architecture", step.needs.exact_architecture);
      m.add("decoding", step.shown.decoding).add("source", step.source);
      m.raw("tiles", json::array(step.tiles, [](const TileSize& t) {
              return json::list(t.max_d, t.block_q, t.block_kv);
            }));
      m.raw("grid_limit", json::list(step.shown.grid_limit.full, step.shown.grid_limit.causal));
      m.raw("settings", json::array(step.settings, [](const Setting& s) {
              const auto values = json::array(s.values, [](auto x) { return json::value(x); });
              return fmt::format("[{}, {}]", json::value(s.name), values);
            }));
      print(m.object() + "\n");
    }
  }
}

/// Writes the outputs into `folder`, which exists; bf16 as float32, because NumPy lacks bf16.
void save(const std::string& folder, const Problem& p, const Outputs& out) {
  const auto add = [&](const char* name, const std::vector<int64_t>& shape,
                       const std::vector<float>& values, NpyType type) {
    if (!values.empty())
      write_file(fmt::format("{}/{}.npy", folder, name), npy_bytes(shape, values, type));
  };
  const auto tensor = [&](const char* name, const Tensor& t, int heads, int rows) {
    add(name, {p.B, heads, rows, p.d}, widen_all(t),
        p.dtype == DType::fp16 ? NpyType::float16 : NpyType::float32);
  };
  tensor("o", out.O, p.H, p.N);
  add("lse", {p.B, p.H, p.N}, out.LSE, NpyType::float32);
  tensor("dq", out.dQ, p.H, p.N);
  tensor("dk", out.dK, p.Hk, p.N_kv);
  tensor("dv", out.dV, p.Hk, p.N_kv);
}

/// Runs one step, prints its reports and returns its exit status. `between` is printed before each
/// report; it starts empty, and this function sets it to the separator of later reports.
int run_one(Device& device, const Step& step, const Options& options, Workload& workload,
            std::string& between) {
  if (!options.save.empty()) {
    std::error_code error;
    std::filesystem::create_directory(options.save, error);
    if (error)
      bad_usage("cannot create the folder '{}': {}; choose another", options.save, error.message());
    require_writable(options.save + "/o.npy");
  }
  if (!options.run.trace_file.empty()) require_writable(options.run.trace_file);

  Outputs outputs;
  const auto reports = run_step(device, step, options.run, workload, &outputs);
  if (!options.save.empty()) save(options.save, workload.problem(), outputs);

  bool pass = true;
  std::string wrong;  // which outputs are wrong, and where
  for (const Report& report : reports) {
    if (const std::string text = to_text(report, options); !text.empty())
      print(std::exchange(between, options.json ? "" : "\n") + text);
    pass = pass && report.pass().value_or(true);
    for (const TensorError& e : report.errors.value_or(std::vector<TensorError>()))
      if (e.wrong()) wrong += fmt::format("{}{} in {}", wrong.empty() ? "" : "; ", e.name, e.where);
  }
  if (!wrong.empty()) say(fmt::format("{}: wrong result: {}", rung_name(), wrong));
  return static_cast<int>(pass ? Exit::good : Exit::wrong_result);
}

int run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    list_all_steps();
    return 0;
  }
  const auto options = parse_options(argc, argv, rung_name());
  if (!options) return 0;
  const auto device = open_device(*options);
  Workload workload(options->workload);
  int worst = 0;
  const std::vector<Options> each = each_step(*options);
  std::vector<Step> chosen;  // all steps are chosen before the first one runs
  for (const Options& one : each) chosen.push_back(choose_step(one, device->info()));
  std::string between;
  for (size_t i = 0; i < each.size(); ++i)
    worst = std::max(worst, run_one(*device, chosen[i], each[i], workload, between));
  return worst;
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  std::fesetenv(FE_DFL_ENV);  // undoes -Ofast's flushing of subnormals to 0
  const auto fail = [](ladder::Exit status, const char* what) {
    std::fflush(stdout);
    ladder::say(fmt::format("{}: {}", ladder::rung_name(), what));
    return static_cast<int>(status);
  };
  try {
    return ladder::run(argc, argv);
  } catch (const ladder::Error& e) {
    return fail(e.status, e.what());
  } catch (const std::bad_alloc&) {
    return fail(ladder::Exit::no_device,
                "the host is out of memory; use a smaller --batch, --heads or --seqlen");
  } catch (const std::exception& e) {
    return fail(ladder::Exit::wrong_result, e.what());
  }
}
