// SPDX-License-Identifier: Apache-2.0
// Help, man page and completions: they mention every verb and flag, their examples are command
// lines that the parser takes, and the programs that read them find no fault.
#include "cli/command.hpp"
#include "cli/flags.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/verbs.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace {

using namespace cli_test;
using foci::cli::find_verb;
using foci::cli::verb_names;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string without_dash_escapes(std::string text) {
  for (std::size_t at = 0; (at = text.find("\\-", at)) != std::string::npos;) text.erase(at, 1);
  return text;
}

bool is_installed(const std::string& name) { return run_shell("command -v " + name).status == 0; }

TEST(Help, ShowsEveryVerb) {
  const Ran ran = run_foci({"--help"});
  EXPECT_EQ(ran.status, 0);
  for (const std::string& name : verb_names())
    EXPECT_TRUE(has(ran.out, "\n  " + name + " ")) << name;
  EXPECT_FALSE(has(ran.out, "manual"));
  EXPECT_EQ(run_foci({"help"}).out, ran.out);
}

TEST(Help, ShowsPurposeExamplesAndFlags) {
  for (const std::string& name : verb_names()) {
    const Ran ran = run_foci({name, "--help"});
    EXPECT_EQ(ran.status, 0);
    EXPECT_EQ(run_foci({"help", name}).out, ran.out);
    const auto& page = *find_verb(name);
    std::string begin = ran.out.substr(0, page.purpose.size());
    std::replace(begin.begin(), begin.end(), '\n', ' ');  // a long one has two lines
    EXPECT_EQ(begin, page.purpose);
    EXPECT_GE(page.examples.size(), 2u);
    EXPECT_LE(page.examples.size(), 4u);
    for (const auto& example : page.examples)
      EXPECT_TRUE(has(ran.out, std::string(example.command)));
    for (const auto& flag : page.flags) EXPECT_TRUE(has(ran.out, "  --" + std::string(flag.name)));
  }
}

/// A weighting's rate is not a corruption's, though both have the name.
TEST(Help, ACorruptionNeedsNoWeighting) {
  EXPECT_FALSE(has(run_foci({"help", "eval"}).out, "only with"));
  EXPECT_TRUE(has(run_foci({"help", "train"}).out, "only with decay (default: 0.9)"));
}

TEST(Help, FitsAHundredColumns) {
  for (const std::string& name : verb_names()) {
    for (const std::string& line : foci::cli::split(run_foci({"help", name}).out, '\n')) {
      EXPECT_LE(line.size(), 110u) << line;
    }
  }
}

TEST(Help, ExamplesAreCommandLinesThatParse) {
  for (const std::string& name : verb_names()) {
    for (const auto& example : find_verb(name)->examples) {
      auto words = foci::cli::split(example.command, ' ');
      const auto start = std::find_if(words.begin(), words.end(), [](const std::string& word) {
        return word == "foci" || word == "<(foci";
      });
      ASSERT_NE(start, words.end()) << example.command;
      words.erase(words.begin(), start + 1);
      words.erase(std::find(words.begin(), words.end(), ">"), words.end());
      if (!words.empty() && words.back().ends_with(")")) words.back().pop_back();
      EXPECT_NO_THROW(foci::cli::parse(words)) << example.command;
    }
  }
}

TEST(Version, IsThatOfTheLibrary) {
  EXPECT_EQ(run_foci({"--version"}).out,
            "foci " + run_foci({"info", "--json"}).json().at("version").get<std::string>() + "\n");
}

TEST(Manual, MentionsEverything) {
  const Ran ran = run_foci({"manual"});
  EXPECT_EQ(ran.status, 0);
  const std::string text = without_dash_escapes(ran.out);
  for (const std::string& name : verb_names()) {
    EXPECT_TRUE(has(text, ".SS foci " + name)) << name;
    for (const auto& flag : find_verb(name)->flags) {
      EXPECT_TRUE(has(text, ".B --" + std::string(flag.name))) << name << " --" << flag.name;
    }
  }
  for (const char* section :
       {"NAME", "SYNOPSIS", "DESCRIPTION", "VERBS", "EXAMPLES", "EXIT STATUS", "FILES"}) {
    EXPECT_TRUE(has(text, std::string(".SH ") + section + "\n")) << section;
  }
}

