// SPDX-License-Identifier: Apache-2.0
// Every golden file through the CPU backend in f32, bf16 and f16, on every instruction set, by the
// tolerance rule.
#include "golden_three.hpp"

namespace foci {
namespace {

using namespace cases;

class CpuGolden : public testing::TestWithParam<std::string> {};

TEST_P(CpuGolden, agrees_by_the_rule) {
  const Safetensors file(GetParam());
  const Options how = golden::options_of(file);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Three three = three_of(file, dtype);
    ASSERT_TRUE(served(three.ours, how));
    three.answer(how);
    on_every_isa(dtype, [&] {
      Rule rule;
      three.compare(how, rule);
      rule.expect(std::string(name_of(dtype)));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Files, CpuGolden, testing::ValuesIn(golden::files()), case_name);

}  // namespace
}  // namespace foci
