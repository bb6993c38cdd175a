#include "harness/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <getopt.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

#include "harness/steps.h"

#ifndef LADDER_VERSION
#define LADDER_VERSION "dev"
#endif

namespace ladder {
namespace {

/// What a step of the rung must have for the rung's program to take an option.
struct Requirement {
  const char* text;  // completes "needs a step …"
  bool (*met_by)(const Variant&);
};

const Requirement kTiles{"with tile sizes to choose from",
                         [](const Variant& v) { return !v.tiles.empty(); }};
const Requirement kDeterministic{"whose gradients have the same bits on every run",
                                 [](const Variant& v) { return v.deterministic; }};
const Requirement kSettings{"with settings", [](const Variant& v) { return !v.settings.empty(); }};
const Requirement kBaseline{"that a library's version stands beside",
                            [](const Variant& v) { return v.baseline; }};

struct OptionSpec {
  const char* name;
  const char* value;         // what --help calls its value; null: a flag
  const Requirement* needs;  // null: every rung takes it
  const char* help;          // one line
};

struct Group {
  const char* title;
  std::vector<OptionSpec> options;
};

/// Every option of every rung, in the order of --help.
const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"Workload",
       {
           {"batch", "B", nullptr, "sequences (default 1)"},
           {"heads", "H", nullptr, "query heads (default 2)"},
           {"kv-heads", "HK", nullptr, "key/value heads, dividing H (default: as --heads)"},
           {"seqlen", "N", nullptr, "queries (default 256)"},
           {"seqlen-kv", "N_KV", nullptr, "keys (default: as --seqlen)"},
           {"head-dim", "D", nullptr, "head size, a multiple of 8 up to 256 (default 64)"},
           {"causal", nullptr, nullptr,
            "query i sees keys up to i + N_KV - N (default: it sees all)"},
           {"dtype", "TYPE", nullptr, "fp16 or bf16 (default fp16)"},
           {"scale", "X", nullptr, "S = X * Q * K^T, X above 0 (default 1/sqrt(D))"},
           {"input", "KIND", nullptr,
            "normal: N(0,1); outliers: N(0,100) added to 1 in 1000 (default normal)"},
           {"seed", "S", nullptr, "of the input; the same on every platform (default 0)"},
       }},
      {"Files",
       {
           {"load", "DIR", nullptr,
            "read q.npy k.npy v.npy (and do.npy), shapes and all (default: generate)"},
           {"save", "DIR", nullptr,
            "write o.npy, and those of lse dq dk dv that there are (default: none)"},
       }},
      {"What runs",
       {
           {"device", "DEVICE", nullptr,
            "gpu, sim, or auto: the GPU if there is one, else the sim (default auto)"},
           {"variant", "NAME", nullptr,
            "one of those listed below (default: the last so marked that runs)"},
           {"block-q", "BR", &kTiles,
            "rows of Q in a tile of the forward pass (default: the step's choice)"},
           {"block-kv", "BC", &kTiles,
            "rows of K, V in a tile of the forward pass (default: the step's choice)"},
           {"set", "NAME=VALUE,...", &kSettings,
            "a step's own settings, listed with it below (default: the first of each)"},
           {"deterministic", nullptr, &kDeterministic,
            "gradients with the same bits on every run (default: no)"},
           {"baseline", "NAME", &kBaseline,
            "a library's version beside it, on the GPU (default: none)"},
           {"check", "HOW", nullptr,
            "full, sampled or off (default: full if under about 1 s, else sampled)"},
       }},
      {"On the sim",
       {
           {"schedule", "ORDER", nullptr,
            "of threads: forward, reverse or random[:SEED] (default forward)"},
           {"sram", "BYTES", nullptr, "shared memory of a block (default 232448: 227 KiB)"},
           {"trace", "FILE", nullptr,
            "write what blocks do, as JSON lines; .gz compresses (default: none)"},
       }},
      {"Timing on the gpu",
       {
           {"time", "MS", nullptr, "GPU time to spend on a measurement (default 200)"},
           {"warm", nullptr, nullptr, "leave the L2 as the last run left it (default: flush it)"},
           {"dram", nullptr, nullptr,
            "count what DRAM served, by the GPU's counters (default: no)"},
       }},
      {"Output",
       {
           {"json", nullptr, nullptr,
            "one object per line on stdout, all else on stderr (default: a table)"},
           {"verbose", nullptr, nullptr, "say more, on stderr"},
           {"help", nullptr, nullptr, "print this and exit"},
           {"version", nullptr, nullptr, "print the version and exit"},
       }},
  };
  return all;
}