TEST(Manual, ManFindsNoFault) {
  if (!is_installed("man")) GTEST_SKIP() << "man is not installed";
  write(folder().file("foci.1"), run_foci({"manual"}).out);
  const Ran ran = run_shell("MANWIDTH=100 LC_ALL=C.UTF-8 man --warnings=w -E UTF-8 -l " +
                            folder().file("foci.1"));
  if (has(ran.out, "minimized")) GTEST_SKIP() << "this system's man only says it is not there";
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
  EXPECT_TRUE(has(ran.out, "EXIT STATUS"));
}

TEST(Manual, MandocFindsNoFault) {
  if (!is_installed("mandoc")) GTEST_SKIP() << "mandoc is not installed";
  write(folder().file("foci.1"), run_foci({"manual"}).out);
  // A date would make two builds of the same source differ.
  const Ran ran = run_shell("mandoc -T lint -W warning " + folder().file("foci.1") +
                            " | grep -v 'missing date'");
  EXPECT_EQ(ran.out, "");
}

/// What bash offers after these words, the last of them begun.
std::string offered(const std::string& words, int at) {
  const std::string script = folder().file("foci.bash");
  write(script, run_foci({"completion", "bash"}).out);
  return run_shell("bash -c '. " + script + "; COMP_WORDS=(" + words + "); COMP_CWORD=" +
                   std::to_string(at) + "; _foci 2> /dev/null; echo ${COMPREPLY[@]}'")
      .out;
}

TEST(Completion, BashParsesAndCompletes) {
  EXPECT_EQ(run_shell(program + " completion bash | bash -n").status, 0);
  EXPECT_EQ(offered("foci atte", 1), "attend\n");
  std::string verbs;
  for (const foci::cli::VerbPage& page : foci::cli::verb_pages()) {
    if (page.name != "manual") verbs += std::string(page.name) + " ";
  }
  EXPECT_EQ(offered("foci \"\"", 1), verbs + "--help --version\n");
  EXPECT_EQ(offered("foci attend --metric-", 2), "--metric-grad\n");
  EXPECT_EQ(offered("foci attend --metric la", 3), "layer-change\n");
  EXPECT_EQ(offered("foci attend --metric = ke", 4), "key-covariance\n");
  EXPECT_EQ(offered("foci attend --ridge \"\"", 3), "\n");
  EXPECT_EQ(offered("foci completion z", 2), "zsh\n");
  EXPECT_EQ(offered("foci help ben", 2), "bench\n");
  EXPECT_EQ(offered("foci info --me", 2), "\n");
}

TEST(Completion, OtherShellsGetEveryFlag) {
  const std::string zsh = run_foci({"completion", "zsh"}).out,
                    fish = run_foci({"completion", "fish"}).out;
  EXPECT_TRUE(zsh.starts_with("#compdef foci\n"));
  for (const std::string& name : verb_names()) {
    EXPECT_TRUE(has(zsh, "    " + name + ")\n")) << name;
    EXPECT_TRUE(has(fish, "__fish_use_subcommand -a " + name + " ")) << name;
    for (const auto& flag : find_verb(name)->flags) {
      EXPECT_TRUE(has(zsh, "'--" + std::string(flag.name))) << flag.name;
      EXPECT_TRUE(
          has(fish, "seen_subcommand_from " + name + "' -l " + std::string(flag.name) + " "))
          << flag.name;
    }
  }
}

TEST(Completion, ZshAndFishParseWhereTheyExist) {
  int tried = 0;
  for (const char* shell : {"zsh", "fish"}) {
    if (!is_installed(shell)) continue;
    const std::string name(shell), script = folder().file("foci." + name);
    write(script, run_foci({"completion", name}).out);
    EXPECT_EQ(run_shell(name + " -n " + script).status, 0) << name;
    ++tried;
  }
  if (tried == 0) GTEST_SKIP() << "neither zsh nor fish is installed";
}

}  // namespace
