// SPDX-License-Identifier: Apache-2.0
// foci manual: the man page in roff, made from the same tables as --help.
#include "cli/help.hpp"
#include "cli/suggest.hpp"
#include "cli/verbs.hpp"

#include <foci/attention.hpp>

#include <fmt/core.h>

namespace foci::cli {
namespace {

/// Text in which roff sees nothing but text.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '`' || c == '\'') {
      out += "\\(aq";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

void print_verb(const VerbPage& page) {
  fmt::print(".SS {}\n{}\n", roff(usage_of(page)), roff(page.purpose));
  for (const std::string_view group : groups_of(page)) {
    if (groups_of(page).size() > 1) fmt::print(".PP\n.I {}\n", roff(group));
    for (const Flag& flag : page.flags) {
      if (flag.group == group) {
        fmt::print(".TP\n.B {}\n{}\n", roff(flag_synopsis(flag)), roff(flag_text(flag)));
      }
    }
  }
  for (const std::string_view note : page.notes) fmt::print(".PP\n{}\n", roff(note));
}

void print_examples() {
  fmt::print(".SH EXAMPLES\n");
  for (const std::string& name : verb_names()) {
    for (const Example& example : find_verb(name)->examples) {
      const bool first = name == verb_names()[0] && &example == &find_verb(name)->examples[0];
      fmt::print("{}{}:\n.PP\n.nf\n.RS\n{}\n.RE\n.fi\n", first ? "" : ".PP\n", roff(example.does),
                 roff(example.command));
    }
  }
}

void print_ending() {
  fmt::print(".SH EXIT STATUS\n");
  fmt::print(".TP\n.B 0\nAll is well.\n");
  fmt::print(
      ".TP\n.B 1\nIt failed: a file could not be read or written, the arithmetic gave up, or a "
      "check did "
      "not pass.\n");
  fmt::print(
      ".TP\n.B 2\nMisuse: an unknown flag or value, tensors that do not fit together, or something "
      "this "
      "build cannot do.\n");
  fmt::print(".PP\nAn error is one line on standard error, sometimes with a hint below it. ");
  fmt::print("A file is written whole or not at all.\n");
  fmt::print(".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nWhen set and not empty, nothing is coloured.\n");
  fmt::print(
      ".TP\n.B FOCI_ISA\nThe instruction set of backend cpu: one that\n.B foci info\nlists.\n");
  fmt::print(".TP\n.B FOCI_PYTHON\nThe python that runs torch for\n.BR \"foci bench\" .\n");
  fmt::print(".SH FILES\n.TP\n.I *.safetensors\nTensors by name, with ");
  fmt::print("metadata. The key\n.B options\nof the metadata holds flags as a JSON object; ");
  fmt::print("\n.B foci attend\nwrites it and\n.B \\-\\-flags\\-from\\-metadata\nreads it.\n");
}

}  // namespace

int run(const Manual&) {
  fmt::print(".\\\" SPDX-License-Identifier: Apache-2.0\n");
  fmt::print(".TH FOCI 1 \"\" \"foci {}\" \"User Commands\"\n", version());
  fmt::print(
      ".SH NAME\nfoci \\- attention whose geometry you choose and whose focus you can measure\n");
  fmt::print(
      ".SH SYNOPSIS\n.B foci\n.I VERB\n[\\fIFLAGS\\fR]\n.br\n.B foci help\n[\\fIVERB\\fR]\n");
  fmt::print(".br\n.B foci \\-\\-version\n");
  fmt::print(".SH DESCRIPTION\n");
  fmt::print(
      "Every mechanism is two choices: the metric says how near a query and a key are, the "
      "weighting ");
  fmt::print("turns scores into weights.\n.B foci info\nlists which go together.\n");
  fmt::print(".SH VERBS\n");
  for (const std::string& name : verb_names()) print_verb(*find_verb(name));
  print_examples();
  print_ending();
  return 0;
}

}  // namespace foci::cli
