#include "harness/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "harness/steps.h"

#ifndef LADDER_VERSION
#define LADDER_VERSION "dev"
#endif

namespace ladder {
namespace {

template <class... Parts>
[[noreturn]] void bad_usage(fmt::format_string<Parts...> message, Parts&&... parts) {
  throw Error(Exit::bad_usage, fmt::format(message, std::forward<Parts>(parts)...));
}

/// "a", "a or b", "a, b or c".
std::string one_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

// ----------------------------------------------------------------------------------------- values

/// std::from_chars, which libc++ has for whole numbers alone before version 20.
std::from_chars_result read_number(const char* begin, const char* end, std::integral auto& value) {
  return std::from_chars(begin, end, value);
}
template <std::floating_point T>
std::from_chars_result read_number(const char* begin, const char* end, T& value) {
  // strtod also takes spaces, a plus and hexadecimal digits.
  const std::string text(begin, std::find_if(begin, end, [](char c) { return (c | 32) == 'x'; }));
  char* rest = const_cast<char*>(text.c_str());
  errno = 0;
  if (text.find_first_of(" \t\n\v\f\r+") != 0) {
    if constexpr (std::is_same_v<T, float>)
      value = std::strtof(rest, &rest);
    else
      value = std::strtod(rest, &rest);
  }
  const ptrdiff_t length = rest - text.c_str();
  return {begin + length, length == 0                            ? std::errc::invalid_argument
                          : errno == ERANGE && std::isinf(value) ? std::errc::result_out_of_range
                                                                 : std::errc{}};
}

template <class T>
struct Named {
  const char* name;
  T value;
};

/// An option as given, and how its value is read: each function throws Error(bad_usage) for a value
/// that it does not accept.
struct Given {
  std::string_view option, text;

  [[noreturn]] void bad(std::string_view what, std::string_view accepted) const {
    bad_usage("--{} '{}': {}; give {}", option, text, what, accepted);
  }

  /// The whole of the text as a number from `least` to `most`.
  template <class T>
  T number(T least, T most, std::string_view accepted) const {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = read_number(text.data(), end, value);
    if (error == std::errc::invalid_argument) {
      // from_chars accepts no sign on unsigned numbers, but someone who types one means a number.
      const bool negative = text.size() > 1 && text[0] == '-' && text[1] >= '0' && text[1] <= '9';
      bad(negative ? "out of range" : "not a number", accepted);
    }
    if (rest != end)
      bad(fmt::format("'{}' follows the number", std::string_view(rest, end)), accepted);
    if (error == std::errc::result_out_of_range) bad("out of range", accepted);
    if constexpr (std::is_floating_point_v<T>)
      if (!std::isfinite(value)) bad("not finite", accepted);
    if (value < least || value > most) bad("out of range", accepted);
    return value;
  }

  int whole() const {
    return number(1, INT_MAX, fmt::format("a whole number from 1 to {}", INT_MAX));
  }

  template <class T, size_t n>
  T choice(const Named<T> (&known)[n]) const {
    std::vector<std::string> names;
    for (const auto& [name, value] : known) {
      if (name == text) return value;
      names.push_back(name);
    }
    bad("unknown", one_of(names));
  }

  std::string not_empty(std::string_view accepted) const {
    if (text.empty()) bad("empty", accepted);
    return std::string(text);
  }

  Schedule schedule() const {
    using Order = Schedule::Order;
    if (text == "forward") return {Order::forward, 0};
    if (text == "reverse") return {Order::reverse, 0};
    if (text == "random") return {Order::random, 0};
    constexpr std::string_view kSeeded = "random:";
    constexpr const char* kKnown = "forward, reverse or random[:SEED], SEED a whole number";
    if (!text.starts_with(kSeeded)) bad("unknown", kKnown);
    const Given seed{option, text.substr(kSeeded.size())};
    return {Order::random, seed.number<uint64_t>(0, UINT64_MAX, kKnown)};
  }

