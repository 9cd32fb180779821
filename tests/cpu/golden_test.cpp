// SPDX-License-Identifier: Apache-2.0
// Every golden file through the CPU backend in f32, bf16 and f16, on every instruction set, by the
// tolerance rule.
#include "golden.hpp"
#include "three.hpp"

namespace foci {
namespace {

using namespace cases;

class CpuGolden : public testing::TestWithParam<std::string> {};

/// What the file holds, rounded to `dtype`.
Three three_of(const Safetensors& file, DType dtype) {
  const View q = file.find("q"), k = file.find("k"), v = file.find("v");
  const Case c{"golden",   q.shape[0], q.shape[1], k.shape[1],
               q.shape[2], k.shape[2], q.shape[3], v.shape[3]};
  Three three(c, dtype);
  for (const char* name : {"q", "k", "v", "v_prev"}) {
    if (file.find(name)) three.ours.put(name, Tensor::copy(file.find(name), dtype));
  }
  three.ours.put("d_o", Tensor::copy(file.find("do"), dtype));
  if (const View bias = file.find("key_bias"))
    three.ours.put("key_bias", Tensor::copy(bias, DType::f32));
  if (const View mask = file.find("key_mask"))
    three.ours.put("key_mask", Tensor::copy(mask, DType::boolean));
  return three;
}

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

std::string case_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = std::filesystem::path(info.param).stem().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, CpuGolden, testing::ValuesIn(golden::files()), case_name);

}  // namespace
}  // namespace foci
