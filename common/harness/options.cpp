// Defines kOptions, the table of all options. Parsing, error messages and --help follow from it.
#include "harness/options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "harness/messages.h"
#include "harness/steps.h"

namespace ladder {
namespace {

/// The names that an enum's values have on the command line, for each enum that is an option.
template <class T>
using Names = std::vector<std::pair<std::string_view, T>>;
using Order = Schedule::Order;
const std::tuple kNames{
    Names<DType>{{"fp16", DType::fp16}, {"bf16", DType::bf16}},
    Names<Input>{{"normal", Input::normal}, {"outliers", Input::outliers}},
    Names<DeviceChoice>{
        {"auto", DeviceChoice::automatic}, {"gpu", DeviceChoice::gpu}, {"sim", DeviceChoice::sim}},
    Names<Check>{{"full", Check::full}, {"sampled", Check::sampled}, {"off", Check::off}},
    Names<Order>{
        {"forward", Order::forward}, {"reverse", Order::reverse}, {"random", Order::random}}};

/// An option as given on the command line. Its functions read the value or throw Error(bad_usage).
struct GivenOption {
  std::string_view option;
  const char* text;

  [[noreturn]] void bad(const std::string& accepted) const {
    bad_usage("--{} '{}': give {}", option, text, accepted);
  }

  /// Reads the whole text as a number in [least, most]; the error message says: give `accepted`.
  template <class T>
  T number(T least, const std::string& accepted, T most = std::numeric_limits<T>::max()) const {
    const char* const end = text + std::strlen(text);
    T value{};
    if constexpr (std::is_integral_v<T>) {
      const auto [rest, error] = std::from_chars(text, end, value);
      if (rest == end && error == std::errc{} && value >= least && value <= most) return value;
    } else {  // libc++ has from_chars for float only since version 20
      char* rest;
      value = std::strtof(text, &rest);
      if (rest == end && value >= least && value <= most && is_finite(value)) return value;
    }
    bad(accepted);
  }

