// SPDX-License-Identifier: Apache-2.0
// What holds of the CUDA backend whatever the numbers: tokens to come change no bit of the past, a
// metric of ones is dot to the bit, the same call gives the same bits, a NaN stays in its row; keys
// may be permuted, distances moved, products and whitened distances turned.
#include "cpu/three.hpp"
#include "cuda/gpu.hpp"

#include <foci/error.hpp>

namespace foci {
namespace {

using namespace cases;

/// Few keys, and more than a tile of them.
const Case sizes[] = {{"few", 2, 2, 1, 11, 11, 4, 4, Masked::holes},
                      {"tiles", 1, 2, 1, 70, 70, 8, 8}};

/// Calls f(options, what) with every metric and weighting, where the backend serves them.
template <class F>
void each_mechanism(const Case& c, DType dtype, bool causal, F&& f) {
  int turn = 0;
  for (const auto& [metric_name, metric] : metrics()) {
    for (const auto& [weighting_name, weighting] : weightings()) {
      // Long ones here and there: the emulator is slow.
      if (c.N > 20 && ++turn % 11 != 0) continue;
      const Options how{
          .metric = metric, .weighting = weighting, .causal = causal, .backend = Backend::cuda};
      Made made(c, 3, dtype);
      give_metric(made, metric);
      if (!served(made, how, Backend::cuda)) continue;
      f(how, metric_name + " " + weighting_name + " " + c.name + " " + std::string(name_of(dtype)));
    }
  }
}

Made forward(Made made, const Options& how) {
  attend(all_outputs(made, how), made.inputs(), how);
  return made;
}
Made draw(const Case& c, DType dtype, const Options& how) {
  Made made(c, 3, dtype);
  give_metric(made, how.metric);
  return made;
}

/// Line i of head s of a tensor of rank 4, in f32.
float* line(Made& made, const char* name, std::int64_t s, std::int64_t i) {
  const View& view = made[name];
  return made[name].data<float>() + (s * view.shape[2] + i) * view.shape[3];
}
std::int64_t heads(const Made& made, const char* name) {
  return made[name].view().shape[0] * made[name].view().shape[1];
}

/// How many numbers of rows before t differ in any bit.
std::int64_t changed_before(const Tensor& a, const Tensor& b, std::int64_t t) {
  const View& view = a.view();
  const std::vector<double> x = a.values(), y = b.values();
  const std::size_t rows = std::size_t(view.shape[2]);
  const std::size_t each = view.rank == 4 ? std::size_t(view.shape[3]) : 1;
  std::int64_t changed = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]));
    changed += i / each % rows < std::size_t(t) && !same;
  }
  return changed;
}

TEST(CudaCausal, tokens_to_come_change_no_bit_of_the_past) {
  FOCI_WANT_GPU();
  for (const Case& c : sizes) {
    each_mechanism(c, DType::f32, true, [&](const Options& how, const std::string& what) {
      const std::int64_t t = c.N / 2;
      const Made before = forward(draw(c, DType::f32, how), how);
      Made after = draw(c, DType::f32, how);
      for (const char* name : {"q", "k", "v", "v_prev"}) {
        for (std::int64_t s = 0; s < heads(after, name); ++s) {
          for (std::int64_t i = t; i < c.N; ++i) line(after, name, s, i)[i % c.D] = 5.0f;
        }
      }
      after = forward(std::move(after), how);
      for (const char* name : {"o", "lse", "concentration", "entropy", "largest", "largest_at"}) {
        if (!before.find(name)) continue;
        EXPECT_EQ(changed_before(before[name], after[name], t), 0) << what << " " << name;
      }
      EXPECT_GT(changed_before(before["o"], after["o"], c.N), 0) << what;
    });
  }
}

TEST(CudaOnes, are_dot_to_the_bit) {
  FOCI_WANT_GPU();
  for (const Case& c : sizes) {
    for (const auto& [name, weighting] : weightings()) {
      for (const Form form : {Form::product, Form::distance}) {
        Options dot{.metric = Dot{form}, .weighting = weighting, .backend = Backend::cuda};
        Made plain(c, 3, DType::f32), ones(c, 3, DType::f32);
        if (!served(plain, dot, Backend::cuda)) continue;
        Options given = dot;
        given.metric = Given{form};
        Tensor m(DType::f32, {1, c.G, 1, c.D});
        std::fill_n(m.data<float>(), c.G * c.D, 1.0f);
        ones.put("metric", std::move(m));
        run_on(plain, dot, nullptr);
        run_on(ones, given, nullptr);
        expect_same_bits(plain, ones, name + " " + c.name);
      }
    }
  }
}

TEST(CudaAgain, gives_the_same_bits) {
  FOCI_WANT_GPU();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    each_mechanism(sizes[1], dtype, false, [&](const Options& how, const std::string& what) {
      Made once = draw(sizes[1], dtype, how), again = draw(sizes[1], dtype, how);
      run_on(once, how, nullptr);
      run_on(again, how, nullptr);
      expect_same_bits(once, again, what);
    });
  }
}

