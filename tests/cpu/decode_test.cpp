// SPDX-License-Identifier: Apache-2.0
// Decoding on the CPU backend, token by token, against the full causal pass of ref in double by the
// tolerance rule: every metric, weighting, type and instruction set. And what holds to the bit.
#include "allocations.hpp"
#include "steps.hpp"
#include "three.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>

#include <cstring>

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

bool has_bias(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return !std::holds_alternative<Linear>(weighting) && (!decay || decay->content);
}

void expect_equal_bits(const Made& a, const Made& b, const std::string& what) {
  for (const std::string& name : results(a)) {
    const View& view = a[name];
    EXPECT_EQ(std::memcmp(view.data, b[name].view().data,
                          std::size_t(view.count()) * size_of(view.dtype)),
              0)
        << what << " " << name;
  }
}

struct Decoded : Three {
  using Three::Three;
  void prepare(const Options& how, bool biased) {
    give_metric(ours, how.metric);
    if (biased) ours.normal("key_bias", {ours.c.B, ours.c.H, ours.c.M}, 1);
    for (const char* name : {"q", "k", "v", "v_prev", "metric", "key_bias", "key_mask"})
      share(name);
  }
  void compare(Options how, const std::string& what) {
    how.backend = Backend::ref;
    attend(decoded_outputs(naive, how), naive.inputs(), how);
    attend(decoded_outputs(exact, how), exact.inputs(), how);
    how.backend = Backend::cpu;
    Decoder decoder(sizes_of(ours.c, ours.dtype), how);
    decode(decoder, ours, decoded_outputs(ours, how), 1);
    Rule rule;
    rule.add(ours, naive, exact);
    rule.expect(what);
    EXPECT_EQ(ours["largest_at"].values(), exact["largest_at"].values()) << what;
    // Again from a reset decoder, several tokens at a time.
    Made again(ours.c, 5, ours.dtype);
    for (const char* name : {"q", "k", "v", "v_prev", "metric", "key_bias"}) {
      if (ours.find(name)) again.put(name, Tensor::copy(ours[name], ours[name].view().dtype));
    }
    decoder.reset();
    decode(decoder, again, decoded_outputs(again, how), 4);
    expect_equal_bits(ours, again, what);
  }
};

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
