// SPDX-License-Identifier: Apache-2.0
// The CLI11 tree. CLI11 splits the words into flags and values; everything it does not recognise is
// collected and turned into our own messages, so that an unknown word always meets a suggestion.
#include "cli/tree.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

namespace foci::cli {
namespace {

/// Built once; CLI11 clears its results at the start of every parse.
std::unique_ptr<CLI::App> build_tree() {
  auto app = std::make_unique<CLI::App>("foci");
  app->set_help_flag();
  app->allow_extras();
  app->require_subcommand(0, 1);
  app->add_flag("-h,--help")->description("this page");
  app->add_flag("--version")->description("print the version");
  for (const VerbPage& page : verb_pages()) {
    CLI::App* verb = app->add_subcommand(std::string(page.name), std::string(page.purpose));
    verb->set_help_flag();
    verb->allow_extras();
    for (const Flag& flag : page.flags) {
      const std::string_view letter = flag.name == "help"        ? "-h,"
                                      : flag.name == "processes" ? "-n,"
                                                                 : "";
      const std::string name = fmt::format("{}--{}", letter, flag.name);
      if (flag.values.empty()) {
        verb->add_flag(name)->description(std::string(flag.meaning));
      } else {
        verb->add_option(name)
            ->description(std::string(flag.meaning))
            ->type_name(std::string(flag.values))
            ->default_str(std::string(flag.standard))
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      }
    }
  }
  return app;
}

std::vector<std::string> flag_names(const VerbPage& page) {
  std::vector<std::string> names;
  for (const Flag& flag : page.flags) names.push_back(fmt::format("--{}", flag.name));
  return names;
}

/// "--metrc=dot" -> "--metrc"
std::string without_value(const std::string& argument) {
  return argument.substr(0, argument.find('='));
}

bool looks_like_flag(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-';
}

bool has_flag(const VerbPage& page, std::string_view name) {
  return std::any_of(page.flags.begin(), page.flags.end(),
                     [&](const Flag& flag) { return flag.name == name; });
}

/// Of compare: a mechanism, or a flag of the model, asked for as foci train does.
std::string meant(const VerbPage& page, const std::string& name) {
  if (page.name != "compare" || !name.starts_with("--")) return {};
  for (const char* other :
       {"--metric", "--metrics", "--weighting", "--weightings", "--attention"}) {
    if (name == other) return "; did you mean --mechanisms?";
  }
  const std::string flag = name.substr(2);
  if (!has_flag(*find_verb("train"), flag)) return {};
  return fmt::format("; did you mean --model '{}=...'?", flag);
}

/// A file or a set in data/ that was named without its flag.
[[noreturn]] void refuse_stray(const VerbPage& page, const std::string& word) {
  std::error_code fault;
  const bool is_data =
      has_flag(page, "data") && page.word.empty() &&
      (std::filesystem::exists(word, fault) || std::filesystem::exists("data/" + word, fault));
  throw Misuse(fmt::format("{} does not know what to do with '{}'{}", page.name, shown(word),
                           is_data ? fmt::format("; did you mean --data {}?", shown(word)) : ""),
               fmt::format("see foci help {}", page.name));
}

[[noreturn]] void refuse_flag(const VerbPage& page, const std::string& argument) {
  const std::string name = without_value(argument);
  if (name.starts_with("--")) {
    const std::string_view sentence = missing_feature(std::string_view(name).substr(2));
    if (!sentence.empty()) throw Misuse(fmt::format("{}: {}", shown(name), sentence));
  }
  const auto names = flag_names(page);
  const std::string other = meant(page, name);
  throw Misuse(fmt::format("{} has no flag {}{}", page.name, shown(name),
                           other.empty() ? suggestion(name, names) : other),
               fmt::format("its flags are {}", listed(names)));
}

[[noreturn]] void refuse_verb(const std::string& argument) {
  if (looks_like_flag(argument)) {
    throw Misuse(
        fmt::format("{} does not follow a verb", shown(argument)),
        fmt::format("flags follow the verb: foci VERB --flag; verbs: {}", listed(verb_names())));
  }
  throw Misuse(fmt::format("no verb '{}'{}", shown(argument), suggestion(argument, verb_names())),
               fmt::format("verbs: {}", listed(verb_names())));
}

/// CLI11 complains on its own only when a flag at the very end lacks its value.
[[noreturn]] void refuse_parse(const std::vector<std::string>& arguments, const CLI::Error& fault) {
  const std::string last = arguments.empty() ? "" : without_value(arguments.back());
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&fault) != nullptr && looks_like_flag(last)) {
    throw Misuse(fmt::format("{} needs a value after it", shown(last)));
  }
  throw Misuse(shown(fault.what()));
}

/// A flag swallowed as another's value means that the value was forgotten.
void check_not_a_flag(const VerbPage& page, const Flag& flag, const std::string& text) {
  const auto names = flag_names(page);
  if (std::find(names.begin(), names.end(), without_value(text)) != names.end()) {
    throw Misuse(fmt::format("--{} needs a value; got the flag {}", flag.name, shown(text)));
  }
}

Words words_of(const VerbPage& page, const CLI::App& verb) {
  Words words;
  for (const Flag& flag : page.flags) {
    const CLI::Option* option = verb.get_option_no_throw(fmt::format("--{}", flag.name));
    if (option == nullptr || option->count() == 0) continue;
    const std::string text = option->results().back();
    if (!flag.values.empty()) check_not_a_flag(page, flag, text);
    check_value(flag, text);
    words[std::string(flag.name)] = text;
  }
  return words;
}

Called call_of_verb(const CLI::App& verb) {
  const VerbPage& page = *find_verb(verb.get_name());
  Called called{.verb = std::string(page.name), .word = {}, .second = {}, .words = {}};
  if (verb.count("--help") > 0)
    return {.verb = "help", .word = called.verb, .second = {}, .words = {}};
  called.words = words_of(page, verb);
  std::vector<std::string> others = verb.remaining();
  if (!page.word.empty() && !others.empty() && !looks_like_flag(others[0])) {
    called.word = others[0];
    others.erase(others.begin());
  }
  if (!page.second.empty() && !others.empty() && !looks_like_flag(others[0])) {
    called.second = others[0];
    others.erase(others.begin());
  }
  while (page.word.ends_with("...") && !others.empty() && !looks_like_flag(others[0])) {
    called.rest.push_back(others[0]);
    others.erase(others.begin());
  }
  if (!others.empty()) {
    if (looks_like_flag(others[0])) refuse_flag(page, others[0]);
    refuse_stray(page, others[0]);
  }
  return called;
}

}  // namespace

Called read_call(const std::vector<std::string>& arguments) {
  static const std::unique_ptr<CLI::App> tree = build_tree();
  try {
    tree->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Error& fault) {
    refuse_parse(arguments, fault);
  }
  const auto verbs = tree->get_subcommands();
  if (verbs.empty()) {
    if (tree->count("--version") > 0)
      return {.verb = "version", .word = {}, .second = {}, .words = {}};
    if (tree->count("--help") > 0) return {.verb = "help", .word = {}, .second = {}, .words = {}};
    const auto others = tree->remaining();
    if (!others.empty()) refuse_verb(others[0]);
    throw Misuse("no verb given",
                 fmt::format("verbs: {}; start with foci --help", listed(verb_names())));
  }
  const auto strays = tree->remaining();
  if (!strays.empty()) {
    if (looks_like_flag(strays[0])) refuse_verb(strays[0]);
    refuse_stray(*find_verb(verbs[0]->get_name()), strays[0]);
  }
  return call_of_verb(*verbs[0]);
}

}  // namespace foci::cli