TEST(CudaNan, stays_in_its_row) {
  FOCI_WANT_GPU();
  for (const Case& c : sizes) {
    each_mechanism(c, DType::f32, false, [&](const Options& how, const std::string& what) {
      Made spoilt = draw(c, DType::f32, how), naive = draw(c, DType::f32, how);
      for (Made* made : {&spoilt, &naive}) line(*made, "q", 0, 3)[1] = NAN;
      Options by_ref = how;
      by_ref.backend = Backend::ref;
      const std::vector<double> a = forward(draw(c, DType::f32, how), how)["o"].values();
      const std::vector<double> b = forward(std::move(spoilt), how)["o"].values();
      const std::vector<double> right = forward(std::move(naive), by_ref)["o"].values();
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < a.size(); ++i)
        wrong += std::isnan(right[i]) ? !std::isnan(b[i]) : a[i] != b[i];
      EXPECT_EQ(wrong, 0) << what;
    });
  }
}

/// o of both calls, but for rounding.
void expect_near(Made& a, Made& b, const Options& how, const std::string& what) {
  for (Made* made : {&a, &b}) attend(all_outputs(*made, how), made->inputs(), how);
  const std::vector<double> x = a["o"].values(), y = b["o"].values();
  double largest = 0;
  for (const double one : x) largest = std::max(largest, std::abs(one));
  EXPECT_LE(farthest(x, y), 2e-4 * largest) << what;
}

TEST(CudaKeys, may_come_in_any_order) {
  FOCI_WANT_GPU();
  const Case cases[] = {{"few", 1, 2, 1, 9, 14, 4, 4}, {"tiles", 1, 2, 1, 66, 91, 8, 8}};
  for (const Case& c : cases) {
    each_mechanism(c, DType::f32, false, [&](const Options& how, const std::string& what) {
      if (std::holds_alternative<Decay>(how.weighting)) return;  // positions are what it looks at
      Made made = draw(c, DType::f32, how), other = draw(c, DType::f32, how);
      for (const char* name : {"k", "v", "v_prev"}) {
        for (std::int64_t j = 0; j < c.M; ++j)
          std::copy_n(line(made, name, 0, j * 5 % c.M), c.D, line(other, name, 0, j));
      }
      expect_near(made, other, how, what);
    });
  }
}

/// x becomes R x + t in the plane of its first two coordinates.
void move_all(Made& made, double angle, float by) {
  const float c = float(std::cos(angle)), s = float(std::sin(angle));
  for (const char* name : {"q", "k"}) {
    for (std::int64_t h = 0; h < heads(made, name); ++h) {
      for (std::int64_t i = 0; i < made[name].view().shape[2]; ++i) {
        float* x = line(made, name, h, i);
        const float first = x[0], second = x[1];
        x[0] = c * first - s * second + by;
        x[1] = s * first + c * second - by;
      }
    }
  }
}

TEST(CudaSpace, has_no_origin_for_distances_and_no_axes_for_full_metrics) {
  FOCI_WANT_GPU();
  for (const Case& c : sizes) {
    each_mechanism(c, DType::f32, false, [&](const Options& how, const std::string& what) {
      const bool full = std::holds_alternative<KeyCovariance>(how.metric);
      const auto* dot = std::get_if<Dot>(&how.metric);
      const auto* random = std::get_if<Random>(&how.metric);
      const bool far = full || (dot && dot->form == Form::distance) ||
                       (random && random->form == Form::distance);
      // Features of linear look at coordinates one by one; what is divided by may be next to 0.
      if (!std::holds_alternative<Softmax>(how.weighting)) return;
      Made made = draw(c, DType::f32, how), moved = draw(c, DType::f32, how),
           turned = draw(c, DType::f32, how);
      move_all(moved, 0, 3);
      if (far) expect_near(made, moved, how, what + " moved");
      move_all(turned, 0.7, 0);
      if (full || dot) expect_near(made, turned, how, what + " turned");
    });
  }
}

/// Over host memory there is somebody to throw to.
TEST(CudaGiven, must_be_semidefinite) {
  FOCI_WANT_GPU();
  const Case& c = shape("small");
  for (const Backend backend : {Backend::cpu, Backend::cuda}) {
    const Options how{.metric = Given{Form::product, Extent::full}, .backend = backend};
    Made made = draw(c, DType::f32, how);
    const View status = made.fresh("status", {c.B, c.G}, DType::i32);
    Outputs to = all_outputs(made, how);
    to.status = status;
    attend(to, made.inputs(), how);
    for (const double raises : made["status"].values()) EXPECT_EQ(raises, 0);
    made["metric"].data<float>()[(c.D + 1) * (c.D - 1)] = -1;  // the last of head 0's diagonal
    EXPECT_THROW(attend(to, made.inputs(), how), InvalidArgument);
  }
}

/// Every query's own chunk decides about the scale, not the first one's.
TEST(CudaScale, auto_under_prefix_is_that_of_all_chunks) {
  FOCI_WANT_GPU();
  const Options how{.metric = KeyCovariance{.ridge = 1e-2, .period = 4, .scope = Scope::prefix},
                    .scale = MatchDot{}};
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    Three three(shape("small"), DType::f32, 1, seed);
    three.answer(how);
    three.compare(how, rule, Backend::cuda);
  }
  rule.expect("scale auto under prefix");
}

}  // namespace
}  // namespace foci
