// SPDX-License-Identifier: Apache-2.0
// Estimates of the full metric on the CPU backend: against the formula in more than double, against
// the reference backend, and at their edges.
#include "cpu/choose.hpp"
#include "cpu/full_head.hpp"
#include "thrown.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace foci::cpu {
namespace {

using namespace cases;

std::vector<std::string> warnings;
void remember(std::string_view message) { warnings.emplace_back(message); }

/// Sigma of the first `count` keys in long double.
std::vector<long double> sigma_of(const FullHead& head, std::int64_t count) {
  const std::int64_t D = head.p.size.D;
  const auto& how = *head.p.metric<KeyCovariance>();
  std::vector<long double> mean(D), sigma(D * D);
  for (std::int64_t i = 0; i < count * D; ++i) mean[i % D] += head.keys[i] / (long double)(count);
  const auto n = (long double)(count);
  for (std::int64_t i = 0; i < D; ++i) {
    for (std::int64_t j = 0; j < D; ++j) {
      long double sum = 0;
      for (std::int64_t r = 0; r < count; ++r)
        sum += (head.keys[r * D + i] - mean[i]) * (head.keys[r * D + j] - mean[j]);
      const long double own = i != j ? 0 : count == 0 ? 1 : *how.prior / (n + *how.prior);
      const long double weight = count == 0 ? 0 : n / (n + *how.prior) / std::max(n - 1, 1.0L);
      sigma[i * D + j] = weight * sum + own + (i == j ? how.ridge : 0);
    }
  }
  return sigma;
}

/// Largest entry of W Sigma W' - 1.
double misfit(const FullHead& head, std::int64_t slot) {
  const std::int64_t D = head.p.size.D;
  const auto sigma = sigma_of(head, head.metric.count(slot));
  const double* W = head.metric.at(slot).factor;
  std::vector<long double> half(D * D);
  for (std::int64_t i = 0; i < D; ++i) {
    for (std::int64_t l = 0; l <= i; ++l) {
      for (std::int64_t j = 0; j < D; ++j) half[i * D + j] += W[i * D + l] * sigma[l * D + j];
    }
  }
  long double worst = 0;
  for (std::int64_t i = 0; i < D; ++i) {
    for (std::int64_t j = 0; j < D; ++j) {
      long double sum = i == j ? -1 : 0;
      for (std::int64_t l = 0; l <= j; ++l) sum += half[i * D + l] * W[j * D + l];
      if (!(std::abs(sum) <= worst)) worst = std::abs(sum);
    }
  }
  return double(worst);
}

class KeyCovarianceOf : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& isa = *GetParam();
  KeyCovarianceOf() : before_(set_warning_handler(remember)) { warnings.clear(); }
  ~KeyCovarianceOf() override { set_warning_handler(before_); }

 private:
  WarningHandler before_;
};

TEST_P(KeyCovarianceOf, the_whole_sequence) {
  struct Size {
    std::int64_t n, D;
  };
  for (const auto& [n, D] : {Size{1, 1},
                             {1, 4},
                             {3, 8},
                             {20, 33},
                             {33, 33},
                             {64, 64},
                             {500, 64},
                             {1000, 5},
                             {130, 100}}) {
    for (const float offset : {0.0f, 1e4f, -1e-4f}) {
      Made made({"keys", 1, 1, 1, 2, n, D, 4}, unsigned(n + D), DType::f32);
      move_keys(made, offset);
      FullHead head(isa, made.inputs(), {.metric = KeyCovariance{.ridge = 1e-2}});
      head.estimate();
      EXPECT_LT(misfit(head, 0), 1e-11) << n << ' ' << D << ' ' << offset;
      EXPECT_EQ(head.metric.at(0).raises, 0);
    }
  }
}

TEST_P(KeyCovarianceOf, every_chunk_of_a_prefix) {
  for (const std::int64_t period : {1, 7, 64, 300}) {
    for (const float offset : {0.0f, 1e4f}) {
      Made made({"keys", 1, 1, 1, 200, 200, 17, 4, Masked::holes}, 5, DType::f32);
      move_keys(made, offset);
      FullHead head(isa, made.inputs(),
                    {.metric = KeyCovariance{.ridge = 1e-3, .period = period}, .causal = true});
      head.estimate();
      ASSERT_EQ(head.metric.slots(), (200 + period - 1) / period);
      for (std::int64_t c = 0; c < head.metric.slots(); ++c)
        ASSERT_LT(misfit(head, c), 1e-11) << period << ' ' << c << ' ' << offset;
    }
  }
}