  /// Adds what "NAME=VALUE,…" says.
  void read_settings(Settings& settings) const {
    for (std::string_view rest = text;;) {
      const size_t comma = rest.find(',');
      const std::string_view one = rest.substr(0, comma);
      const size_t equals = one.find('=');
      if (equals == 0 || equals == one.npos || equals + 1 == one.size())
        bad(fmt::format("'{}' is no NAME=VALUE", one), "NAME=VALUE,...");
      settings[std::string(one.substr(0, equals))] = one.substr(equals + 1);
      if (comma == rest.npos) return;
      rest.remove_prefix(comma + 1);
    }
  }
};

template <class T>
constexpr int kNames = 0;
template <>
constexpr Named<DType> kNames<DType>[] = {{"fp16", DType::fp16}, {"bf16", DType::bf16}};
template <>
constexpr Named<Input> kNames<Input>[] = {{"normal", Input::normal}, {"outliers", Input::outliers}};
template <>
constexpr Named<DeviceChoice> kNames<DeviceChoice>[] = {
    {"auto", DeviceChoice::automatic}, {"gpu", DeviceChoice::gpu}, {"sim", DeviceChoice::sim}};
template <>
constexpr Named<Check> kNames<Check>[] = {
    {"full", Check::full}, {"sampled", Check::sampled}, {"off", Check::off}};

/// Where an option's value is kept.
template <class T, class C>
T& place_of(T C::*member, Options& o) {
  return std::get<C&>(std::tie(o, o.problem, o.tile, o.sim)).*member;
}

/// Reads an option's value as its type asks for.
template <auto member>
void read(const Given& given, Options& options) {
  auto& value = place_of(member, options);
  using T = std::remove_reference_t<decltype(value)>;
  if constexpr (std::is_same_v<T, bool>)
    value = true;
  else if constexpr (std::is_enum_v<T>)
    value = given.choice(kNames<T>);
  else if constexpr (std::is_same_v<T, Settings>)
    given.read_settings(value);
  else if constexpr (std::is_same_v<T, Schedule>)
    value = given.schedule();
  else if constexpr (std::is_same_v<T, uint64_t>)
    value = given.number<T>(0, UINT64_MAX, fmt::format("a whole number from 0 to {}", UINT64_MAX));
  else
    value = given.whole();
}

/// An option's value as JSON.
template <auto member>
std::string json(Options options) {
  const auto value = place_of(member, options);
  using T = std::remove_const_t<decltype(value)>;
  if constexpr (std::is_enum_v<T>)
    return fmt::format("\"{}\"", std::ranges::find(kNames<T>, value, &Named<T>::value)->name);
  else if constexpr (std::is_same_v<T, float>)
    return fmt::format("{:.9g}", value);
  else
    return fmt::format("{}", value);
}

void read_head_dim(const Given& given, Options& options) {
  constexpr const char* kAccepted = "a multiple of 8 from 8 to 256";
  options.problem.d = given.number(8, 256, kAccepted);
  if (options.problem.d % 8 != 0) given.bad("not a multiple of 8", kAccepted);
}

void read_scale(const Given& given, Options& options) {
  using Limits = std::numeric_limits<float>;
  options.problem.scale = given.number(Limits::denorm_min(), Limits::max(),
                                       "a finite number above 0 that a float holds");
  options.scale_given = true;
}

void read_time(const Given& given, Options& options) {
  options.time_ms = given.number(std::numeric_limits<double>::min(), 3.6e6,
                                 "milliseconds above 0, up to 3600000 (an hour)");
}

void read_baseline(const Given& given, Options& options) {
  options.baseline = given.text;
}

std::string json_of_input(Options options) {
  return options.load.empty() ? json<&Options::input>(options) : "\"load\"";
}

// -------------------------------------------------------------------------------------- the table

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
const Requirement kBaseline{"with a library baseline", [](const Variant& v) { return v.baseline; }};

/// How an option's value is read and, where it has one, shown in the JSON.
struct Access {
  void (*read)(const Given&, Options&);
  std::string (*json)(Options);
  constexpr Access(decltype(read) r = nullptr, decltype(json) j = nullptr) : read(r), json(j) {}
};
template <auto member>
constexpr Access of(read<member>, json<member>);

/// What an option is about. The JSON has the last three, in this order.
enum class About { run, sim, values, shape, product };

struct OptionSpec {
  const char* name;             // of a group of options its title, and nothing else
  const char* value = nullptr;  // what --help calls its value; null: a flag
  const char* help = nullptr;   // one line
  Access access = {};           // no `read`: it ends the program
  About about = About::run;
  const Requirement* needs = nullptr;  // null: every rung takes it
};

/// A text that is not empty.
template <auto member, const char* accepted>
void read_text(const Given& given, Options& options) {
  place_of(member, options) = given.not_empty(accepted);
}
constexpr char kFolder[] = "a folder", kFile[] = "a file";
constexpr char kStep[] = "a name of those that --help lists";

/// Every option of every rung, in the order of --help.
const OptionSpec kOptions[] = {
    {"Workload"},
    {"batch", "B", "sequences (default 1)", of<&Problem::B>, About::shape},
    {"heads", "H", "query heads (default 2)", of<&Problem::H>, About::shape},
    {"kv-heads", "HK", "key/value heads, dividing H (default: as --heads)", of<&Problem::Hk>,
     About::shape},
    {"seqlen", "N", "queries (default 256)", of<&Problem::N>, About::shape},
    {"seqlen-kv", "N_KV", "keys (default: as --seqlen)", of<&Problem::N_kv>, About::shape},
    {"head-dim", "D", "head size, a multiple of 8 up to 256 (default 64)",
     Access(read_head_dim, json<&Problem::d>), About::shape},
    {"causal", nullptr, "query i sees keys up to i + N_KV - N (default: it sees all)",
     of<&Problem::causal>, About::product},
    {"dtype", "TYPE", "fp16 or bf16 (default fp16)", of<&Problem::dtype>, About::values},
    {"scale", "X", "S = X * Q * K^T, X above 0 (default 1/sqrt(D))",
     Access(read_scale, json<&Problem::scale>), About::product},
    {"input", "KIND", "normal: N(0,1); outliers: N(0,100) added to 1 in 1000 (default normal)",
     Access(read<&Options::input>, json_of_input), About::values},
    {"seed", "S", "of the input; the same on every platform (default 0)", of<&Options::seed>,
     About::values},
    {"Files"},
    {"load", "DIR", "read q.npy k.npy v.npy (and do.npy), shapes and all (default: generate)",
     read_text<&Options::load, kFolder>},
    {"save", "DIR", "write o.npy, and those of lse dq dk dv that there are (default: none)",
     read_text<&Options::save, kFolder>},
    {"What runs"},
    {"device", "DEVICE", "gpu, sim, or auto: the GPU if there is one, else the sim (default auto)",
     read<&Options::device>},
    {"variant", "NAME",
     "one or several (A,B) of those below (default: the last so marked that runs)",
     read_text<&Options::variant, kStep>},
    {"block-q", "BR", "rows of Q in a tile of the forward pass (default: the step's choice)",
     read<&TileRequest::block_q>, About::run, &kTiles},
    {"block-kv", "BC", "rows of K, V in a tile of the forward pass (default: the step's choice)",
     read<&TileRequest::block_kv>, About::run, &kTiles},
    {"set", "NAME=VALUE,...",
     "a step's own settings, listed with it below (default: the first of each)",
     read<&TileRequest::settings>, About::run, &kSettings},
    {"deterministic", nullptr, "gradients with the same bits on every run (default: no)",
     read<&Options::deterministic>, About::run, &kDeterministic},
    {"baseline", "NAME", "also time a library baseline on the GPU (default: none)", read_baseline,
     About::run, &kBaseline},
    {"check", "HOW", "full, sampled or off (default: full if under about 1 s, else sampled)",
     read<&Options::check>},
    {"On the sim"},
    {"schedule", "ORDER", "of threads: forward, reverse or random[:SEED] (default forward)",
     read<&SimOptions::schedule>, About::sim},
    {"sram", "BYTES", "shared memory of a block (default 232448: 227 KiB)",
     read<&SimOptions::sram_bytes>, About::sim},
    {"trace", "FILE", "write what blocks do, as JSON lines; .gz compresses (default: none)",
     read_text<&SimOptions::trace_file, kFile>, About::sim},
    {"Timing on the gpu"},
    {"time", "MS", "GPU time to spend on a measurement (default 200)", read_time},
    {"warm", nullptr, "leave the L2 as the last run left it (default: flush it)",
     read<&Options::warm>},
    {"dram", nullptr, "count what DRAM served, by the GPU's counters (default: no)",
     read<&Options::dram>},
    {"Output"},
    {"json", nullptr, "one object per line on stdout, all else on stderr (default: a table)",
     read<&Options::json>},
    {"verbose", nullptr, "say more, on stderr", read<&Options::verbose>},
    {"help", nullptr, "print this and exit"},
    {"version", nullptr, "print the version and exit"},
};

/// Null where none is called that.
const OptionSpec* find_option(std::string_view name) {
  const auto found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                  [&](const auto& spec) { return spec.help && spec.name == name; });
  return found == std::end(kOptions) ? nullptr : found;
}

bool takes(const std::string& rung, const OptionSpec& spec) {
  return !spec.needs || std::any_of(variants().begin(), variants().end(), [&](const Variant& v) {
    return v.rung == rung && spec.needs->met_by(v);
  });
}

// ------------------------------------------------------------------------ what goes with the steps

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

std::vector<std::string> baseline_names(const std::string& rung) {
  std::vector<std::string> names;
  for (const Variant& v : variants())
    if (v.rung == rung && v.baseline) add_once(names, v.name);
  return names;
}

/// Of the steps of a rung for which `has` is true.
std::vector<std::string> step_names(const std::string& rung, const auto& has) {
  std::vector<std::string> names;
  for (const Variant* step : steps_of(rung))
    if (has(*step)) add_once(names, step->name);
  return names;
}

const char* device_name(DeviceKind device) {
  return device == DeviceKind::gpu ? "gpu" : "sim";
}

void check_variant(const Options& options, const std::string& rung) {
  bool known = false, on_sim = false, deterministic = false;
  for (const Variant* variant : steps_of(rung)) {
    if (variant->name != options.variant) continue;
    known = true;
    deterministic |= variant->deterministic;
    on_sim |= variant->device == DeviceKind::sim;
  }
  if (!known)
    Given{"variant", options.variant}.bad(
        "unknown", one_of(step_names(rung, [](const Variant&) { return true; })));
  if (!on_sim && options.device == DeviceChoice::sim)
    bad_usage("--variant {} runs only on the gpu, not with --device sim", options.variant);
  if (options.deterministic && !deterministic)
    bad_usage(
        "--deterministic: the gradients of --variant {} do not have the same "
        "bits on every run; those of {} have",
        options.variant, one_of(step_names(rung, kDeterministic.met_by)));
}

/// Adds those of the variant's tile sizes that are not listed yet, as "128x64".
void add_tiles(std::vector<std::string>& listed, const Variant& variant) {
  for (const TileSize& tile : variant.tiles)
    add_once(listed, fmt::format("{}x{}", tile.block_q, tile.block_kv));
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
    bad_usage("{} takes no tile size, but{} was given",
              options.variant.empty() ? rung : "--variant " + options.variant, given);
  bad_usage("no tile is compiled for{}; give one of {}", given, fmt::join(compiled, ", "));
}

/// Whether the variant, which must be named, has the settings asked for and their values.
void check_settings(const Options& options, const std::string& rung) {
  const Settings& asked = options.tile.settings;
  if (asked.empty()) return;
  const std::vector<const Variant*> steps = steps_of(rung);
  const auto step = std::find_if(steps.begin(), steps.end(), [&](const Variant* v) {
    return v->name == options.variant && !v->settings.empty();
  });
  if (step == steps.end())
    bad_usage("--set {}: {} has no settings; say --variant {}", asked.begin()->first,
              options.variant.empty() ? "the default step" : options.variant,
              one_of(step_names(rung, kSettings.met_by)));
  for (const auto& [name, value] : asked) {
    std::vector<std::string> names;
    const Setting* found = nullptr;
    for (const Setting& setting : (*step)->settings) {
      names.push_back(setting.name);
      if (name == setting.name) found = &setting;
    }
    if (!found) Given{"set", name}.bad("unknown", one_of(names));
    if (std::find(found->values.begin(), found->values.end(), value) == found->values.end())
      Given{"set", fmt::format("{}={}", name, value)}.bad(
          "unknown value", one_of({found->values.begin(), found->values.end()}));
  }
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
  for (const OptionSpec& spec : kOptions) {
    const std::string name =
        fmt::format("--{}{}{}", spec.name, spec.value ? " " : "", spec.value ? spec.value : "");
    if (!spec.help)
      text += fmt::format("\n{}\n", spec.name);
    else if (takes(rung, spec))
      text += fmt::format("  {:<22} {}\n", name, spec.help);
    else
      elsewhere += fmt::format("  {:<22} needs a step {}\n", name, spec.needs->text);
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
    bad_usage("cannot write to stdout: {}", std::strerror(errno));
}

/// Options are not abbreviated, but a beginning is a good hint.
[[noreturn]] void unknown_option(std::string_view given) {
  std::string_view beginning = given;
  while (beginning.starts_with('-')) beginning.remove_prefix(1);
  std::vector<std::string> similar;
  for (const OptionSpec& spec : kOptions)
    if (spec.help && !beginning.empty() && std::string_view(spec.name).starts_with(beginning))
      similar.push_back(fmt::format("--{}", spec.name));
  bad_usage("unknown option '{}'; {}--help lists all", given,
            similar.empty() ? "" : fmt::format("is it {}? ", one_of(similar)));
}

struct Argument {
  const OptionSpec* spec;
  std::string_view value;
};

/// The command line as options and values, each known, taken by this rung and given a value where
/// it needs one. (getopt_long would take any unambiguous beginning of a name for the option.)
std::vector<Argument> split(int argc, char** argv, const std::string& rung) {
  const auto stray = [](std::string_view argument) {
    bad_usage("stray argument '{}'; every option begins with --, --help lists them", argument);
  };
  std::vector<Argument> result;
  for (int i = 1; i < argc; ++i) {
    const std::string_view element = argv[i];
    if (element == "--" && i + 1 == argc) break;
    if (element == "--") stray(argv[i + 1]);
    if (element == "-" || !element.starts_with('-')) stray(element);
    const std::string_view given = element.substr(0, element.find('='));
    const OptionSpec* spec = given.starts_with("--") ? find_option(given.substr(2)) : nullptr;
    if (!spec) unknown_option(given);
    if (!takes(rung, *spec))
      bad_usage("{} does not take {}, which needs a step {}; leave it out", rung, given,
                spec->needs->text);
    std::string_view value;
    if (given != element) {
      value = element.substr(given.size() + 1);
      if (!spec->value) bad_usage("{} takes no value, but '{}' was given", given, element);
    } else if (spec->value) {
      if (i + 1 == argc) bad_usage("{} needs a value: {} {}", given, given, spec->value);
      value = argv[++i];
      if (value.starts_with("--"))
        bad_usage("{} needs a value: {} {}; what follows is '{}'", given, given, spec->value,
                  value);
    }
    result.push_back({spec, value});
  }
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
  problem.Hk = problem.N_kv = 0;  // until given
  const OptionSpec* shape = nullptr;
  for (const auto& [spec, value] : split(argc, argv, rung)) {
    const std::string_view name = spec->name;
    if (!spec->access.read) {
      print(name == "help"
                ? help_text(rung)
                : fmt::format("{} of the kernel ladder, version {}\n", rung, LADDER_VERSION));
      return std::nullopt;
    }
    spec->access.read({name, value}, options);
    if (spec->about == About::sim) options.sim_option = name;
    if (!shape && spec->about == About::shape) shape = spec;
  }
  if (!options.baseline.empty() && !find_baseline(rung, options.baseline))
    Given{"baseline", options.baseline}.bad("unknown", one_of(baseline_names(rung)));

  if (!options.load.empty() && shape)
    bad_usage(
        "--{} cannot be combined with --load: the files of '{}' give the shapes; "
        "leave one of the two out",
        shape->name, options.load);
  if (options.device == DeviceChoice::gpu && !options.sim_option.empty())
    bad_usage(
        "--{} is for the sim and cannot be combined with --device gpu; say --device "
        "sim",
        options.sim_option);
  if (options.device == DeviceChoice::sim && !options.baseline.empty())
    bad_usage("--baseline {} runs on a GPU and cannot be combined with --device sim",
              options.baseline);
  if (!options.sim_option.empty() && !options.baseline.empty())
    bad_usage("--{} is for the sim and --baseline {} for a GPU; leave one of the two out",
              options.sim_option, options.baseline);
  const std::vector<Options> each = each_variant(options);
  for (const auto& [name, given] : {std::pair{"save", !options.save.empty()},
                                    {"trace", !options.sim.trace_file.empty()},
                                    {"baseline", !options.baseline.empty()}})
    if (given && each.size() > 1)
      bad_usage("--{} is for one variant, and --variant {} names {}", name, options.variant,
                each.size());
  for (const Options& one : each) {
    if (!options.variant.empty()) check_variant(one, rung);
    check_tile(one, rung);
    check_settings(one, rung);
  }

  if (!problem.Hk) problem.Hk = problem.H;
  if (!problem.N_kv) problem.N_kv = problem.N;
  if (!options.scale_given)
    problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.d)));
  check_sizes(problem);
  return options;
}