  template <class T>
  T choice() const {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : std::get<Names<T>>(kNames)) {
      if (name == text) return value;
      names.push_back(name);
    }
    bad(fmt::format("one of {}", fmt::join(names, ", ")));
  }
};

/// Reads an option's value into the member of `options` that `members` lead to, one nested in the
/// other. The member's type determines which values are accepted.
template <auto... members>
void read(const GivenOption& given, Options& options) {
  auto& value = (options.*....*members);
  using T = std::remove_reference_t<decltype(value)>;
  if constexpr (std::is_same_v<T, bool>) {
    value = true;
  } else if constexpr (std::is_enum_v<T>) {
    value = given.choice<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = given.text;
  } else if constexpr (std::is_same_v<T, std::optional<float>>) {
    value = given.number(std::numeric_limits<float>::denorm_min(),
                         "a finite number above 0 that a float holds");
  } else if constexpr (std::is_same_v<T, Settings>) {
    std::istringstream all(given.text + std::string(","));  // finds an empty last item, too
    for (std::string one; std::getline(all, one, ',');) {
      const size_t equals = one.find('=');
      if (equals == one.npos) given.bad("NAME=VALUE,...");
      value[one.substr(0, equals)] = one.substr(equals + 1);
    }
  } else if constexpr (std::is_same_v<T, Schedule>) {
    constexpr std::string_view kSeeded = "random:";
    if (std::string_view(given.text).starts_with(kSeeded)) {
      const GivenOption seed{given.option, given.text + kSeeded.size()};
      value = {Order::random, seed.number<uint64_t>(0, "random:SEED with a whole number as SEED")};
    } else {
      value = {given.choice<Order>(), 0};
    }
  } else {
    // The only int64_t, --sram, is at most 1 MiB, because the simulator allocates it per core.
    constexpr T least = std::is_unsigned_v<T> ? 0 : 1;
    constexpr T most = std::is_same_v<T, int64_t> ? 1 << 20 : std::numeric_limits<T>::max();
    value = given.number(least, fmt::format("a whole number from {} to {}", least, most), most);
  }
}

template <auto member>
constexpr auto to_options = read<member>;
template <auto member>
constexpr auto to_workload = read<&Options::workload, member>;
template <auto member>
constexpr auto to_problem = read<&Options::workload, &WorkloadSpec::problem, member>;
template <auto member>
constexpr auto to_run = read<&Options::run, member>;
template <auto member>
constexpr auto to_tile = read<&Options::run, &RunOptions::tile, member>;
template <auto member>
constexpr auto to_sim = read<&Options::sim, member>;

/// An option's subject: `sim` excludes --device gpu; `shape` excludes --load, which gives shapes.
enum class About { run, sim, shape };

struct OptionSpec {
  const char* name;             // an option's name, or a group's title if the rest is null
  const char* value = nullptr;  // the value's name in --help; null for a flag
  const char* help = nullptr;   // one line
  void (*read)(const GivenOption&, Options&) = nullptr;  // null for --help, which ends the program
  About about = About::run;
};

/// All options, grouped and ordered as in --help.
const OptionSpec kOptions[] = {
    {"Workload"},
    {"batch", "B", "sequences (default 1)", to_problem<&Problem::B>, About::shape},
    {"heads", "H", "query heads (default 2)", to_problem<&Problem::H>, About::shape},
    {"kv-heads", "HK", "heads of K and V; must divide H (default: as --heads)",
     to_problem<&Problem::Hk>, About::shape},
    {"seqlen", "N", "queries (default 256)", to_problem<&Problem::N>, About::shape},
    {"seqlen-kv", "N_KV", "keys (default: as --seqlen)", to_problem<&Problem::N_kv>, About::shape},
    {"head-dim", "D", "head size: a multiple of 8 from 8 to 256 (default 64)",
     to_problem<&Problem::d>, About::shape},
    {"causal", nullptr, "query i attends to keys up to i + N_KV - N (default: to all keys)",
     to_problem<&Problem::causal>},
    {"dtype", "TYPE", "fp16 or bf16 (default fp16)", to_problem<&Problem::dtype>},
    {"scale", "X", "factor X of S = X * Q * K^T, above 0 (default: 1/sqrt(D))",
     to_workload<&WorkloadSpec::scale>},
    {"input", "KIND", "normal: N(0,1); outliers: plus N(0,100) in 1 of 1000 (default normal)",
     to_workload<&WorkloadSpec::input>},
    {"seed", "S", "random seed for the inputs; the same on every platform (default 0)",
     to_workload<&WorkloadSpec::seed>},
    {"load", "DIR", "read q.npy k.npy v.npy (and do.npy) and take their shapes (default: draw)",
     to_workload<&WorkloadSpec::load>},
    {"What to run"},
    {"device", "DEVICE",
     "gpu, sim, or auto: the GPU if there is one, else the simulator (default auto)",
     to_options<&Options::device>},
    {"step", "NAME",
     "one or several (A,B) of the steps listed below, by default the last step marked "
     "default that this device supports",
     to_options<&Options::step>},
    {"block-q", "BR", "rows per tile of Q in the forward pass (default: the step chooses)",
     to_tile<&TileRequest::block_q>},
    {"block-kv", "BC", "rows per tile of K and V in the forward pass (default: the step chooses)",
     to_tile<&TileRequest::block_kv>},
    {"set", "NAME=VALUE,...",
     "the step's settings, listed with it below (default: first value of each)",
     to_tile<&TileRequest::settings>},
    {"sram", "BYTES", "limit of shared memory per block (default: the GPU's; simulator: 232448)",
     to_options<&Options::smem_bytes>},
    {"check", "HOW", "rows checked: full, sampled, off (default: full if under 1 s, else sampled)",
     to_workload<&WorkloadSpec::check>},
    {"On the simulator"},
    {"schedule", "ORDER", "order of threads: forward, reverse or random[:SEED] (default forward)",
     to_sim<&SimOptions::schedule>, About::sim},
    {"sms", "COUNT", "SM count assumed by plans and --verbose (default 132)",
     to_sim<&SimOptions::multiprocessors>, About::sim},
    {"On a GPU"},
    {"time", "MS", "GPU time to spend per measurement (default: 200)",
     to_run<&RunOptions::time_ms>},
    {"dram", nullptr, "count the bytes that DRAM served, with the GPU's counters (default: off)",
     to_run<&RunOptions::dram>},
    {"Output"},  // the scripts refuse the options of this group, because they parse the output
    {"save", "DIR", "write o.npy, plus lse, dq, dk, dv if computed (default: write nothing)",
     to_options<&Options::save>},
    {"trace", "FILE", "write the simulator's events as JSON lines (default: write nothing)",
     to_run<&RunOptions::trace_file>, About::sim},
    {"json", nullptr, "print one object per line on stdout, all else on stderr (default: a table)",
     to_options<&Options::json>},
    {"verbose", nullptr, "also print a block's budget and all counts; plans' choices go to stderr",
     to_run<&RunOptions::verbose>},
    {"help", nullptr, "print this text and exit"},
};

/// Returns the option that `given` ("--name") names, or null.
const OptionSpec* find_option(std::string_view given) {
  for (const OptionSpec& spec : kOptions)
    if (spec.help && given.starts_with("--") && given.substr(2) == spec.name) return &spec;
  return nullptr;
}

// ------------------------------------------------------------------------------------------- help

/// Formats two columns of at most 100 characters; a longer `right` is continued after a comma.
std::string row(const std::string& left, const std::string& right) {
  const size_t cut = right.size() > 75 ? right.rfind(", ", 74) : right.npos;
  return fmt::format("  {:<22} {}\n", left, right.substr(0, cut + (cut != right.npos))) +
         (cut == right.npos ? "" : row("", right.substr(cut + 2)));
}

std::string steps_text(const std::string& rung) {
  std::string text = "\nSteps of this rung; each adds one idea to the step before it\n";
  const std::vector<const Step*> all = steps_of(rung);
  for (auto first = all.begin(), next = first; first != all.end(); first = next) {
    const Step& step = **first;
    next = std::find_if(first, all.end(), [&](auto other) { return other->name != step.name; });
    // Returns `note [devices]`, listing the devices where is_true(step); "" if none.
    const auto where = [&](const std::string& note, auto is_true) -> std::string {
      std::vector<const char*> devices;
      for (auto each = first; each != next; ++each)
        if (is_true(**each)) devices.push_back((*each)->device == DeviceKind::gpu ? "gpu" : "sim");
      return devices.empty() ? "" : fmt::format("{} [{}]", note, fmt::join(devices, ", "));
    };
    text += row(step.name, where(step.shown.summary, [](const Step&) { return true; }));
    std::vector<std::string> notes = {
        where("default", [](const Step& each) { return each.is_default; }),
        where("only by name", by_name_only)};
    if (step.needs.min_compute_capability > Needs{}.min_compute_capability)
      notes.push_back("needs compute capability " + step.needs.capability());
    if (step.deterministic) notes.push_back("gradients have the same bits in every run");
    std::erase(notes, "");
    if (!notes.empty()) text += row("", fmt::format("{}", fmt::join(notes, "; ")));
    if (!step.tiles.empty()) text += row("", "tiles BRxBC: " + tiles_text({first, next}));
    for (const Setting& setting : step.settings)
      text += row("", fmt::format("--set {:<26} {}", setting_text(setting), setting.summary));
  }
  return text;
}

std::string help_text(const std::string& rung) {
  std::string text = fmt::format(
      "Usage: {} [OPTION]...\n"
      "Runs one step of this rung on one workload, checks the result against a float64\n"
      "reference, and reports its global-memory requests and, on a GPU, its time.\n",
      rung);
  for (const OptionSpec& spec : kOptions)
    text += spec.help
                ? row(fmt::format("--{} {}", spec.name, spec.value ? spec.value : ""), spec.help)
                : fmt::format("\n{}\n", spec.name);
  text += steps_text(rung);
  text += fmt::format(
      "\nExit status: 0 success, 1 wrong result, 2 bad usage or input, 3 no such GPU or not enough "
      "memory\n"
      "\nExamples\n"
      "  {0} --seqlen 512 --causal --dtype bf16\n"
      "  {0} --device sim --heads 4 --kv-heads 2 --schedule random:7 --json\n",
      rung);
  return text;
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, const std::string& rung) {
  Options options;
  Problem& problem = options.workload.problem;
  problem.Hk = problem.N_kv = 0;  // 0: not given yet
  const OptionSpec* shape = nullptr;
  // getopt_long is not used, because it accepts any unambiguous prefix of a name.
  for (int i = 1; i < argc; ++i) {
    const std::string_view element = argv[i], given = element.substr(0, element.find('='));
    const OptionSpec* spec = find_option(given);
    if (!spec) bad_usage("unknown option '{}'; --help lists all options", given);
    const char* value = given != element ? argv[i] + given.size() + 1 : nullptr;
    if (!spec->value && value)
      bad_usage("{} takes no value: '{}'; leave the value out", given, element);
    if (spec->value && !value && i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0)
      value = argv[++i];
    if (spec->value && (!value || !*value))
      bad_usage("{} needs a value: {} {}", given, given, spec->value);
    if (!spec->read) {
      print(help_text(rung));
      return std::nullopt;
    }
    spec->read({spec->name, value}, options);
    if (spec->about == About::sim) options.sim_option = spec->name;
    if (!shape && spec->about == About::shape) shape = spec;
  }

  if (!options.workload.load.empty() && shape)
    bad_usage(
        "--{} cannot be combined with --load: the files of '{}' give the shapes; "
        "leave one of the two out",
        shape->name, options.workload.load);
  if (!options.sim_option.empty() && options.device == DeviceChoice::gpu)
    bad_usage("--{} works only on the simulator, not with --device gpu; leave one of the two out",
              options.sim_option);
  const size_t runs = each_step(options).size();
  for (const auto& [name, value] :
       {std::pair{"save", options.save}, {"trace", options.run.trace_file}})
    if (!value.empty() && runs > 1)
      bad_usage("--{} takes one step, but --step {} names {}; run them one by one", name,
                options.step, runs);

  if (!problem.Hk) problem.Hk = problem.H;
  if (!problem.N_kv) problem.N_kv = problem.N;
  options.workload.complete();
  return options;
}

std::vector<Options> each_step(const Options& options) {
  std::vector<Options> each;
  std::istringstream names(options.step + ",");
  for (Options one = options; std::getline(names, one.step, ',');) {
    if (one.step.empty() && !options.step.empty())
      bad_usage("--step '{}': a name is empty; give NAME or NAME,NAME", options.step);
    each.push_back(one);
  }
  return each;
}

}  // namespace ladder
