// SPDX-License-Identifier: Apache-2.0
// dot and the diagonal metrics of the CUDA backend against ref in double, by the tolerance rule:
// estimates, folded queries, and the way back. Between them a softmax in plain loops over double
// stands in for the passes, so that what is measured is the metric alone.
#include "cuda/diagonal.cuh"

#include "attend/check.hpp"
#include "cpu/three.hpp"
#include "cuda/softmax_loops.hpp"

namespace foci::cuda {
namespace {

using cases::Case;
using cases::Made;
using cases::Masked;
using cases::Rule;

/// Where sequences begin, (S+1) each; none: not packed.
struct Offsets {
  std::vector<std::int64_t> q, k;
};

struct Setting {
  Case c;
  Options how;
  DType dtype = DType::f32;
  double size = 1;
  Offsets packed = {};
  bool strided = false;         // tokens before heads in memory
  std::int64_t given_rows = 1;  // of a given metric
  bool one_given = false;       // for all sequences
  bool given_heads = false;     // H in place of G
  std::uint64_t draws = 4;
  std::int64_t bias_heads = 0;  // 0: no key_bias
};

Inputs inputs_of(const Made& made, const Setting& s) {
  Inputs from = made.inputs();
  if (s.packed.q.empty()) return from;
  const auto count = std::int64_t(s.packed.q.size());
  from.q_offsets = View(s.packed.q.data(), {count});
  from.k_offsets = View(s.packed.k.data(), {count});
  return from;
}

/// The same numbers with the axes of tokens and heads exchanged in memory.
View exchanged(std::vector<Tensor>& keep, const View& from) {
  if (!from) return from;
  const View other = from.swapped(1, 2);
  keep.push_back(Tensor::copy(other, from.dtype));
  return keep.back().view().swapped(1, 2);
}

struct Tensors {
  Outputs out;
  Gradients back;
};

Tensors tensors_of(Made& made, const Setting& s) {
  const Case& c = s.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto fresh = [&](const char* name, const foci::Shape& shape, DType dtype) {
    return made.fresh(name, shape, dtype);
  };
  Tensors to;
  to.out.o = fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  to.back.d_o = made.find("d_o");
  to.back.dq = fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  to.back.dk = fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  to.back.dv = fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  to.back.dv_prev = fresh("dv_prev", {c.B, c.G, c.M, c.E}, made.dtype);
  const foci::Shape metric = metric_shape(inputs_of(made, s), s.how);
  if (!metric.empty()) {
    to.out.metric = fresh("metric_used", metric, wide);
    to.back.dmetric = fresh("dmetric", metric, wide);
  }
  if (const View bias = made.find("key_bias"))
    to.back.dkey_bias = fresh("dkey_bias", {bias.sizes().begin(), bias.sizes().end()}, wide);
  return to;
}

cuda::Shape shape_of(const metric::Problem& p, const std::vector<int>& q,
                     const std::vector<int>& k) {
  const auto& z = p.size;
  return {int(p.sequences),
          int(z.H),
          int(z.G),
          int(z.N),
          int(z.M),
          int(z.D),
          int(z.E),
          int(p.longest_n),
          int(p.longest_m),
          int(p.how.causal),
          q.empty() ? nullptr : q.data(),
          k.empty() ? nullptr : k.data()};
}

/// Calls f with a metric whose workspace is as large as it said, full of NaN.
template <class F>
void with_metric(const metric::Problem& p, const cuda::Shape& shape, DiagonalMetric::Pass pass,
                 F&& f) {
  Arena counting;
  DiagonalMetric(counting, p, shape, pass, false);
  std::vector<std::byte> memory(counting.used() + Arena::alignment, std::byte(0xff));
  Arena arena(memory);
  DiagonalMetric metric(arena, p, shape, pass, false);
  f(metric);
}

/// Both passes of `made` by DiagonalMetric.
void run_ours(Made& made, const Setting& s) {
  Tensors to = tensors_of(made, s);
  Inputs from = inputs_of(made, s);
  std::vector<Tensor> keep;
  const Tensors plain = to;
  if (s.strided) {
    for (View* view : {&from.q, &from.k, &from.v, &from.v_prev, &to.back.dq, &to.back.dk,
                       &to.back.dv, &to.back.dv_prev, &to.out.o})
      *view = exchanged(keep, *view);
  }
  const metric::Problem p = checks::check(from, s.how);
  const std::vector<int> q(s.packed.q.begin(), s.packed.q.end()),
      k(s.packed.k.begin(), s.packed.k.end());
  const cuda::Shape shape = shape_of(p, q, k);
  with_metric(p, shape, DiagonalMetric::Pass::forward, [&](DiagonalMetric& metric) {
    metric.estimate(to.out, nullptr);
    loops_forward(shape, metric.fold(0, nullptr), Field(to.out.o));
  });
  with_metric(p, shape, DiagonalMetric::Pass::backward, [&](DiagonalMetric& metric) {
    metric.estimate({}, nullptr);
    const Folded folded = metric.fold(0, nullptr);
    loops_backward(shape, folded, Field(to.back.d_o), metric.sinks(to.back));
    metric.gather(0, to.back, nullptr);
    metric.finish(to.back, nullptr);
  });
  if (!s.strided) return;
  const auto put_back = [](const View& to_view, const View& from_view) {
    const Tensor copy = Tensor::copy(from_view, from_view.dtype);
    std::memcpy(to_view.data, copy.view().data,
                std::size_t(to_view.count()) * size_of(to_view.dtype));
  };
  put_back(plain.out.o, to.out.o);
  put_back(plain.back.dq, to.back.dq);
  put_back(plain.back.dk, to.back.dk);
  put_back(plain.back.dv, to.back.dv);
  put_back(plain.back.dv_prev, to.back.dv_prev);
}

void run_ref(Made& made, const Setting& s) {
  const Tensors to = tensors_of(made, s);
  Options how = s.how;
  how.backend = Backend::ref;
  attend(to.out, inputs_of(made, s), how);
  attend_backward(to.back, inputs_of(made, s), to.out, how);
}

void give(Made& made, const Setting& s) {
  if (!std::holds_alternative<Given>(s.how.metric)) return;
  const Case& c = s.c;
  const std::int64_t S = s.packed.q.empty() ? c.B : std::int64_t(s.packed.q.size()) - 1;
  Tensor m = Tensor::copy(
      made.normal("metric", {s.one_given ? 1 : S, s.given_heads ? c.H : c.G, s.given_rows, c.D}, 1),
      DType::f32);
  for (std::int64_t i = 0; i < m.view().count(); ++i)
    m.data<float>()[i] = std::abs(m.data<float>()[i]) + 0.1f;
  made.put("metric", std::move(m));
}

void expect_rule(const Setting& s, const std::string& what) {
  Rule rule;
  for (std::uint64_t seed = 1; seed <= (s.c.N > 30 ? 1 : s.draws); ++seed) {
    cases::Three three(s.c, s.dtype, s.size, seed);
    give(three.ours, s);
    if (s.bias_heads > 0) three.ours.normal("key_bias", {s.c.B, s.bias_heads, s.c.M}, 1);
    for (const char* name : {"q", "k", "v", "v_prev", "d_o", "metric", "key_bias", "key_mask"})
      three.share(name);
    run_ours(three.ours, s);
    run_ref(three.naive, s);
    run_ref(three.exact, s);
    rule.add(three.ours, three.naive, three.exact);
  }
  rule.expect(what + " " + s.c.name + (s.how.causal ? " causal " : " ") +
              std::string(name_of(s.dtype)));
}

/// But for jacobian, which takes long to emulate.
std::vector<cases::NamedMetric> diagonal_metrics() {
  std::vector<cases::NamedMetric> some;
  for (const auto& named : cases::metrics()) {
    const auto* given = std::get_if<Given>(&named.metric);
    const bool full = std::holds_alternative<KeyCovariance>(named.metric) ||
                      (given && given->extent == Extent::full);
    if (!full && !std::holds_alternative<Jacobian>(named.metric)) some.push_back(named);
  }
  some.push_back({"flat_median", Flat{.reduce = Reduce::median}});
  some.push_back({"flat_distance", Flat{.form = Form::distance, .normalize = Normalize::none}});
  return some;
}

bool refused(const Setting& s) {
  Made made(s.c);
  give(made, s);
  return !cases::refused(inputs_of(made, s), s.how).empty();
}

void expect_both(Setting s, const std::string& what) {
  for (const bool causal : {false, true}) {
    s.how.causal = causal;
    if (refused(s)) continue;
    s.how.metric_grad = MetricGrad::detached;
    expect_rule(s, what);
    s.how.metric_grad = MetricGrad::through;
    expect_rule(s, what + " through");
  }
}

TEST(CudaDiagonal, follows_ref) {
  for (const Case& c : cases::shapes()) {
    for (const auto& [name, metric] : diagonal_metrics()) {
      if (c.N < 100 || name == "layer_change")
        expect_both({.c = c, .how = {.metric = metric}}, name);
    }
  }
}

TEST(CudaDiagonal, reads_and_writes_every_type) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [name, metric] : diagonal_metrics())
      expect_both({.c = cases::shape("small"), .how = {.metric = metric}, .dtype = dtype}, name);
  }
}