/// The forms the passes use: W in float, its transpose, the centre.
TEST_P(KeyCovarianceOf, is_rounded_once) {
  Made made({"keys", 1, 1, 1, 40, 40, 17, 4}, 5, DType::f32);
  FullHead head(isa, made.inputs(),
                {.metric = KeyCovariance{.ridge = 1e-3, .period = 16}, .causal = true});
  head.estimate();
  for (std::int64_t c = 0; c < 3; ++c) {
    const Whitening of = head.metric.at(c);
    for (int i = 0; i < 17; ++i) {
      for (int j = 0; j < 17; ++j) {
        EXPECT_EQ(of.W[i * 17 + j], float(of.factor[i * 17 + j]));
        EXPECT_EQ(of.Wt[j * 17 + i], of.W[i * 17 + j]);
      }
      double mean = 0;
      for (int r = 0; r < 16 * c; ++r) mean += double(head.keys[r * 17 + i]) / double(16 * c);
      if (c > 0) {
        EXPECT_NEAR(of.centre[i], mean, 1e-7);
      } else {
        EXPECT_EQ(of.centre[i], head.keys[i]);
      }
    }
  }
}

TEST_P(KeyCovarianceOf, a_chunk_does_not_feel_later_keys) {
  Made made({"keys", 1, 1, 1, 64, 64, 8, 4}, 5, DType::f32);
  const Options how{.metric = KeyCovariance{.period = 16}, .causal = true};
  FullHead all(isa, made.inputs(), how);
  all.estimate();
  for (int i = 32 * 8; i < 64 * 8; ++i) made["k"].data<float>()[i] = std::nanf("");
  FullHead head(isa, made.inputs(), how);
  EXPECT_EQ(thrown<NumericalError>([&] { head.estimate(); }),
            "key-covariance: the covariance of sequence 0, key head 0 (48 keys) cannot be "
            "factored, not even with ridge 1e-06 raised tenfold 6 times: raise ridge, or look for "
            "NaN or infinity in k");
  for (std::int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(std::memcmp(all.metric.at(c).factor, head.metric.at(c).factor, 64 * 8), 0) << c;
    EXPECT_EQ(std::memcmp(all.metric.at(c).centre, head.metric.at(c).centre, 8 * 4), 0) << c;
  }
}

/// The steps that may run side by side give the bits of the whole.
TEST_P(KeyCovarianceOf, steps_in_any_order) {
  Made made({"keys", 1, 1, 1, 90, 90, 8, 4}, 5, DType::f32);
  const Options how{.metric = KeyCovariance{.period = 16}, .causal = true};
  FullHead whole(isa, made.inputs(), how), steps(isa, made.inputs(), how);
  whole.estimate();
  for (std::int64_t c = 5; c >= 0; --c) steps.metric.gather_slot(c, steps.keys.data(), steps.room);
  steps.metric.join_slots(5, steps.room);
  for (std::int64_t c = 5; c >= 0; --c) steps.metric.whiten_slot(c, steps.keys.data(), steps.room);
  for (std::int64_t c = 0; c < 6; ++c)
    EXPECT_EQ(std::memcmp(whole.metric.at(c).factor, steps.metric.at(c).factor, 64 * 8), 0);
}

/// Queries that stand behind the first chunks ask for theirs alone.
TEST_P(KeyCovarianceOf, only_what_is_asked_for) {
  Made made({"keys", 1, 1, 1, 3, 64, 8, 4}, 5, DType::f32);
  FullHead head(isa, made.inputs(),
                {.metric = KeyCovariance{.ridge = 0, .prior = 0.0, .period = 16}, .causal = true});
  head.estimate(false);  // chunk 1 and 2 are sound as well; chunk 0 needs no key
  EXPECT_EQ(head.metric.slot_of(0), 3);
  EXPECT_LT(misfit(head, 3), 1e-10);
  for (int i = 0; i < 16 * 8; ++i) made["k"].data<float>()[i] = 1;
  FullHead flat(isa, made.inputs(),
                {.metric = KeyCovariance{.ridge = 0, .prior = 0.0, .period = 16}, .causal = true});
  flat.estimate(false);
  EXPECT_NE(thrown<NumericalError>([&] { flat.estimate(true); }).find("(16 keys)"),
            std::string::npos);
}