[[noreturn]] void bad_usage(const std::string& message) {
  throw Error(Exit::bad_usage, message);
}

const OptionSpec* find_option(std::string_view name) {
  for (const Group& group : groups())
    for (const OptionSpec& spec : group.options)
      if (spec.name == name) return &spec;
  return nullptr;
}

bool takes(const std::string& rung, const OptionSpec& spec) {
  return !spec.needs || std::any_of(variants().begin(), variants().end(), [&](const Variant& v) {
    return v.rung == rung && spec.needs->met_by(v);
  });
}

[[noreturn]] void bad_value(std::string_view option, std::string_view value, std::string_view what,
                            std::string_view accepted) {
  bad_usage(fmt::format("--{} '{}': {}; give {}", option, value, what, accepted));
}

/// std::from_chars, which libc++ has for whole numbers alone before version 20.
template <class T>
std::from_chars_result read_number(const char* begin, const char* end, T& value) {
  if constexpr (std::is_integral_v<T>) {
    return std::from_chars(begin, end, value);
  } else {
    // strtod also takes spaces, a plus and hexadecimal digits.
    const std::string text(begin,
                           std::find_if(begin, end, [](char c) { return c == 'x' || c == 'X'; }));
    if (text.find_first_of(" \t\n\v\f\r+") == 0) return {begin, std::errc::invalid_argument};
    char* rest;
    errno = 0;
    if constexpr (std::is_same_v<T, float>)
      value = std::strtof(text.c_str(), &rest);
    else
      value = std::strtod(text.c_str(), &rest);
    const ptrdiff_t length = rest - text.c_str();
    if (length == 0) return {begin, std::errc::invalid_argument};
    const bool overflow = errno == ERANGE && std::isinf(value);
    return {begin + length, overflow ? std::errc::result_out_of_range : std::errc{}};
  }
}

/// The whole of `text` as a number from `least` to `most`.
template <class T>
T number(std::string_view option, std::string_view text, T least, T most,
         std::string_view accepted) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = read_number(text.data(), end, value);
  if (error == std::errc::invalid_argument) {
    // from_chars accepts no sign on unsigned numbers, but someone who types one means a number.
    const bool negative = text.size() > 1 && text[0] == '-' && text[1] >= '0' && text[1] <= '9';
    bad_value(option, text, negative ? "out of range" : "not a number", accepted);
  }
  if (rest != end)
    bad_value(option, text, fmt::format("'{}' follows the number", std::string_view(rest, end)),
              accepted);
  if (error == std::errc::result_out_of_range) bad_value(option, text, "out of range", accepted);
  if constexpr (std::is_floating_point_v<T>)
    if (!std::isfinite(value)) bad_value(option, text, "not finite", accepted);
  if (value < least || value > most) bad_value(option, text, "out of range", accepted);
  return value;
}

int whole(std::string_view option, std::string_view text) {
  return number(option, text, 1, INT_MAX, fmt::format("a whole number from 1 to {}", INT_MAX));
}

uint64_t seed(std::string_view option, std::string_view text) {
  return number<uint64_t>(option, text, 0, UINT64_MAX,
                          fmt::format("a whole number from 0 to {}", UINT64_MAX));
}

/// "a", "a or b", "a, b or c".
std::string one_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

template <class T>
T choice(std::string_view option, std::string_view text,
         std::initializer_list<std::pair<const char*, T>> known) {
  std::vector<std::string> names;
  for (const auto& [name, value] : known) {
    if (name == text) return value;
    names.push_back(name);
  }
  bad_value(option, text, "unknown", one_of(names));
}

std::string not_empty(std::string_view option, std::string_view text, std::string_view accepted) {
  if (text.empty()) bad_value(option, text, "empty", accepted);
  return std::string(text);
}

Schedule schedule(std::string_view option, std::string_view text) {
  using Order = Schedule::Order;
  if (text == "forward") return {Order::forward, 0};
  if (text == "reverse") return {Order::reverse, 0};
  if (text == "random") return {Order::random, 0};
  constexpr std::string_view kSeeded = "random:";
  constexpr const char* kKnown = "forward, reverse or random[:SEED], SEED a whole number";
  if (!text.starts_with(kSeeded)) bad_value(option, text, "unknown", kKnown);
  const std::string_view digits = text.substr(kSeeded.size());
  return {Order::random, number<uint64_t>(option, digits, 0, UINT64_MAX, kKnown)};
}

