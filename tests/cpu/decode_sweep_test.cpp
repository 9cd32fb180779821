// SPDX-License-Identifier: Apache-2.0
// Decoding on the CPU backend, token by token, against the full causal pass of ref in double by the
// tolerance rule: every metric, weighting, type and instruction set.
#include "decoded.hpp"

namespace foci {
namespace {

using namespace cases;

const std::vector<Case>& decoded_shapes() {
  static const std::vector<Case> table = {
      shape("small"),
      shape("narrow"),
      shape("padded"),
      shape("left_padded"),
      {"wide_heads", 1, 10, 2, 37, 37, 5, 19, Masked::holes},  // five heads share a key head
      {"few_heads", 1, 3, 1, 70, 70, 8, 8},
  };
  return table;
}

class CpuDecode : public testing::TestWithParam<NamedWeighting> {};

TEST_P(CpuDecode, follows_the_full_pass) {
  const Weighting weighting = GetParam().weighting;
  on_every_isa([&] {
    for (const Case& c : decoded_shapes()) {
      for (const auto& metric : metrics()) {
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          for (const bool biased : {false, true}) {
            if (biased && !has_bias(weighting)) continue;
            const Options how{.metric = metric.metric, .weighting = weighting, .causal = true};
            Decoded three(c, dtype);
            three.prepare(how, biased);
            if (!refused(three.ours.inputs(), how).empty()) continue;
            three.compare(how, std::string(c.name) + " " + metric.name + " " +
                                   std::string(name_of(dtype)) + (biased ? " biased" : ""));
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Weightings, CpuDecode, testing::ValuesIn(weightings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foci
