// SPDX-License-Identifier: Apache-2.0
// decay with content and causal identity on tensor cores against ref by the tolerance rule: chunks
// that end anywhere, rates from next to nothing to 1, groups, keys that have much in common, and
// what it leaves to others.
#include "cuda/train_step.hpp"

namespace foci {
namespace {

using namespace cases;

Options fading(double rate) {
  return {.weighting = Decay{.rate = rate, .content = true}, .causal = true};
}

/// Heads enough for the pass to take them.
Case of_length(std::int64_t N, std::int64_t D, std::int64_t G = 4) {
  return {"", 4, 4, G, N, N, D, D};
}

TEST(CudaChunkedMma, follows_ref) {
  for (const std::int64_t N : {1, 64, 150})
    expect_rule(of_length(N, 64), DType::bf16, fading(0.95), 1, "N = " + std::to_string(N));
  for (const double rate : {1e-3, 0.999, 1.0})
    expect_rule(of_length(140, 64, 2), DType::bf16, fading(rate), 1,
                "rate " + std::to_string(rate));
  expect_rule(of_length(130, 128), DType::bf16, fading(0.9), 1, "wide");
  for (const Rescale rescale : {Rescale::length, Rescale::none})
    expect_rule(of_length(150, 64), DType::bf16,
                {.weighting = Identity{.rescale = rescale}, .causal = true}, 1, "identity");
  expect_rule(of_length(100, 64), DType::bf16, fading(0.9), 30, "large");
}

/// o of a call that asks for nothing else, and of one that asks for statistics too, which goes
/// another way.
struct Both {
  Tensor alone, beside;
};
Both both_of(Made& made, Options how) {
  how.backend = Backend::cuda;
  const Case& c = made.c;
  const auto run = [&](bool statistics) {
    Outputs to;
    to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
    if (statistics) to.concentration = made.fresh("concentration", {c.B, c.H, c.N}, DType::f32);
    attend(to, made.inputs(), how);
    return Tensor::copy(made["o"], made.dtype);
  };
  return {run(false), run(true)};
}
bool same_bits(const Both& both) {
  const View &a = both.alone.view(), &b = both.beside.view();
  return std::memcmp(a.data, b.data, std::size_t(a.count()) * size_of(a.dtype)) == 0;
}

TEST(CudaChunkedMma, serves_bf16_alone) {
  FOCI_WANT_GPU();
  Made bf16(of_length(90, 64), 3, DType::bf16, 1), f16(of_length(90, 64), 3, DType::f16, 1);
  EXPECT_FALSE(same_bits(both_of(bf16, fading(0.9))));
  EXPECT_TRUE(same_bits(both_of(f16, fading(0.9))));
  Made few({"", 1, 4, 4, 90, 90, 64, 64}, 3, DType::bf16, 1);
  EXPECT_TRUE(same_bits(both_of(few, fading(0.9))));
}

/// What rounding S to one number would show in.
TEST(CudaChunkedMma, keeps_the_digits_of_keys_that_have_much_in_common) {
  FOCI_WANT_GPU();
  Rule rule;
  Three three(of_length(150, 64), DType::bf16, 1);
  Tensor q = Tensor::copy(three.ours["q"], DType::f32),
         k = Tensor::copy(three.ours["k"], DType::f32);
  for (std::int64_t i = 0; i < q.view().count(); i += 2) {  // pairs cancel what all keys have
    q.data<float>()[i + 1] = -q.data<float>()[i];
    k.data<float>()[i] += 150, k.data<float>()[i + 1] += 150;
  }
  three.ours.put("q", Tensor::copy(q.view(), DType::bf16));
  three.ours.put("k", Tensor::copy(k.view(), DType::bf16));
  train(three, fading(0.98), true);
  rule.add(three.ours, three.naive, three.exact);
  rule.expect("much in common");
}

}  // namespace
}  // namespace foci