/// Adds what "NAME=VALUE,…" says.
void read_settings(std::string_view option, std::string_view text, Settings& settings) {
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    const size_t equals = one.find('=');
    if (equals == 0 || equals == one.npos || equals + 1 == one.size())
      bad_value(option, text, fmt::format("'{}' is no NAME=VALUE", one), "NAME=VALUE,...");
    settings[std::string(one.substr(0, equals))] = one.substr(equals + 1);
    if (comma == rest.npos) return;
    rest.remove_prefix(comma + 1);
  }
}

std::vector<std::string> baseline_names(const std::string& rung) {
  std::vector<std::string> names;
  for (const Variant& v : variants())
    if (v.rung == rung && v.baseline &&
        std::find(names.begin(), names.end(), v.name) == names.end())
      names.push_back(v.name);
  return names;
}

std::vector<std::string> variant_names(const std::string& rung) {
  std::vector<std::string> names;
  for (const Variant* variant : steps_of(rung))
    if (names.empty() || names.back() != variant->name) names.push_back(variant->name);
  return names;
}

const char* device_name(DeviceKind device) {
  return device == DeviceKind::gpu ? "gpu" : "sim";
}

void check_variant(const Options& options, const std::string& rung) {
  if (options.variant.empty()) return;
  bool known = false, on_sim = false, deterministic = false;
  std::vector<std::string> others;  // that are deterministic
  for (const Variant* variant : steps_of(rung)) {
    if (variant->deterministic && (others.empty() || others.back() != variant->name))
      others.push_back(variant->name);
    if (variant->name != options.variant) continue;
    known = true;
    deterministic |= variant->deterministic;
    on_sim |= variant->device == DeviceKind::sim;
  }
  if (!known) bad_value("variant", options.variant, "unknown", one_of(variant_names(rung)));
  if (!on_sim && options.device == DeviceChoice::sim)
    bad_usage(
        fmt::format("--variant {} runs only on the gpu, not with --device sim", options.variant));
  if (options.deterministic && !deterministic)
    bad_usage(
        fmt::format("--deterministic: the gradients of --variant {} do not have the same "
                    "bits on every run; those of {} have",
                    options.variant, one_of(others)));
}

/// Adds those of the variant's tile sizes that are not listed yet, as "128x64".
void add_tiles(std::vector<std::string>& listed, const Variant& variant) {
  for (const TileSize& tile : variant.tiles) {
    const std::string text = fmt::format("{}x{}", tile.block_q, tile.block_kv);
    if (std::find(listed.begin(), listed.end(), text) == listed.end()) listed.push_back(text);
  }
}

/// Whether any variant that may run has such a tile; which sizes fit the workload is for plan().
void check_tile(const Options& options, const std::string& rung) {
  const TileRequest& asked = options.tile;
  if (asked.any()) return;
  std::vector<std::string> compiled;
  for (const Variant* variant : steps_of(rung)) {
    if (!options.variant.empty() && variant->name != options.variant) continue;
    for (const TileSize& tile : variant->tiles)
      if (asked.matches(tile)) return;
    add_tiles(compiled, *variant);
  }
  std::string given;
  if (asked.block_q) given += fmt::format(" --block-q {}", asked.block_q);
  if (asked.block_kv) given += fmt::format(" --block-kv {}", asked.block_kv);
  if (compiled.empty())
    bad_usage(fmt::format("{} takes no tile size, but{} was given",
                          options.variant.empty() ? rung : "--variant " + options.variant, given));
  bad_usage(
      fmt::format("no tile is compiled for{}; give one of {}", given, fmt::join(compiled, ", ")));
}

/// Whether the variant, which must be named, has the settings asked for and their values.
void check_settings(const Options& options, const std::string& rung) {
  const Settings& asked = options.tile.settings;
  if (asked.empty()) return;
  std::vector<std::string> with_settings;
  for (const Variant* variant : steps_of(rung)) {
    if (variant->settings.empty()) continue;
    if (with_settings.empty() || with_settings.back() != variant->name)
      with_settings.push_back(variant->name);
    if (variant->name != options.variant) continue;
    for (const auto& [name, value] : asked) {
      std::vector<std::string> names;
      const Setting* found = nullptr;
      for (const Setting& setting : variant->settings) {
        names.push_back(setting.name);
        if (name == setting.name) found = &setting;
      }
      if (!found) bad_value("set", name, "unknown", one_of(names));
      if (std::find(found->values.begin(), found->values.end(), value) == found->values.end())
        bad_value("set", fmt::format("{}={}", name, value), "unknown value",
                  one_of({found->values.begin(), found->values.end()}));
    }
    return;
  }
  bad_usage(fmt::format("--set {}: {} has no settings; say --variant {}", asked.begin()->first,
                        options.variant.empty() ? "the default step" : options.variant,
                        one_of(with_settings)));
}

