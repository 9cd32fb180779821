// SPDX-License-Identifier: Apache-2.0
// Every golden file through the CUDA backend in f32, bf16 and f16, by the tolerance rule.
#include "cpu/golden_three.hpp"
#include "cuda/gpu.hpp"

namespace foci {
namespace {

using namespace cases;

class CudaGolden : public testing::TestWithParam<std::string> {};

TEST_P(CudaGolden, agrees_by_the_rule) {
  FOCI_WANT_GPU();
  const Safetensors file(GetParam());
  const Options how = golden::options_of(file);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Three three = three_of(file, dtype);
    ASSERT_TRUE(served(three.ours, how, Backend::cuda));
    three.answer(how);
    Rule rule;
    three.compare(how, rule, Backend::cuda);
    rule.expect(std::string(name_of(dtype)));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, CudaGolden, testing::ValuesIn(golden::files()), case_name);

}  // namespace
}  // namespace foci