TEST(CudaDiagonal, reads_eight_at_a_time) {
  const Case wide{"eights", 1, 4, 2, 35, 43, 24, 24, Masked::holes};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [name, metric] : diagonal_metrics())
      expect_both({.c = wide, .how = {.metric = metric}, .dtype = dtype}, name);
  }
}

TEST(CudaDiagonal, heads_may_stand_beside_tokens) {
  for (const std::int64_t D : {5, 16}) {
    const Case c{"strided", 2, 4, 2, 11, 11, D, D};
    for (const auto& [name, metric] : diagonal_metrics())
      expect_both({.c = c, .how = {.metric = metric}, .strided = true}, name);
  }
}

TEST(CudaDiagonal, large_and_small_numbers) {
  for (const double size : {1e4, 1e-4}) {
    for (const auto& [name, metric] : diagonal_metrics())
      expect_both({.c = cases::shape("small"), .how = {.metric = metric}, .size = size}, name);
  }
}

TEST(CudaDiagonal, packed_sequences) {
  const Case c{"packed", 1, 4, 2, 41, 45, 4, 4, Masked::holes};
  const Offsets offsets{{0, 3, 3, 36, 41}, {0, 5, 6, 42, 45}};
  for (const auto& [name, metric] : diagonal_metrics())
    expect_both({.c = c, .how = {.metric = metric}, .packed = offsets}, name);
}