std::string variants_text(const std::string& rung) {
  std::string text = "\nVariants of this rung, each with one thing more than the one before it\n";
  const std::vector<const Variant*> all = steps_of(rung);
  for (size_t i = 0; i < all.size();) {
    const Variant& variant = *all[i];
    std::vector<const char*> devices;
    std::vector<std::string> tiles;
    std::vector<const char*> is_default, only_by_name;  // where it is
    for (; i < all.size() && all[i]->name == variant.name; ++i) {
      devices.push_back(device_name(all[i]->device));
      if (all[i]->is_default) is_default.push_back(devices.back());
      if (by_name_only(*all[i])) only_by_name.push_back(devices.back());
      add_tiles(tiles, *all[i]);
    }
    std::vector<std::string> notes;
    if (variant.min_compute_capability > 80)
      notes.push_back(fmt::format("needs compute capability {}", variant.needed_capability()));
    if (!is_default.empty())
      notes.push_back(fmt::format("default [{}]", fmt::join(is_default, ", ")));
    if (!only_by_name.empty())
      notes.push_back(fmt::format("only by name [{}]", fmt::join(only_by_name, ", ")));
    if (variant.deterministic) notes.push_back("gradients with the same bits on every run");
    text +=
        fmt::format("  {:<22} {} [{}]\n", variant.name, variant.summary, fmt::join(devices, ", "));
    if (!notes.empty()) text += fmt::format("  {:<22} {}\n", "", fmt::join(notes, "; "));
    for (size_t t = 0; t < tiles.size(); t += 8)
      text += fmt::format(
          "  {:<22} {} {}\n", "", t ? "            " : "tiles BRxBC:",
          fmt::join(tiles.begin() + static_cast<std::ptrdiff_t>(t),
                    tiles.begin() + static_cast<std::ptrdiff_t>(std::min(t + 8, tiles.size())),
                    ", "));
    for (const Setting& setting : variant.settings) {
      const std::string choice = fmt::format("{}={}", setting.name, fmt::join(setting.values, "|"));
      text += fmt::format("  {:<22} --set {:<26} {}\n", "", choice, setting.summary);
    }
  }
  return text;
}

std::string help_text(const std::string& rung) {
  std::string text = fmt::format(
      "Usage: {} [OPTION]...\n"
      "Runs one variant of this rung on one workload, checks the result against a float64\n"
      "reference, and reports its HBM traffic and, on a GPU, its time.\n",
      rung);
  std::string elsewhere;
  for (const Group& group : groups()) {
    std::string lines;
    for (const OptionSpec& spec : group.options) {
      const std::string name =
          fmt::format("--{}{}{}", spec.name, spec.value ? " " : "", spec.value ? spec.value : "");
      if (takes(rung, spec))
        lines += fmt::format("  {:<22} {}\n", name, spec.help);
      else
        elsewhere += fmt::format("  {:<22} needs a step {}\n", name, spec.needs->text);
    }
    text += fmt::format("\n{}\n{}", group.title, lines);
  }
  if (!elsewhere.empty())
    text += "\nOptions of other rungs, and what they need of a rung\n" + elsewhere;
  for (const std::string& name : baseline_names(rung))
    text += fmt::format("\nBaselines of this rung\n  {:<22} {}\n", name,
                        find_baseline(rung, name)->summary);
  text += variants_text(rung);
  text += fmt::format(
      "\nExit status: 0 good, 1 wrong result, 2 bad usage or input, 3 no such GPU or not enough "
      "memory\n"
      "\nExamples\n"
      "  {0} --seqlen 512 --causal --dtype bf16\n"
      "  {0} --device sim --heads 4 --kv-heads 2 --schedule random:7 --json\n",
      rung);
  return text;
}

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    bad_usage(fmt::format("cannot write to stdout: {}", std::strerror(errno)));
}

/// Options are not abbreviated, but a beginning is a good hint.
[[noreturn]] void unknown_option(std::string_view given) {
  std::string_view beginning = given;
  while (beginning.starts_with('-')) beginning.remove_prefix(1);
  std::vector<std::string> similar;
  for (const Group& group : groups())
    for (const OptionSpec& spec : group.options)
      if (!beginning.empty() && std::string_view(spec.name).starts_with(beginning))
        similar.push_back(fmt::format("--{}", spec.name));
  bad_usage(fmt::format("unknown option '{}'; {}--help lists all", given,
                        similar.empty() ? "" : fmt::format("is it {}? ", one_of(similar))));
}

