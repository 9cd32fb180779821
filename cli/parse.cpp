// SPDX-License-Identifier: Apache-2.0
// From a verb and its words to the plain struct that says what to do. Reads no file and runs
// nothing.
#include "cli/parse.hpp"
#include "cli/mechanism.hpp"
#include "cli/misuse.hpp"
#include "cli/pages.hpp"
#include "cli/serve.hpp"
#include "cli/suggest.hpp"
#include "cli/tree.hpp"
#include "cli/verbs.hpp"

#include <foci/device.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

namespace foci::cli {
namespace {

constexpr std::int64_t most_threads = 4096, most_turns = 10000;
constexpr std::int64_t largest_size = std::int64_t{1} << 40;

bool is_on(const Words& words, const std::string& flag) {
  const auto found = words.find(flag);
  return found != words.end() && found->second == "true";
}

}  // namespace

std::string text_or(const Words& words, const std::string& flag, const std::string& standard) {
  const auto found = words.find(flag);
  return found == words.end() ? standard : found->second;
}

Common common_of(const Words& words) {
  Common common{.json = is_on(words, "json"),
                .quiet = is_on(words, "quiet"),
                .seed = 0,
                .threads = 0,
                .cuda = false};
  common.seed = std::uint64_t(to_count(text_or(words, "seed", "0")));
  const std::int64_t threads = to_count(text_or(words, "threads", "0"));
  if (threads > most_threads) {
    throw Misuse(fmt::format("--threads {} is more than {}", threads, most_threads));
  }
  common.threads = int(threads);
  common.cuda = text_or(words, "device", "cpu") == "cuda";
  if (common.cuda && !has_cuda()) {
    throw Misuse("--device cuda is not in this build; the nearest is --device cpu",
                 "foci info lists what this build can do");
  }
  return common;
}

namespace {

Mechanism mechanism_of(const Words& words) {
  Mechanism mechanism{.words = words,
                      .how = {},
                      .dtype = dtype_of_words(words),
                      .from_metadata = is_on(words, "flags-from-metadata")};
  if (!mechanism.from_metadata) mechanism.how = options_of(words);
  const bool free = words.find("backend") == words.end();
  if (free && text_or(words, "device", "cpu") == "cuda") mechanism.how.backend = Backend::cuda;
  return mechanism;
}

}  // namespace

std::int64_t size_of_flag(const Words& words, const std::string& flag, std::int64_t standard) {
  const auto found = words.find(flag);
  if (found == words.end()) return standard;
  const std::int64_t size = to_count(found->second);
  if (size < 1 || size > largest_size) {
    throw Misuse(
        fmt::format("--{} {} is not a size; it needs a whole number, 1 or more", flag, size));
  }
  return size;
}

namespace {

Sizes sizes_of(const Words& words, const std::string& standard) {
  const auto parts = split(text_or(words, "shape", standard), ',');
  Sizes sizes;
  sizes.B = to_count(parts[0]);
  sizes.H = to_count(parts[1]);
  sizes.N = to_count(parts[2]);
  sizes.D = to_count(parts[3]);
  sizes.G = size_of_flag(words, "kv-heads", sizes.H);
  sizes.M = size_of_flag(words, "keys", sizes.N);
  sizes.E = size_of_flag(words, "values", sizes.D);
  if (sizes.G > sizes.H || sizes.H % sizes.G != 0) {
    throw Misuse(fmt::format("--kv-heads {} does not divide the {} query heads", sizes.G, sizes.H));
  }
  return sizes;
}

std::string required(const Words& words, const std::string& verb, const std::string& flag) {
  const auto found = words.find(flag);
  if (found != words.end()) return found->second;
  throw Misuse(fmt::format("{} needs --{} FILE", verb, flag),
               "for instance foci attend --in in.safetensors --out out.safetensors");
}

Attend attend_of(const Words& words) {
  return {.common = common_of(words),
          .in = required(words, "attend", "in"),
          .out = required(words, "attend", "out"),
          .mechanism = mechanism_of(words)};
}

Check check_of(const Words& words) {
  Check check{.common = common_of(words), .in = {}, .sizes = {}, .mechanism = mechanism_of(words)};
  if (words.count("in") > 0) {
    check.in = words.at("in");
    for (const char* flag : {"shape", "kv-heads", "keys", "values"}) {
      if (words.count(flag) == 0) continue;
      throw Misuse(fmt::format("--{} is for made tensors; --in brings its own", flag));
    }
  } else if (check.mechanism.from_metadata) {
    throw Misuse("--flags-from-metadata needs --in FILE to take them from");
  } else {
    check.sizes = sizes_of(words, "2,4,37,16");
  }
  return check;
}

Timed timed_of(const Words& words) {
  const std::string pass = text_or(words, "pass", "forward");
  return {.sizes = sizes_of(words, "1,4,256,64"),
          .mechanism = mechanism_of(words),
          .pass = pass == "forward"    ? Pass::forward
                  : pass == "backward" ? Pass::backward
                                       : Pass::both,
          .stats = is_on(words, "stats"),
          .key_bias = is_on(words, "key-bias"),
          .threads = common_of(words).threads};
}

/// "metric=dot stats" -> {metric: dot, stats: true}
Words words_of_versus(const std::string& text) {
  static const std::set<std::string> shared = {"device", "seed",  "json",  "quiet",
                                               "help",   "peers", "turns", "versus"};
  std::vector<std::string> names;
  for (const Flag& flag : find_verb("bench")->flags) {
    if (!shared.contains(std::string(flag.name))) names.emplace_back(flag.name);
  }
  Words words;
  for (const std::string& part : split(text, ' ')) {
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    std::string name = part.substr(0, equals);
    name.erase(0, name.find_first_not_of('-'));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw Misuse(
          fmt::format("--versus cannot change '{}'{}", shown(name), suggestion(name, names)),
          "flags of ours as name=value with spaces between them: --versus 'metric=dot "
          "stats=false'");
    }
    words[name] = equals == std::string::npos ? "true" : part.substr(equals + 1);
  }
  for (const Flag& flag : find_verb("bench")->flags) {
    const auto found = words.find(std::string(flag.name));
    if (found == words.end()) continue;
    if (found->second == "true" && !flag.values.empty())
      throw Misuse(fmt::format("--versus: {} needs a value", flag.name), "as in metric=dot");
    check_value(flag, found->second);
  }
  if (words.empty()) throw Misuse("--versus is empty; it needs a flag to change: metric=dot");
  return words;
}

PeerChoice peers_of(const Words& words) {
  const std::string text = text_or(words, "peers", "all");
  if (text == "none") return {};
  if (text == "all") return {.names = {"sgemm", "naive", "torch-sdpa", "torch-eager"}, .words = {}};
  PeerChoice choice{.names = {}, .words = split(text, ',')};
  for (const std::string& word : choice.words) {
    if (word == "all" || word == "none") {
      throw Misuse(fmt::format("--peers {}: {} stands alone", shown(text), word));
    }
    const auto names = word == "torch" ? split("torch-sdpa,torch-eager", ',') : split(word, ',');
    for (const std::string& name : names) {
      const auto known = std::find(choice.names.begin(), choice.names.end(), name);
      if (known == choice.names.end()) choice.names.push_back(name);
    }
  }
  return choice;
}

Bench bench_of(const Words& words) {
  Bench bench{.common = common_of(words),
              .ours = timed_of(words),
              .versus = {},
              .peers = peers_of(words),
              .turns = 0};
  const std::int64_t turns = size_of_flag(words, "turns", 9);
  if (turns > most_turns) {
    throw Misuse(fmt::format("--turns {} is more than {}", turns, most_turns));
  }
  bench.turns = int(turns);
  if (words.count("versus") > 0) {
    const std::string& text = words.at("versus");
    const Words other = overruled(words, words_of_versus(text));
    bench.versus = Versus{.text = text, .timed = timed_of(other)};
  }
  return bench;
}

/// What --all has no use for: it takes every mechanism, once.
BenchAll bench_all_of(const Words& words) {
  static const std::set<std::string> taken = {"all",     "shape",   "kv-heads", "keys", "values",
                                              "causal",  "backend", "dtype",    "seed", "json",
                                              "threads", "quiet",   "device"};
  for (const auto& [flag, text] : words) {
    if (taken.count(flag) > 0) continue;
    throw Misuse(
        fmt::format("--{} does not go with --all, which times every mechanism forward", flag));
  }
  return {.common = common_of(words),
          .sizes = sizes_of(words, "1,2,128,32"),
          .dtype = dtype_of_words(words).value_or(DType::f32),
          .backend = options_of(words).backend,
          .causal = is_on(words, "causal")};
}

Data::Action action_of(const std::string& word) {
  using Action = Data::Action;
  static const std::map<std::string, Action> actions = {
      {"list", Action::list}, {"get", Action::get}, {"show", Action::show}, {"make", Action::make}};
  if (word.empty()) return Action::list;
  const auto found = actions.find(word);
  if (found != actions.end()) return found->second;
  const auto words = choices(find_verb("data")->word);
  throw Misuse(fmt::format("data cannot '{}'{}", shown(word), suggestion(word, words)),
               "one of " + listed(words));
}

Verb data_of(const Called& called) {
  using Action = Data::Action;
  const Words& words = called.words;
  Data verb{.common = common_of(words),
            .action = action_of(called.word),
            .name = called.second,
            .out = text_or(words, "out", ""),
            .split = {},
            .count = {},
            .sheet = text_or(words, "sheet", ""),
            .check = is_on(words, "check")};
  if (words.count("count") > 0) verb.count = to_count(words.at("count"));
  const std::string split = text_or(words, "split", "");
  for (const auto known : {data::Split::train, data::Split::valid, data::Split::test}) {
    if (split == data::name_of(known)) verb.split = known;
  }
  if (verb.action == Action::list && !verb.name.empty()) {
    throw Misuse(fmt::format("data list does not know what to do with '{}'", shown(verb.name)));
  }
  if (verb.action != Action::list && verb.name.empty()) {
    throw Misuse(fmt::format("data {} needs {}", called.word,
                             verb.action == Action::show ? "the path of a set" : "a name"),
                 "foci data list shows what there is");
  }
  return verb;
}

Verb convert_of(const Called& called) {
  const Words& words = called.words;
  if (called.word.empty() || called.second.empty()) {
    throw Misuse(fmt::format("convert needs {}", called.word.empty() ? "a file to read and one to "
                                                                       "write"
                                                                     : "a file to write"),
                 "for instance foci convert deit_tiny.pth deit_tiny.safetensors");
  }
  if (!called.second.ends_with(".safetensors")) {
    throw Misuse(fmt::format("convert writes safetensors; '{}' does not end in .safetensors",
                             shown(called.second)));
  }
  return Convert{.common = common_of(words),
                 .in = called.word,
                 .out = called.second,
                 .take = text_or(words, "take", ""),
                 .drop = text_or(words, "drop", ""),
                 .keep_names = is_on(words, "keep-names"),
                 .hf_vit = text_or(words, "map", "") == "hf-vit"};
}

Corrupt corrupt_of(const Called& called) {
  if (called.word.empty()) {
    throw Misuse("corrupt needs a set of images",
                 "for instance foci corrupt data/fashion-mnist --sheet sheet.png");
  }
  if (called.words.count("out") + called.words.count("sheet") == 0)
    throw Misuse("corrupt needs --out FOLDER for sets, or --sheet FILE for a look at them");
  for (const char* flag : {"count", "side"}) size_of_flag(called.words, flag, 1);
  return {.common = common_of(called.words), .data = called.word, .words = called.words};
}

Generate generate_of(const Called& called) {
  const Words& words = called.words;
  Generate verb{.common = common_of(words),
                .model = called.word,
                .tokenizer = text_or(words, "tokenizer", ""),
                .prompt = text_or(words, "prompt", ""),
                .tokens = size_of_flag(words, "tokens", 256),
                .temperature = to_number(text_or(words, "temperature", "0")),
                .top_p = to_number(text_or(words, "top-p", "1")),
                .cuda = text_or(words, "device", "cpu") == "cuda"};
  if (verb.model.empty()) {
    throw Misuse("generate needs a model",
                 "for instance foci generate stories260K.bin --prompt 'Once upon a time'");
  }
  if (verb.temperature < 0)
    throw Misuse(fmt::format("--temperature {} is below 0", verb.temperature));
  if (!(verb.top_p > 0 && verb.top_p <= 1))
    throw Misuse(fmt::format("--top-p {} does not lie in (0, 1]", verb.top_p));
  return verb;
}

Verb completion_of(const std::string& word) {
  const auto shells = choices(find_verb("completion")->word);
  if (std::find(shells.begin(), shells.end(), word) != shells.end()) return Completion{word};
  if (word.empty()) throw Misuse("completion needs a shell", "one of " + listed(shells));
  throw Misuse(fmt::format("completion does not know the shell '{}'{}", shown(word),
                           suggestion(word, shells)),
               "one of " + listed(shells));
}

Verb help_of(const std::string& word) {
  if (word.empty() || find_verb(word) != nullptr) return Help{word};
  throw Misuse(fmt::format("no verb '{}'{}", shown(word), suggestion(word, verb_names())),
               fmt::format("verbs: {}", listed(verb_names())));
}

}  // namespace

