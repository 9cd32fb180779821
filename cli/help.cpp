// SPDX-License-Identifier: Apache-2.0
// foci help: a verb's purpose, real command lines, then its flags in groups with default and
// meaning.
#include "cli/help.hpp"

#include "cli/corruption_words.hpp"
#include "cli/mechanism.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/attention.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace foci::cli {
namespace {

constexpr std::size_t columns = 100, indent = 6;

/// Every line but the first begins `margin` letters in; `begin` stands before the first.
void print_wrapped(const std::string& text, std::size_t margin, std::string begin) {
  begin.resize(margin, ' ');
  std::string line;
  for (const std::string& word : split(text, ' ')) {
    if (!line.empty() && margin + line.size() + 1 + word.size() > columns) {
      fmt::print("{}{}\n", begin, line);
      begin.assign(margin, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  fmt::print("{}{}\n", begin, line);
}

void print_examples(const VerbPage& page) {
  fmt::print("\n{}\n", painted("Examples", Paint::bold));
  for (const Example& example : page.examples) {
    fmt::print("  {}\n", painted(fmt::format("# {}", example.does), Paint::faint));
    fmt::print("  {}\n", example.command);
  }
}

void print_overview() {
  fmt::print("{}\n\nUsage: foci VERB [FLAGS]\n\n{}\n", program_purpose,
             painted("Verbs", Paint::bold));
  for (const std::string& name : verb_names()) {
    print_wrapped(std::string(find_verb(name)->purpose), 14, "  " + name);
  }
  fmt::print("\n{}\n", painted("Start here", Paint::bold));
  fmt::print("  foci bench --all        # every mechanism side by side, on made tensors\n");
  fmt::print("  foci compare            # trains, attacks and times a model under each\n");
  fmt::print("  foci help attend        # how to run one on your own tensors\n");
  fmt::print("  foci --version\n");
}

}  // namespace

std::string flag_synopsis(const Flag& flag) {
  return flag.values.empty() ? fmt::format("--{}", flag.name)
                             : fmt::format("--{} {}", flag.name, flag.values);
}

std::string flag_text(const Flag& flag) {
  std::string text(flag.meaning);
  // A corruption has a rate, too, and that is no setting of a weighting.
  const auto belongs = flag.group == harm_group ? std::vector<std::string>() : owners(flag.name);
  if (!belongs.empty()) text += fmt::format("; only with {}", listed(belongs));
  if (flag.standard == "required") return text + " (required)";
  if (!flag.standard.empty()) text += fmt::format(" (default: {})", flag.standard);
  return text;
}

std::vector<std::string_view> groups_of(const VerbPage& page) {
  std::vector<std::string_view> groups;
  for (const Flag& flag : page.flags) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end())
      groups.push_back(flag.group);
  }
  return groups;
}

std::string usage_of(const VerbPage& page) {
  std::string usage = fmt::format("foci {}", page.name);
  for (const std::string_view word : {page.word, page.second}) {
    if (!word.empty()) usage += fmt::format(" {}", word);
  }
  return usage + " [FLAGS]";
}

int run(const Help& verb) {
  if (verb.verb.empty()) {
    print_overview();
    return 0;
  }
  const VerbPage& page = *find_verb(verb.verb);
  print_wrapped(std::string(page.purpose), 0, "");
  fmt::print("\nUsage: {}\n", usage_of(page));
  print_examples(page);
  for (const std::string_view group : groups_of(page)) {
    fmt::print("\n{}\n", painted(std::string(group), Paint::bold));
    for (const Flag& flag : page.flags) {
      if (flag.group != group) continue;
      fmt::print("  {}\n", flag_synopsis(flag));
      print_wrapped(flag_text(flag), indent, "");
    }
  }
  for (const std::string_view note : page.notes) {
    fmt::print("\n");
    print_wrapped(std::string(note), 0, "");
  }
  return 0;
}

}  // namespace foci::cli