struct Given {
  const OptionSpec* spec;
  std::string value;
};

/// The command line as options and values, each known, taken by this rung and given a value where
/// it needs one.
std::vector<Given> split(int argc, char** argv, const std::string& rung) {
  std::vector<option> table;
  for (const Group& group : groups())
    for (const OptionSpec& spec : group.options)
      table.push_back({spec.name, spec.value ? required_argument : no_argument, nullptr, 1});
  table.push_back({nullptr, 0, nullptr, 0});

  std::vector<Given> result;
  optind = 0;  // starts getopt over
  opterr = 0;
  for (;;) {
    const int at = std::max(optind, 1);
    // +: ends at the first stray argument, so that argv[at] is what is being read; the colon tells
    // a missing value from an unknown option.
    const int code = getopt_long(argc, argv, "+:", table.data(), nullptr);
    if (code == -1) break;
    // getopt_long accepts any unambiguous beginning of a name; a misspelt option would pass for
    // another. So names are compared again here.
    const std::string_view element = argv[at];
    const std::string_view given = element.substr(0, element.find('='));
    const OptionSpec* spec =
        given.starts_with("--") ? find_option(given.substr(std::strlen("--"))) : nullptr;
    if (!spec) unknown_option(given);
    if (!takes(rung, *spec))
      bad_usage(fmt::format("{} does not take {}, which needs a step {}; leave it out", rung, given,
                            spec->needs->text));
    if (code == ':' && spec->value)
      bad_usage(fmt::format("{} needs a value: {} {}", given, given, spec->value));
    if (code == '?' || code == ':')  // BSD's returns either
      bad_usage(fmt::format("{} takes no value, but '{}' was given", given, element));
    if (spec->value && given == element && std::string_view(optarg).starts_with("--"))
      bad_usage(fmt::format("{} needs a value: {} {}; what follows is '{}'", given, given,
                            spec->value, optarg));
    result.push_back({spec, spec->value ? optarg : ""});
  }
  if (optind < argc)
    bad_usage(fmt::format("stray argument '{}'; every option begins with --, --help lists them",
                          argv[optind]));
  return result;
}

}  // namespace

const Variant* find_baseline(const std::string& rung, const std::string& name) {
  for (const Variant& v : variants())
    if (v.rung == rung && v.baseline && v.name == name) return &v;
  return nullptr;
}