std::vector<Options> each_variant(const Options& options) {
  std::vector<Options> each;
  std::istringstream names(options.variant + ",");
  for (Options one = options; std::getline(names, one.variant, ',');) each.push_back(one);
  return each;
}

std::vector<std::pair<std::string, std::string>> settings_as_json(const Options& options) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const About about : {About::values, About::shape, About::product})
    for (const OptionSpec& spec : kOptions) {
      if (spec.about != about) continue;
      settings.emplace_back(spec.name, spec.access.json(options));
      std::ranges::replace(settings.back().first, '-', '_');
    }
  return settings;
}

void check_sizes(const Problem& p) {
  if (p.d < 8 || p.d > 256 || p.d % 8 != 0)
    bad_usage("head-dim {}: give a multiple of 8 from 8 to 256", p.d);
  if (p.Hk < 1 || p.H % p.Hk != 0)
    bad_usage("kv-heads {} does not divide heads {}; give a divisor of {}", p.Hk, p.H, p.H);
  const __int128 BH = __int128{p.B} * p.H;
  if (BH > INT_MAX)
    bad_usage(
        "batch {} x heads {} is too large: a grid has at most {} blocks; use "
        "smaller sizes",
        p.B, p.H, INT_MAX);
  // Q and K count with 4 bytes, not 2: gradients of their shape are accumulated in fp32.
  const std::pair<const char*, __int128> arrays[] = {{"Q", BH * p.N * p.d * 4},
                                                     {"K", __int128{p.B} * p.Hk * p.N_kv * p.d * 4},
                                                     {"S", BH * p.N * p.N_kv * kIoBytes}};
  for (const auto& [name, bytes] : arrays)
    if (bytes > INT64_MAX)
      bad_usage("{} would take {:.3g} bytes, which exceeds 2⁶³; use smaller sizes", name,
                static_cast<double>(bytes));
}

}  // namespace ladder
