// SPDX-License-Identifier: Apache-2.0
// No file past its budget; and each check is itself tried on a small file with one fault planted.
#include "house/budgets.hpp"

#include <gtest/gtest.h>

namespace {

using house::check_budgets;
using house::File;
using house::Findings;

const std::string opening = "// SPDX-License-Identifier: Apache-2.0\n// What it is.\n";

std::string times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

Findings check(const std::string& path, const std::string& text) {
  return check_budgets({{path, text}});
}

/// "2 3": one function of two lines, then one of three.
std::string function_lines(const std::string& text) {
  std::string lines;
  for (const auto& f : house::functions_of(text)) {
    if (!lines.empty()) lines += ' ';
    lines += std::to_string(f.lines());
  }
  return lines;
}

TEST(Budgets, TheRepositoryKeepsThem) {
  const auto files =
      house::read_tree(FOCI_SOURCE_DIR, {"src", "include", "cli", "python", "examples", "tests",
                                         "bench", "docs", "tools", "cmake", ".ci"});
  std::size_t functions = 0;
  for (const auto& f : files) {
    if (house::is_code(f.path)) functions += house::functions_of(f.text).size();
  }
  EXPECT_GT(functions, 200u);
  const auto found = check_budgets(files);
  EXPECT_TRUE(found.empty()) << to_string(found);
}

TEST(Budgets, AGoodFilePasses) {
  EXPECT_EQ(check("src/ref/a.cpp", opening + "int f();\n"), Findings{});
  EXPECT_EQ(
      check("include/foci/a.h",
            "/* SPDX-License-Identifier: Apache-2.0 */\n/* What it\n   is. */\nint f(void);\n"),
      Findings{});
  EXPECT_EQ(check("tools/a.sh", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"), Findings{});
}

TEST(Budgets, LongFilesAreFound) {
  EXPECT_EQ(check("src/a.hpp", opening + times(299, "\n")),
            (Findings{{"src/a.hpp", 0, "301 lines, 300 at most"}}));
  EXPECT_EQ(check("src/a.hpp", opening + times(298, "\n")), Findings{});
  EXPECT_EQ(check("src/a.cpp", opening + times(399, "\n")),
            (Findings{{"src/a.cpp", 0, "401 lines, 400 at most"}}));
  EXPECT_EQ(check("src/a.cu", opening + times(699, "\n")),
            (Findings{{"src/a.cu", 0, "701 lines, 700 at most"}}));
}

TEST(Budgets, LongLinesAreFound) {
  EXPECT_EQ(check("src/a.cpp", opening + times(101, "x") + "\n"),
            (Findings{{"src/a.cpp", 3, "101 columns"}}));
  EXPECT_EQ(check("src/a.cpp", opening + "// " + times(97, "é") + "\n"), Findings{});
}

TEST(Budgets, LongFunctionsAreFound) {
  const auto body = [](int lines) { return "int f(int x) {\n" + times(lines, "  ++x;\n") + "}\n"; };
  EXPECT_EQ(check("src/a.cpp", opening + body(58)), Findings{});
  EXPECT_EQ(check("src/a.cpp", opening + body(59)),
            (Findings{{"src/a.cpp", 3, "a function of 61 lines"}}));
}

TEST(Budgets, FunctionsAreCountedRight) {
  EXPECT_EQ(function_lines("int f() {\n}\nstruct A {\n  int g() const {\n  return 1;\n  }\n};\n"),
            "2 3");
  EXPECT_EQ(function_lines("A::A() : a_{1}, b_(2), c_{3} {\n\n}\n"), "3");
  EXPECT_EQ(function_lines("void f(Options o = {},\n  int x = 2) {\n}\nvoid g(Options o = {});\n"),
            "3");
  EXPECT_EQ(function_lines("const int a[] = {\n1,\n2};\nenum class E : int {\n a };\n"), "");
  EXPECT_EQ(function_lines("struct alignas(64) A {\n int x;\n};\nnamespace a::b {\n}\n"), "");
  EXPECT_EQ(function_lines("extern \"C\" {\nint f(void) {\n if (1) { }\n return '{';\n}\n}\n"),
            "4");
  EXPECT_EQ(function_lines("#define A {\nint f() { // {\n  return x(\"{\", R\"({)\", 1'000);\n}\n"),
            "3");
  EXPECT_EQ(
      function_lines("TEST(A, B) {\n  f([&] { g(); });\n}\ntemplate <class T>\nT f(T x) {\n}\n"),
      "3 3");
}

TEST(Budgets, OpeningsAreChecked) {
  EXPECT_EQ(check("src/a.cpp", "// What it is.\n"),
            (Findings{{"src/a.cpp", 1, "no line `SPDX-License-Identifier: Apache-2.0`"}}));
  EXPECT_EQ(check("src/a.cpp", "// SPDX-License-Identifier: Apache-2.0\nint f();\n"),
            (Findings{{"src/a.cpp", 2, "a banner of 0 lines"}}));
  EXPECT_EQ(check("src/a.cpp", opening + times(6, "// and more\n")),
            (Findings{{"src/a.cpp", 2, "a banner of 7 lines"}}));
  EXPECT_EQ(check("tools/a.sh", "#!/bin/sh\necho\n"),
            (Findings{{"tools/a.sh", 2, "no line `SPDX-License-Identifier: Apache-2.0`"}}));
}

TEST(Budgets, EmptyNamesAreFound) {
  EXPECT_EQ(check("src/ref/softmax_v2.cpp", opening),
            (Findings{{"src/ref/softmax_v2.cpp", 0, "the name says nothing: v2"}}));
  EXPECT_EQ(check("src/common/a.cpp", opening),
            (Findings{{"src/common/a.cpp", 0, "the name says nothing: common"}}));
  EXPECT_EQ(check("src/ref/renewal.cpp", opening), Findings{});
}

TEST(Budgets, UnfinishedWorkIsFound) {
  for (const std::string word : {"TO"
                                 "DO",
                                 "FIX"
                                 "ME",
                                 "XX"
                                 "X",
                                 "HA"
                                 "CK"}) {
    EXPECT_EQ(check("docs/a.md", "# A\n" + word + ": b\n"),
              (Findings{{"docs/a.md", 2, "unfinished: " + word}}));
  }
  EXPECT_EQ(check("docs/a.md", "hacks, todos\n"), Findings{});
}

TEST(Budgets, DeadCodeIsFound) {
  for (const std::string code :
       {"x = f(1);", "f(x, y);", "std::vector<int> v = {1};", "return x;", "}", "if (x) {",
        "#include <vector>", "for (int i = 0; i < n; ++i) {", "p->q[1] += 2;", "int f(int x) {"}) {
    EXPECT_EQ(check("src/a.cpp", opening + "\n  // " + code + "\n"),
              (Findings{{"src/a.cpp", 4, "code in a comment"}}))
        << code;
  }
  for (const std::string prose : {"Sums over tokens; the rest follows.", "(B,H,N,D)",
                                  "q' = c m q, b = 0", "a row sees no key;", "see f(x);  then: g",
                                  "returns nothing", "if (and only if) it fits"}) {
    EXPECT_EQ(check("src/a.cpp", opening + "\n// " + prose + "\n"), Findings{}) << prose;
  }
  EXPECT_EQ(check("src/a.cpp", opening + "\n///   attend(o, q);\n"), Findings{});
}

}  // namespace