/// metric and status as the reference backend writes them, in double, over masks and shared heads.
TEST_P(KeyCovarianceOf, agrees_with_the_reference) {
  for (const char* name : {"small", "padded", "left_padded", "holes", "nothing_to_see",
                           "over_a_tile", "more_keys", "more_queries"}) {
    for (const bool causal : {false, true}) {
      Made made(shape(name)), narrow(shape(name), 1, DType::f32);
      const Options how{.metric = KeyCovariance{.ridge = 1e-2, .period = 4}, .causal = causal};
      Options reference = how;
      reference.backend = Backend::ref;
      const Shape of = metric_shape(made.inputs(), how);
      const Tensor statuses(DType::i32, Shape(of.begin(), of.end() - 2)),
          ours(DType::i32, Shape(of.begin(), of.end() - 2));
      Outputs to{.o = made.fresh("o", {made.c.B, made.c.H, made.c.N, made.c.E}, DType::f64)};
      to.metric = made.fresh("P", of, DType::f64);
      to.status = statuses;
      attend(to, made.inputs(), reference);
      Outputs written{.metric = made.fresh("ours", of, DType::f64), .status = ours};
      for (std::int64_t s = 0; s < made.c.B; ++s) {
        for (std::int64_t g = 0; g < made.c.G; ++g) {
          FullHead head(isa, narrow.inputs(), how, s, g);
          head.estimate();
          head.metric.write(written, head.room);
        }
      }
      EXPECT_EQ(ours.values(), statuses.values());
      const auto expected = made["P"].values(), got = made["ours"].values();
      double largest = 0;
      for (const double x : expected) largest = std::max(largest, std::abs(x));
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 1e-13 * largest) << name << ' ' << causal << ' ' << i;
    }
  }
}

TEST_P(KeyCovarianceOf, each_chunk_raises_its_own_ridge) {
  Made made({"chunks", 1, 1, 1, 12, 12, 2, 2}, 1, DType::f32);
  for (int i = 0; i < 8; ++i) made["k"].data<float>()[i] = i < 6 ? 0 : 4;
  FullHead head(
      isa, made.inputs(),
      {.metric = KeyCovariance{.ridge = 1e-17, .prior = 0.0, .period = 4}, .causal = true});
  head.estimate();
  EXPECT_EQ(head.metric.at(0).raises, 0);
  EXPECT_EQ(head.metric.at(1).raises, 2);
  EXPECT_EQ(head.metric.at(2).raises, 0);
}

TEST_P(KeyCovarianceOf, few_keys_and_hardly_any_ridge_are_said_aloud) {
  Made few({"few", 1, 1, 1, 4, 4, 8, 8}, 1, DType::f32);
  FullHead(isa, few.inputs(), {.metric = KeyCovariance{}}).estimate();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0],
            "key-covariance: as few keys as head dimensions and hardly any ridge or prior: the "
            "metric is at the mercy of rounding (raise ridge, or set prior to the head size)");
  FullHead(isa, few.inputs(), {.metric = KeyCovariance{.prior = 8.0}}).estimate();
  FullHead(isa, few.inputs(), {.metric = KeyCovariance{.ridge = 0.1}}).estimate();
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_P(KeyCovarianceOf, nan_and_infinity_are_named) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Made made({"keys", 2, 2, 2, 30, 30, 9, 4}, 1, DType::f32);
    made.find("k").at<float>({1, 1, 29, 8})[0] = bad;
    for (int g = 0; g < 2; ++g) {
      FullHead head(isa, made.inputs(), {.metric = KeyCovariance{.ridge = 1}}, 1, g);
      if (g == 0) {
        head.estimate();
        continue;
      }
      EXPECT_EQ(thrown<NumericalError>([&] { head.estimate(); }),
                "key-covariance: the covariance of sequence 1, key head 1 (30 keys) cannot be "
                "factored, not even with ridge 1 raised tenfold 6 times: raise ridge, or look for "
                "NaN or infinity in k");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, KeyCovarianceOf,
                         testing::ValuesIn(available().begin(), available().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace foci::cpu