Verb parse(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments[0] == "launch") return launch_of(arguments);
  const Called called = read_call(arguments);
  if (called.verb == "info") {
    return Info{.common = common_of(called.words), .markdown = is_on(called.words, "markdown")};
  }
  if (called.verb == "attend") return attend_of(called.words);
  if (called.verb == "check") return check_of(called.words);
  if (called.verb == "bench") {
    if (is_on(called.words, "all")) return bench_all_of(called.words);
    return bench_of(called.words);
  }
  if (called.verb == "theory")
    return Theory{.common = common_of(called.words), .words = called.words};
  if (called.verb == "data") return data_of(called);
  if (called.verb == "models") {
    return WithTorch{Models{.common = common_of(called.words), .name = called.word}, arguments};
  }
  if (called.verb == "convert") return convert_of(called);
  if (called.verb == "corrupt") return corrupt_of(called);
  if (called.verb == "generate") return WithTorch{generate_of(called), arguments};
  if (called.verb == "train") return WithTorch{train_of(called), arguments};
  if (called.verb == "eval") return WithTorch{eval_of(called), arguments};
  if (called.verb == "attack") return WithTorch{attack_of(called), arguments};
  if (called.verb == "measure") return WithTorch{measure_of(called), arguments};
  if (called.verb == "serve") return serve_of(called);
  if (called.verb == "compare") return WithTorch{compare_of(called.words), arguments};
  if (called.verb == "report") return report_of(called);
  if (called.verb == "reproduce") return reproduce_of(called);
  if (called.verb == "completion") return completion_of(called.word);
  if (called.verb == "manual") return Manual{};
  if (called.verb == "help") return help_of(called.word);
  return Version{};
}

}  // namespace foci::cli