std::optional<Options> parse_options(int argc, char** argv, const std::string& rung) {
  Options options;
  Problem& problem = options.problem;
  bool kv_heads_given = false, seqlen_kv_given = false;
  std::string shape_option;
  for (const auto& [spec, value] : split(argc, argv, rung)) {
    const std::string_view name = spec->name;
    if (name == "help") {
      print(help_text(rung));
      return std::nullopt;
    }
    if (name == "version") {
      print(fmt::format("{} of the kernel ladder, version {}\n", rung, LADDER_VERSION));
      return std::nullopt;
    }

    if (name == "batch") problem.B = whole(name, value);
    if (name == "heads") problem.H = whole(name, value);
    if (name == "kv-heads") problem.Hk = whole(name, value), kv_heads_given = true;
    if (name == "seqlen") problem.N = whole(name, value);
    if (name == "seqlen-kv") problem.N_kv = whole(name, value), seqlen_kv_given = true;
    if (name == "head-dim") {
      constexpr const char* kAccepted = "a multiple of 8 from 8 to 256";
      problem.d = number(name, value, 8, 256, kAccepted);
      if (problem.d % 8 != 0) bad_value(name, value, "not a multiple of 8", kAccepted);
    }
    for (const char* shape : {"batch", "heads", "kv-heads", "seqlen", "seqlen-kv", "head-dim"})
      if (name == shape && shape_option.empty()) shape_option = name;
    if (name == "causal") problem.causal = true;
    if (name == "dtype")
      problem.dtype = choice<DType>(name, value, {{"fp16", DType::fp16}, {"bf16", DType::bf16}});
    if (name == "scale") {
      using Limits = std::numeric_limits<float>;
      problem.scale = number(name, value, Limits::denorm_min(), Limits::max(),
                             "a finite number above 0 that a float holds");
      options.scale_given = true;
    }
    if (name == "input")
      options.input =
          choice<Input>(name, value, {{"normal", Input::normal}, {"outliers", Input::outliers}});
    if (name == "seed") options.seed = seed(name, value);

    if (name == "load") options.load = not_empty(name, value, "a folder");
    if (name == "save") options.save = not_empty(name, value, "a folder");

    if (name == "device")
      options.device = choice<DeviceChoice>(name, value,
                                            {{"auto", DeviceChoice::automatic},
                                             {"gpu", DeviceChoice::gpu},
                                             {"sim", DeviceChoice::sim}});
    if (name == "variant")
      options.variant = not_empty(name, value, "a name of those that --help lists");
    if (name == "block-q") options.tile.block_q = whole(name, value);
    if (name == "block-kv") options.tile.block_kv = whole(name, value);
    if (name == "set") read_settings(name, value, options.tile.settings);
    if (name == "deterministic") options.deterministic = true;
    if (name == "baseline") {
      if (!find_baseline(rung, value))
        bad_value(name, value, "unknown", one_of(baseline_names(rung)));
      options.baseline = value;
    }
    if (name == "check")
      options.check = choice<Check>(
          name, value, {{"full", Check::full}, {"sampled", Check::sampled}, {"off", Check::off}});

    if (name == "schedule") options.sim.schedule = schedule(name, value);
    if (name == "sram") options.sim.sram_bytes = whole(name, value);
    if (name == "trace") options.sim.trace_file = not_empty(name, value, "a file");
    if (name == "schedule" || name == "sram" || name == "trace") options.sim_option = name;

    if (name == "time")
      options.time_ms = number(name, value, std::numeric_limits<double>::min(), 3.6e6,
                               "milliseconds above 0, up to 3600000 (an hour)");
    if (name == "warm") options.warm = true;
    if (name == "dram") options.dram = true;

    if (name == "json") options.json = true;
    if (name == "verbose") options.verbose = true;
  }

  if (!options.load.empty() && !shape_option.empty())
    bad_usage(
        fmt::format("--{} cannot be combined with --load: the files of '{}' give the shapes; "
                    "leave one of the two out",
                    shape_option, options.load));
  if (options.device == DeviceChoice::gpu && !options.sim_option.empty())
    bad_usage(
        fmt::format("--{} is for the sim and cannot be combined with --device gpu; say --device "
                    "sim",
                    options.sim_option));
  if (options.device == DeviceChoice::sim && !options.baseline.empty())
    bad_usage(fmt::format("--baseline {} runs on a GPU and cannot be combined with --device sim",
                          options.baseline));
  if (!options.sim_option.empty() && !options.baseline.empty())
    bad_usage(
        fmt::format("--{} is for the sim and --baseline {} for a GPU; leave one of the two out",
                    options.sim_option, options.baseline));
  check_variant(options, rung);
  check_tile(options, rung);
  check_settings(options, rung);

  if (!kv_heads_given) problem.Hk = problem.H;
  if (!seqlen_kv_given) problem.N_kv = problem.N;
  if (!options.scale_given)
    problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.d)));
  check_sizes(problem);
  return options;
}

void check_sizes(const Problem& p) {
  if (p.d < 8 || p.d > 256 || p.d % 8 != 0)
    bad_usage(fmt::format("head-dim {}: give a multiple of 8 from 8 to 256", p.d));
  if (p.Hk < 1 || p.H % p.Hk != 0)
    bad_usage(
        fmt::format("kv-heads {} does not divide heads {}; give a divisor of {}", p.Hk, p.H, p.H));
  const __int128 BH = __int128{p.B} * p.H;
  if (BH > INT_MAX)
    bad_usage(
        fmt::format("batch {} x heads {} is too large: a grid has at most {} blocks; use "
                    "smaller sizes",
                    p.B, p.H, INT_MAX));
  // Q and K count with 4 bytes, not 2: gradients of their shape are accumulated in fp32.
  const std::pair<const char*, __int128> arrays[] = {{"Q", BH * p.N * p.d * 4},
                                                     {"K", __int128{p.B} * p.Hk * p.N_kv * p.d * 4},
                                                     {"S", BH * p.N * p.N_kv * kIoBytes}};
  for (const auto& [name, bytes] : arrays)
    if (bytes > INT64_MAX)
      bad_usage(fmt::format("{} would take {:.3g} bytes, which exceeds 2⁶³; use smaller sizes",
                            name, static_cast<double>(bytes)));
}

}  // namespace ladder
