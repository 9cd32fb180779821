// SPDX-License-Identifier: Apache-2.0
// Makes a test program of the documents: every block marked `cpp run` becomes a test that is
// compiled and run, every `c run` a function. Usage: write_blocks ROOT OUT.cpp OUT.c
#include "docs/blocks.hpp"

#include <iostream>

namespace {

/// "dot.md", 41 -> "dot_41"
std::string name_of(const docs::Block& block) {
  std::string name = block.file.substr(0, block.file.find('.'));
  return name + "_" + std::to_string(block.line);
}

/// Tensors that the pages use without making them.
constexpr const char* given_tensors = R"(
  const Tensor q = sample({1, 2, 6, 4}), k = sample({1, 2, 6, 4}), v = sample({1, 2, 6, 4});
  const Tensor v_prev = sample({1, 2, 6, 4}, 2.0f), d_o = sample({1, 2, 6, 4});
  const Tensor o = sample({1, 2, 6, 4}), dq = sample({1, 2, 6, 4}), dk = sample({1, 2, 6, 4});
  const Tensor dv = sample({1, 2, 6, 4}), lse = sample({1, 2, 6}), entropy = sample({1, 2, 6});
  for (const Tensor* unused : {&q, &k, &v, &v_prev, &d_o, &o, &dq, &dk, &dv, &lse, &entropy}) {
    static_cast<void>(unused);
  }
)";

constexpr const char* opening = R"(
using namespace foci;
namespace {
Tensor sample(std::initializer_list<std::int64_t> shape, float step = 0.7f) {
  Tensor made(DType::f32, shape);
  for (std::int64_t i = 0; i < made.view().count(); ++i) {
    made.data<float>()[i] = std::sin(step * float(i + 1));
  }
  return made;
}
}  // namespace
)";

void write_cpp(std::ostream& to, const std::vector<docs::Block>& blocks) {
  to << "#include <foci/attention.hpp>\n#include <foci/decode.hpp>\n#include <foci/error.hpp>\n"
        "#include <foci/executor.hpp>\n#include <gtest/gtest.h>\n#include <cmath>\n#include "
        "<vector>\n";
  for (const docs::Block& block : blocks) {
    for (const std::string& line : block.lines) {
      if (line.starts_with("#include")) to << line << "\n";
    }
  }
  to << opening;
  for (const docs::Block& block : blocks) {
    to << "\nTEST(Pages, " << name_of(block) << ") {" << given_tensors << "  {\n";
    to << "#line " << block.line << " \"" << block.file << "\"\n";
    for (const std::string& line : block.lines)
      to << (line.starts_with("#include") ? "" : line) << "\n";
    to << "  }\n}\n";
  }
}

void write_c(std::ostream& to, const std::vector<docs::Block>& blocks) {
  for (const docs::Block& block : blocks) {
    to << "#define main " << name_of(block) << "\n#line " << block.line << " \"" << block.file
       << "\"\n";
    for (const std::string& line : block.lines) to << line << "\n";
    to << "#undef main\n";
  }
  to << "int main(void) {\n  int failed = 0;\n";
  for (const docs::Block& block : blocks) to << "  failed |= " << name_of(block) << "();\n";
  to << "  return failed;\n}\n";
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: write_blocks ROOT OUT.cpp OUT.c\n";
    return 2;
  }
  std::ofstream cpp(arguments[2]), c(arguments[3]);
  write_cpp(cpp, docs::blocks(arguments[1], "cpp run"));
  write_c(c, docs::blocks(arguments[1], "c run"));
  return cpp.flush() && c.flush() ? 0 : 1;
}
