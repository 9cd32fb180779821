// SPDX-License-Identifier: Apache-2.0
// foci completion: scripts for bash, zsh and fish, made from the same tables as the parser.
#include "cli/help.hpp"
#include "cli/suggest.hpp"
#include "cli/verbs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

namespace foci::cli {
namespace {

std::string spaced(const std::vector<std::string>& words) { return listed(words, " "); }

std::vector<std::string> words_after(const VerbPage& page) {
  return page.word == "VERB" ? verb_names() : choices(page.word);
}

/// The flags of all verbs, each name once: a name means the same values everywhere.
std::vector<Flag> all_flags() {
  std::vector<Flag> flags;
  for (const std::string& name : verb_names()) {
    for (const Flag& flag : find_verb(name)->flags) {
      const auto same = [&](const Flag& other) { return other.name == flag.name; };
      if (std::none_of(flags.begin(), flags.end(), same)) flags.push_back(flag);
    }
  }
  return flags;
}

void print_bash() {
  fmt::print("# bash completion for foci; made by `foci completion bash`\n_foci() {{\n");
  fmt::print("  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n");
  fmt::print("  local verb=${{COMP_WORDS[1]}} words=\n  COMPREPLY=()\n");
  fmt::print("  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then\n");
  fmt::print("    before=${{COMP_WORDS[COMP_CWORD-2]}}\n  fi\n");
  fmt::print("  case $before in\n");
  for (const Flag& flag : all_flags()) {
    const auto values = choices(flag.values);
    if (flag.values == "FILE") {
      fmt::print(
          "    --{}) compopt -o filenames; COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n",
          flag.name);
    } else if (!values.empty()) {
      fmt::print("    --{}) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n", flag.name,
                 spaced(values));
    } else if (!flag.values.empty()) {
      fmt::print("    --{}) return ;;\n", flag.name);
    }
  }
  fmt::print("  esac\n  if ((COMP_CWORD == 1)); then\n    words='{} --help --version'\n  else\n",
             spaced(verb_names()));
  fmt::print("    case $verb in\n");
  for (const std::string& name : verb_names()) {
    const VerbPage& page = *find_verb(name);
    std::vector<std::string> words = words_after(page);
    for (const Flag& flag : page.flags) words.push_back(fmt::format("--{}", flag.name));
    fmt::print("      {}) words='{}' ;;\n", name, spaced(words));
  }
  fmt::print("    esac\n  fi\n  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}}\n");
  fmt::print("complete -F _foci foci\n");
}

/// Inside '...[...]:...:' of zsh's _arguments.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      out += std::string("\\") + c;
    } else {
      out += c;
    }
  }
  return out;
}

void print_zsh() {
  fmt::print(
      "#compdef foci\n# zsh completion for foci; made by `foci completion zsh`\n_foci() {{\n");
  fmt::print("  local -a verbs=(\n");
  for (const std::string& name : verb_names()) {
    fmt::print("    '{}:{}'\n", name, zsh_text(find_verb(name)->purpose));
  }
  fmt::print("  )\n  if ((CURRENT == 2)); then\n    _describe verb verbs\n");
  fmt::print(
      "    _arguments '--help[the list of verbs]' '--version[print the version]'\n    return\n  "
      "fi\n");
  fmt::print("  local verb=${{words[2]}}\n  shift words\n  ((CURRENT--))\n  case $verb in\n");
  for (const std::string& name : verb_names()) {
    const VerbPage& page = *find_verb(name);
    fmt::print("    {})\n      _arguments", name);
    for (const Flag& flag : page.flags) {
      const auto values = choices(flag.values);
      const std::string action = values.empty() ? (flag.values == "FILE" ? "_files" : " ")
                                                : fmt::format("({})", spaced(values));
      const std::string value =
          flag.values.empty() ? "" : fmt::format("{}:{}:{}", "", zsh_text(flag.name), action);
      fmt::print(" \\\n        '--{}{}[{}]{}'", flag.name, flag.values.empty() ? "" : "=",
                 zsh_text(flag_text(flag)), value);
    }
    const auto words = words_after(page);
    if (!words.empty())
      fmt::print(" \\\n        '1:{}:({})'", zsh_text(page.word_means), spaced(words));
    fmt::print("\n      ;;\n");
  }
  fmt::print("  esac\n}}\n");
  fmt::print("if [[ $funcstack[1] == _foci ]]; then _foci \"$@\"; else compdef _foci foci; fi\n");
}

std::string fish_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

void print_fish() {
  fmt::print("# fish completion for foci; made by `foci completion fish`\ncomplete -c foci -f\n");
  for (const std::string& name : verb_names()) {
    const VerbPage& page = *find_verb(name);
    fmt::print("complete -c foci -n __fish_use_subcommand -a {} -d '{}'\n", name,
               fish_text(page.purpose));
    const std::string when =
        fmt::format("complete -c foci -n '__fish_seen_subcommand_from {}'", name);
    const auto words = words_after(page);
    if (!words.empty()) fmt::print("{} -a '{}'\n", when, spaced(words));
    for (const Flag& flag : page.flags) {
      const auto values = choices(flag.values);
      const std::string value = flag.values.empty()     ? ""
                                : flag.values == "FILE" ? " -r -F"
                                : values.empty()        ? " -x"
                                                 : fmt::format(" -x -a '{}'", spaced(values));
      fmt::print("{} -l {}{} -d '{}'\n", when, flag.name, value, fish_text(flag.meaning));
    }
  }
  fmt::print("complete -c foci -n __fish_use_subcommand -l help -d 'the list of verbs'\n");
  fmt::print("complete -c foci -n __fish_use_subcommand -l version -d 'print the version'\n");
}

}  // namespace

int run(const Completion& verb) {
  if (verb.shell == "bash") print_bash();
  if (verb.shell == "zsh") print_zsh();
  if (verb.shell == "fish") print_fish();
  return 0;
}

}  // namespace foci::cli