TEST(CudaDiagonal, key_bias_of_either_kind_of_head) {
  for (const std::int64_t heads : {2, 4}) {
    for (const Form form : {Form::product, Form::distance})
      expect_both({.c = cases::shape("small"), .how = {.metric = Dot{form}}, .bias_heads = heads},
                  "dot");
  }
}

TEST(CudaDiagonal, given_in_every_shape) {
  const Case c{"given", 2, 4, 2, 9, 9, 4, 4};
  for (const Form form : {Form::product, Form::distance}) {
    for (const int bits : {0, 1, 2, 3, 4, 5, 6, 7}) {
      expect_both({.c = c,
                   .how = {.metric = Given{form}},
                   .given_rows = bits & 1 ? 9 : 1,
                   .one_given = (bits & 2) != 0,
                   .given_heads = (bits & 4) != 0},
                  "given " + std::to_string(bits));
    }
  }
  const Case packed{"packed", 1, 4, 2, 9, 9, 4, 4};
  const Offsets offsets{{0, 4, 9}, {0, 4, 9}};
  for (const Form form : {Form::product, Form::distance}) {
    for (const int bits : {0, 1, 2}) {
      expect_both({.c = packed,
                   .how = {.metric = Given{form}},
                   .packed = offsets,
                   .given_rows = bits & 1 ? 9 : 1,
                   .one_given = bits > 0},
                  "given packed " + std::to_string(bits));
    }
  }
}

std::vector<cases::NamedMetric> jacobians() {
  return {{"jacobian", Jacobian{}},
          {"jacobian_mean", Jacobian{.normalize = Normalize::mean}},
          {"jacobian_distance", Jacobian{.form = Form::distance, .normalize = Normalize::none}}};
}

TEST(CudaJacobian, follows_ref) {
  for (const char* name : {"small", "one_token", "one_query", "more_queries", "wide_values",
                           "holes", "nothing_to_see", "no_keys"}) {
    for (const auto& [metric_name, metric] : jacobians())
      expect_both({.c = cases::shape(name), .how = {.metric = metric}, .draws = 2}, metric_name);
  }
}

/// More keys than a tile, more columns than a panel.
TEST(CudaJacobian, takes_several_panels) {
  const Case c{"panels", 1, 1, 1, 3, 37, 70, 67};
  expect_both({.c = c, .how = {.metric = Jacobian{}}, .draws = 1}, "jacobian");
}

TEST(CudaJacobian, other_types_strides_and_packed_sequences) {
  const Case packed{"packed", 1, 2, 1, 9, 11, 4, 5, Masked::holes};
  const Offsets offsets{{0, 2, 2, 9}, {0, 3, 4, 11}};
  for (const auto& [name, metric] : jacobians()) {
    const Options how{.metric = metric};
    expect_both({.c = cases::shape("small"), .how = how, .dtype = DType::bf16, .draws = 1}, name);
    expect_both({.c = cases::shape("small"), .how = how, .strided = true, .draws = 1}, name);
    expect_both({.c = packed, .how = how, .packed = offsets, .draws = 2}, name);
  }
}

/// Queries in rounds of a few give what all at once give, but for the order of sums.
TEST(CudaJacobian, rounds_do_not_matter) {
  const Case c{"rounds", 2, 2, 1, 7, 7, 4, 4};
  Made made(c, 1, DType::f32);
  const metric::Problem p =
      checks::check(made.inputs(), {.metric = Jacobian{}, .metric_grad = MetricGrad::through});
  std::vector<float> found[2];
  for (const int few : {0, 1}) {
    JacobianEstimate estimate;
    if (few) estimate.most_signs = 3 * 4 * 16;
    std::vector<std::byte> memory(1 << 16);
    Arena arena(memory);
    estimate.take(arena, p, shape_of(p, {}, {}), false, true);
    EXPECT_EQ(estimate.round, few ? 3 : 7);
    std::vector<float> g(2 * 2 * 4, 0.5f);
    std::vector<float>& all = found[few];
    all.resize((2 * 2 + 2 + 2) * 7 * 4, 0.0f);
    const Field dq = Field::of(all.data(), {2, 2, 7, 4}), dk = Field::of(&all[112], {2, 1, 7, 4}),
                dv = Field::of(&all[168], {2, 1, 7, 4});
    estimate.backward({Field::of(g.data(), {2, 2, 1, 4}), 0, dq, dq, dk, dv}, nullptr);
  }
  for (std::size_t x = 0; x < found[0].size(); ++x) EXPECT_NEAR(found[0][x], found[1][x], 2e-6);
}

}  // namespace
}  // namespace foci::cuda
