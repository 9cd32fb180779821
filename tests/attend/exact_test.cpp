// SPDX-License-Identifier: Apache-2.0
// What must hold to the bit: prefix scope is causal, a metric of ones is dot, thread counts change
// nothing.
#include "mechanisms.hpp"

#include <foci/executor.hpp>

#include <gtest/gtest.h>

#include <cstring>

namespace foci {
namespace {

using namespace cases;

/// Bits of rows [0, end) of the third axis.
std::vector<std::uint64_t> bits_before(const Tensor& tensor, std::int64_t end) {
  const View& view = tensor.view();
  const std::int64_t outer = view.shape[0] * view.shape[1];
  const std::int64_t rows = view.shape[2], width = rows == 0 ? 0 : view.count() / (outer * rows);
  std::vector<std::uint64_t> bits;
  for (std::int64_t s = 0; s < outer; ++s) {
    for (std::int64_t i = 0; i < std::min(end, rows) * width; ++i) {
      std::uint64_t word = 0;
      std::memcpy(
          &word,
          tensor.data<std::byte>() + (s * rows * width + i) * std::int64_t(size_of(view.dtype)),
          size_of(view.dtype));
      bits.push_back(word);
    }
  }
  return bits;
}

/// Everything a forward and a backward pass give.
void run_on(Made& made, const Options& how, Executor* threads) {
  const Inputs from = made.inputs();
  std::vector<std::byte> workspace(need(from, how, threads ? threads->threads() : 1).workspace);
  const Call call{.workspace = workspace, .threads = threads};
  const Outputs to = all_outputs(made, how);
  attend(to, from, how, call);
  attend_backward(all_gradients(made, how), from, to, how, call);
}

void expect_same_bits(const Made& a, const Made& b) {
  for (const std::string& name : results(a)) {
    const View& view = a[name];
    EXPECT_EQ(std::memcmp(view.data, b[name].view().data,
                          std::size_t(view.count()) * size_of(view.dtype)),
              0)
        << name;
  }
}

TEST(Causal, tokens_to_come_change_no_bit_of_the_past) {
  const std::int64_t t = 8;
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      Options how{.metric = metric.metric, .weighting = weighting.weighting, .causal = true};
      Made before(shape("holes"), 3);
      give_metric(before, how.metric);
      if (!refused(before.inputs(), how).empty()) continue;
      attend(all_outputs(before, how), before.inputs(), how);
      Made after(shape("holes"), 3);
      give_metric(after, how.metric);
      for (const char* name : {"q", "k", "v", "v_prev"}) {
        const View& view = after[name];
        for (std::int64_t s = 0; s < view.shape[0] * view.shape[1]; ++s) {
          for (std::int64_t i = t * view.shape[3]; i < view.shape[2] * view.shape[3]; ++i) {
            after[name].data<double>()[s * view.shape[2] * view.shape[3] + i] *= -3.5;
          }
        }
      }
      after["key_mask"].data<std::uint8_t>()[t] ^= 1;
      attend(all_outputs(after, how), after.inputs(), how);
      for (const char* name :
           {"o", "lse", "concentration", "effective_keys", "entropy", "largest", "largest_at"}) {
        if (!before.find(name)) continue;
        EXPECT_EQ(bits_before(before[name], t), bits_before(after[name], t))
            << metric.name << " " << weighting.name << " " << name;
      }
      EXPECT_NE(bits_before(before["o"], 15), bits_before(after["o"], 15))
          << metric.name << " " << weighting.name;
    }
  }
}

TEST(Causal, sequence_scope_leaks_which_is_why_it_is_refused) {
  Made before(shape("small"), 3), after(shape("small"), 3);
  const Options how{
      .metric = LayerChange{.scope = Scope::sequence}, .causal = true, .allow_leak = true};
  after["v"].data<double>()[8 * 4] += 100;  // the last token of the first head
  attend(all_outputs(before, how), before.inputs(), how);
  attend(all_outputs(after, how), after.inputs(), how);
  EXPECT_NE(bits_before(before["o"], 8), bits_before(after["o"], 8));
}

TEST(Ones, are_dot_to_the_bit) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const auto& weighting : weightings()) {
      for (const Form form : {Form::product, Form::distance}) {
        Options dot{.metric = Dot{form}, .weighting = weighting.weighting, .causal = true};
        Made plain(shape("holes"), 3, dtype), ones(shape("holes"), 3, dtype);
        if (!refused(plain.inputs(), dot).empty()) continue;
        Options given = dot;
        given.metric = Given{form};
        const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
        Tensor m(DType::f64, {1, 2, 1, 4});
        for (int d = 0; d < 8; ++d) m.data<double>()[d] = 1;
        ones.put("metric", Tensor::copy(m, wide));
        run(plain, dot);
        run(ones, given);
        expect_same_bits(plain, ones);
      }
    }
  }
}

/// When two layers agree, the divisor is 0 and m = 1: dot again.
TEST(Ones, come_from_a_layer_that_changed_nothing) {
  Made plain(shape("padded"), 3), still(shape("padded"), 3);
  still.put("v_prev", Tensor::copy(still["v"], DType::f64));
  run(plain, {});
  for (const Metric& metric :
       {Metric(LayerChange{}), Metric(Flat{}), Metric(LayerChange{.normalize = Normalize::mean})}) {
    Made copy(shape("padded"), 3);
    copy.put("v_prev", Tensor::copy(still["v"], DType::f64));
    run(copy, {.metric = metric});
    expect_same_bits(plain, copy);
  }
}

TEST(Threads, change_no_bit) {
  Executor two(2), seven(7);
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      const Options how{.metric = metric.metric, .weighting = weighting.weighting};
      Made one(shape("padded"), 3, DType::f32);
      give_metric(one, how.metric);
      if (!refused(one.inputs(), how).empty()) continue;
      run(one, how);
      for (Executor* executor : {&two, &seven}) {
        Made many(shape("padded"), 3, DType::f32);
        give_metric(many, how.metric);
        run_on(many, how, executor);
        expect_same_bits(one, many);
      }
    }
  }
}

/// Workspace may start at any address.
TEST(Workspace, needs_no_alignment) {
  Made a(shape("small"), 3), b(shape("small"), 3);
  const Options how{.metric = KeyCovariance{.ridge = 0.1}};
  const Outputs to = all_outputs(a, how), odd = all_outputs(b, how);
  attend(to, a.inputs(), how);
  std::vector<std::byte> room(need(b.inputs(), how).workspace + 1);
  attend(odd, b.inputs(), how, {.workspace = std::span(room).subspan(1)});
  expect_same_bits(a, b);
}

}  // namespace
}  // namespace foci
