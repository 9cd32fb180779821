// SPDX-License-Identifier: Apache-2.0
// Full metrics as products for softmax on tensor cores: which heads they serve, and the tolerance
// rule around plain loops and through the whole backend.
#include "cuda/full_metric_run.hpp"

namespace foci::cuda {
namespace {

/// The others get what ours has, spread and moved.
void shape_keys(Made& made, double condition, double mean) {
  const std::int64_t D = made.c.D;
  for (const char* name : {"q", "k"}) {
    Tensor wide = Tensor::copy(made[name], DType::f64);
    for (std::int64_t i = 0; i < wide.view().count(); ++i) {
      const double part = D == 1 ? 0 : double(i % D) / double(D - 1);
      wide.data<double>()[i] = wide.data<double>()[i] * std::pow(condition, -0.5 * part) + mean;
    }
    made.put(name, Tensor::copy(wide, made.dtype));
  }
}

struct Multiplied {
  const char* name;
  Options how;
  double condition, mean;
  bool expected;
};

/// Keys that are spread evenly multiply; where little is left of a difference of products, lines.
TEST(FullProducts, serve_where_they_suffice) {
  const KeyCovariance raw{}, prior{.ridge = 1e-6, .prior = 16.0};
  const Given given{Form::product, Extent::full};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Multiplied& of :
         {Multiplied{"raw", {.metric = raw}, 1, 0, true},
          {"scaled", {.metric = prior, .scale = 0.25}, 4, 0.5, true},
          {"detached", {.metric = prior, .metric_grad = MetricGrad::detached}, 1, 0, true},
          {"given", {.metric = given, .scale = 0.25}, 1, 0, true},
          {"given causal", {.metric = given, .scale = 0.25, .causal = true}, 1, 0, true},
          {"ill", {.metric = raw}, 1e6, 0, false},
          {"far", {.metric = raw}, 1, 100, false}}) {
      Rule rule;
      for (std::uint64_t seed = 1; seed <= 4 && (seed <= 1 || !rule.holds()); ++seed) {
        Three three({"products", 1, 4, 2, 24, 530, 16, 8, Masked::holes}, dtype, 1, seed);
        shape_keys(three.ours, of.condition, of.mean);
        give_metric(three.ours, of.how.metric);
        const Ran ran = draw(rule, three, of.how, {}, {.products = true});
        for (const int chosen : ran.multiplied) EXPECT_EQ(chosen != 0, of.expected) << of.name;
      }
      rule.expect(of.name);
    }
  }
}

/// A call as training makes it: o and lse for the way back, then gradients.
void train(Made& made, Options how, Backend backend, bool deterministic) {
  how.backend = backend;
  const Case& c = made.c;
  const Inputs from = made.inputs();
  std::vector<std::byte> memory(need(from, how, 1).workspace);
  const Call call{.workspace = memory,
                  .deterministic = deterministic,
                  .lse_for_backward = backend == Backend::cuda};
  Outputs to;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  Tensor lse(made.dtype == DType::f64 ? DType::f64 : DType::f32, {c.B, c.H, c.N});
  to.lse = lse;
  attend(to, from, how, call);
  attend_backward(gradients_of(made, from, how, false), from, to, how, call);
}

void expect_training(const Multiplied& of, const Case& c, DType dtype, bool deterministic = true) {
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 4 && (seed <= 1 || !rule.holds()); ++seed) {
    Three three(c, dtype, 1, seed);
    shape_keys(three.ours, of.condition, of.mean);
    give_metric(three.ours, of.how.metric);
    for (const char* name : {"q", "k", "v", "v_prev", "d_o", "metric", "key_mask"})
      three.share(name);
    if (three.ours.find("metric"))
      three.exact.put("metric", Tensor::copy(three.ours["metric"], DType::f32));
    train(three.ours, of.how, Backend::cuda, deterministic);
    train(three.naive, of.how, Backend::ref, deterministic);
    train(three.exact, of.how, Backend::ref, deterministic);
    rule.add(three.ours, three.naive, three.exact);
  }
  rule.expect(std::string(of.name) + " " + c.name);
}

/// The whole way through the backend, on tensor cores or not.
TEST(FullProducts, go_through_the_backend) {
  const KeyCovariance raw{}, prior{.ridge = 1e-6, .prior = 16.0};
  const Given given{Form::product, Extent::full};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Multiplied& of : {Multiplied{"raw", {.metric = raw}, 1, 0, true},
                                 {"scaled", {.metric = prior, .scale = 0.25}, 4, 0.5, true},
                                 {"given", {.metric = given, .scale = 0.1}, 1, 0, true},
                                 {"ill", {.metric = raw}, 1e6, 0, false},
                                 {"far", {.metric = raw}, 30, 1, false}}) {
      expect_training(of, {"narrow", 1, 4, 2, 40, 600, 16, 16, Masked::holes}, dtype);
    }
    for (const Multiplied& of : {Multiplied{"raw", {.metric = raw}, 1, 0, true},
                                 {"uneven", {.metric = raw}, 30, 0, true},
                                 {"moved", {.metric = raw, .scale = 0.5}, 1, 0.7, true}})
      expect_training(of, {"wide", 1, 1, 1, 64, 520, 64, 64}, dtype);
    expect_training({"raw", {.metric = raw}, 1, 0, true}, {"odd", 1, 2, 1, 20, 520, 72, 40}, dtype);
  }
}

/// Every chunk its own metric: whole blocks, a mask that makes chunks long and a cache before, and
/// keys that are left to lines. dq in any order is what tensor cores have there.
TEST(FullProducts, go_along_the_prefix) {
  KeyCovariance own{.scope = Scope::prefix}, often = own;
  often.period = 24;
  const Options whole{.metric = own, .causal = true};
  Options short_chunks = whole, detached = whole;
  short_chunks.metric = often;
  detached.metric_grad = MetricGrad::detached;
  for (const DType dtype : {DType::bf16, DType::f16})
    expect_training({"prefix", whole, 1, 0, true}, {"narrow", 1, 2, 1, 70, 520, 16, 16}, dtype,
                    false);
  const DType bf16 = DType::bf16;
  expect_training({"detached", detached, 4, 0.5, true},
                  {"holes", 2, 2, 2, 20, 530, 24, 16, Masked::holes}, bf16, false);
  expect_training({"period 24", short_chunks, 1, 0, true}, {"wide", 1, 1, 1, 30, 520, 72, 40}, bf16,
                  false);
  expect_training({"far", whole, 1, 100, false}, {"left to lines", 1, 1, 1, 10, 520, 16, 16}, bf16,
                  false);
}

}  // namespace
}  // namespace foci::cuda
