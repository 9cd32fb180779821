// SPDX-License-Identifier: Apache-2.0
// Every public header compiles on its own and twice over, as C++20; those that end in .h also as
// C99 and C11, by the letter of the standard. The one that needs torch where torch is.
#include "house/run.hpp"
#include "house/tree.hpp"

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

const std::vector<fs::path> folders = {FOCI_SOURCE_DIR "/include", FOCI_BINARY_DIR "/include"};

struct Language {
  const char* name;
  const char* compile;
};
const Language cpp{"C++20", FOCI_CXX " -x c++ -std=c++20"};
const Language c99{"C99", FOCI_CC " -x c -std=c99"};
const Language c11{"C11", FOCI_CC " -x c -std=c11"};

/// Headers that want torch's.
bool wants_torch(const std::string& header) {
  return header == "foci/nn.hpp" || header == "foci/models.hpp" || header == "foci/language.hpp" ||
         header == "foci/train.hpp" || header == "foci/attack.hpp" ||
         header == "foci/classifier.hpp" || header == "foci/watch.hpp" ||
         header == "foci/measure.hpp";
}

house::Ran compile(const std::string& header, const Language& language) {
  std::string command =
      "printf '#include <" + header + ">\\n#include <" + header + ">\\nint x;\\n' | ";
  command += language.compile;
  for (const auto& folder : folders) command += " -I'" + folder.string() + "'";
  if (wants_torch(header)) command += FOCI_TORCH_FLAGS;
  return house::run(command + " -I'" + testing::TempDir() +
                    "' -Wall -Wextra -Werror -pedantic-errors -fsyntax-only -");
}

TEST(Headers, StandAlone) {
  int seen = 0;
  for (const auto& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder / "foci")) {
      const auto header = "foci/" + entry.path().filename().string();
      if (wants_torch(header) && std::string(FOCI_TORCH_FLAGS).empty()) continue;
      auto languages = std::vector{cpp};
      if (house::extension(header) == ".h") languages.insert(languages.end(), {c99, c11});
      for (const auto& language : languages) {
        const auto ran = compile(header, language);
        EXPECT_EQ(ran.exit_code, 0) << header << " as " << language.name << "\n" << ran.output;
      }
      ++seen;
    }
  }
  EXPECT_GE(seen, 10);
}

TEST(Headers, AFaultIsFound) {
  const auto plant = [](const std::string& name, const std::string& text) {
    std::ofstream(fs::path(testing::TempDir()) / name) << text;
    return name;
  };
  EXPECT_NE(compile(plant("needs_string.hpp", "#pragma once\nstd::string f();\n"), cpp).exit_code,
            0);
  EXPECT_NE(compile(plant("unguarded.hpp", "struct A {};\n"), cpp).exit_code, 0);
  EXPECT_NE(compile(plant("slashes.h", "// not C90\nint f();;\n"), c99).exit_code, 0);
  EXPECT_EQ(compile(plant("fine.h", "int f(void);\n"), c99).exit_code, 0);
}

}  // namespace
