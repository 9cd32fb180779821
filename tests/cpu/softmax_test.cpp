// SPDX-License-Identifier: Apache-2.0
// Softmax attention on the CPU backend against ref in double by the tolerance rule, on every
// instruction set: biases, hidden keys, growing scores, what is saved and what is not, causality.
#include "three.hpp"

#include <cstring>

namespace foci {
namespace {

using namespace cases;

TEST(CpuSoftmax, takes_a_bias_per_key) {
  on_every_isa([] {
    for (const std::int64_t heads : {4, 2}) {
      Three three(shape("holes"), DType::f32);
      three.ours.normal("key_bias", {2, heads, 15}, 3);
      three.compare({.metric = LayerChange{}}, "bias");
      three.compare({.metric = Dot{Form::distance}, .causal = true}, "bias, distance");
    }
  });
}

TEST(CpuSoftmax, hides_keys_whose_bias_is_minus_infinity) {
  on_every_isa([] {
    Three three(shape("small"), DType::f32);
    Tensor bias(DType::f32, {2, 4, 9});
    for (int h = 0; h < 8; ++h) bias.data<float>()[h * 9] = -INFINITY;  // the first key of all
    for (int j = 0; j < 9; ++j) bias.data<float>()[j] = -INFINITY;      // every key of one head
    three.ours.put("key_bias", std::move(bias));
    three.compare({}, "hidden");
  });
}

/// Scores that keep growing make every row raise its maximum again and again.
TEST(CpuSoftmax, follows_growing_scores) {
  on_every_isa([] {
    Three three({"growing", 1, 1, 1, 100, 500, 16, 16}, DType::f32);
    float* k = three.ours["k"].data<float>();
    float* q = three.ours["q"].data<float>();
    for (int j = 0; j < 500 * 16; ++j) k[j] = 0.05f * float(j / 16) + 0.01f * k[j];
    for (int i = 0; i < 100 * 16; ++i) q[i] = 1 + 0.1f * q[i];
    three.compare({}, "growing");
  });
}

TEST(CpuSoftmax, holds_at_large_and_small_values) {
  on_every_isa([] {
    for (const double size : {1e4, 1e-4}) {
      Three three(shape("over_a_tile"), DType::f32, size);
      three.compare({.metric = LayerChange{}}, "size " + std::to_string(size));
    }
  });
}

TEST(CpuSoftmax, finds_the_largest_weight_where_ref_finds_it) {
  on_every_isa([] {
    Made ours(shape("vit"), 3, DType::f32), ref(shape("vit"), 3, DType::f32);
    run_on(ours, {.backend = Backend::cpu}, nullptr);
    run_on(ref, {.backend = Backend::ref}, nullptr);
    EXPECT_EQ(ours["largest_at"].values(), ref["largest_at"].values());
  });
}

TEST(CpuSoftmax, needs_nothing_saved) {
  on_every_isa([] {
    Made with(shape("holes"), 3, DType::f32), without(shape("holes"), 3, DType::f32);
    const Options how{.metric = LayerChange{}, .causal = true, .backend = Backend::cpu};
    run_on(with, how, nullptr);
    attend_backward(all_gradients(without, how), without.inputs(), {}, how);
    for (const char* name : {"dq", "dk", "dv"}) {
      EXPECT_LE(farthest(with[name].values(), without[name].values()), 1e-6) << name;
    }
  });
}

/// Rows up to 100 of `name`, to the bit.
void expect_same_past(const Made& a, const Made& b, const char* name) {
  for (std::int64_t h = 0; h < 2; ++h) {
    const std::size_t bytes = 101 * 8 * sizeof(float);
    EXPECT_EQ(std::memcmp(a[name].data<float>() + h * 230 * 8, b[name].data<float>() + h * 230 * 8,
                          bytes),
              0)
        << name;
  }
}

TEST(CpuSoftmax, is_causal_to_the_bit_even_before_infinities) {
  on_every_isa([] {
    for (const Metric& metric : {Metric(Dot{}), Metric(LayerChange{}), Metric(Dot{Form::distance}),
                                 Metric(LayerChange{.form = Form::distance}), Metric(Jacobian{}),
                                 Metric(Jacobian{.form = Form::distance})}) {
      const Options how{.metric = metric, .causal = true, .backend = Backend::cpu};
      const Case c{"causal", 1, 2, 1, 230, 230, 8, 8};
      Made before(c, 3, DType::f32), after(c, 3, DType::f32);
      for (const char* name : {"q", "k", "v", "v_prev"}) {
        const View& view = after[name];
        for (std::int64_t h = 0; h < view.shape[1]; ++h) {
          for (std::int64_t i = 101 * 8; i < 230 * 8; ++i)
            after[name].data<float>()[h * 230 * 8 + i] = INFINITY;
        }
      }
      attend(all_outputs(before, how), before.inputs(), how);
      attend(all_outputs(after, how), after.inputs(), how);
      expect_same_past(before, after, "o");
    }
  });
}

/// Spans of one call that have few keys and many: both passes must take their scores alike.
TEST(CpuSoftmax, spans_with_as_many_keys_as_dimensions) {
  Three three({"as_many", 4, 2, 2, 97, 97, 64, 64}, DType::f32);
  const Options how{.metric = KeyCovariance{}, .causal = true};
  three.answer(how);
  on_every_isa([&](const std::string& isa) {
    Rule rule;
    three.compare(how, rule);
    rule.expect(isa);
  });
}

}  // namespace
}  // namespace foci
