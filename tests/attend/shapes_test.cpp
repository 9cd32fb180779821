// SPDX-License-Identifier: Apache-2.0
// Awkward shapes and values: every case of the table in every type, strides, packed sequences, rows
// that see no key, NaN that stays in its row, large and small numbers, orders of keys.
#include "mechanisms.hpp"

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

double largest_of(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values)
    largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  return largest;
}

double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : std::nan("");
  for (std::size_t i = 0; i < a.size() && !std::isnan(most); ++i) {
    const double apart = a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);
    if (!(apart <= most)) most = apart;
  }
  return most;
}

/// No NaN nobody asked for, everything written, in every shape, mechanism and type; and close to
/// double.
TEST(Shapes, every_case_is_finite_in_every_type) {
  for (const Case& c : shapes()) {
    if (c.N * c.M > 5000) continue;
    for (const auto& metric : metrics()) {
      for (const auto& weighting : weightings()) {
        for (const bool causal : {false, true}) {
          Options how{.metric = metric.metric, .weighting = weighting.weighting, .causal = causal};
          for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
            Made made(c, 2, dtype);
            give_metric(made, how.metric);
            if (!refused(made.inputs(), how).empty()) break;
            run(made, how);
            for (const std::string& name : results(made)) {
              if (name == "lse") continue;  // -inf where nothing is seen
              for (const double x : made[name].values()) {
                ASSERT_TRUE(std::isfinite(x))
                    << c.name << " " << metric.name << " " << weighting.name << " "
                    << name_of(dtype) << " " << name;
              }
            }
          }
        }
      }
    }
  }
}

/// Lower precision is near double: eps of the type times the size of the answer and a modest
/// factor.
TEST(Shapes, types_agree_with_double) {
  for (const auto& metric : {NamedMetric{"dot", Dot{}},
                             {"layer_change", LayerChange{}},
                             {"key_covariance", KeyCovariance{.ridge = 0.1}}}) {
    Made wide(shape("over_a_tile"), 4);
    run(wide, {.metric = metric.metric});
    for (const auto& [dtype, eps] :
         {std::pair{DType::f32, 0x1p-23}, {DType::f16, 0x1p-10}, {DType::bf16, 0x1p-7}}) {
      Made narrow(shape("over_a_tile"), 4, dtype);
      run(narrow, {.metric = metric.metric});
      const double far = farthest(wide["o"].values(), narrow["o"].values());
      EXPECT_LE(far, 16 * eps * largest_of(wide["o"].values()))
          << metric.name << " " << name_of(dtype);
      EXPECT_GT(far, 0) << "no rounding at all would mean the type was not used";
    }
  }
}

TEST(Shapes, a_row_that_sees_no_key_is_zero) {
  for (const auto& weighting : weightings()) {
    Made made(shape("nothing_to_see"), 2);
    Options how{.weighting = weighting.weighting, .causal = true};
    run(made, how);
    const std::int64_t rows = made.c.H * made.c.N;  // batch entry 0 is masked whole
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t e = 0; e < made.c.E; ++e)
        EXPECT_EQ(made["o"].data<double>()[i * made.c.E + e], 0.0);
      for (std::int64_t d = 0; d < made.c.D; ++d)
        EXPECT_EQ(made["dq"].data<double>()[i * made.c.D + d], 0.0);
      if (made.find("lse")) {
        EXPECT_EQ(made["lse"].data<double>()[i], -std::numeric_limits<double>::infinity());
      }
      EXPECT_EQ(made["concentration"].data<double>()[i], 0.0);
      EXPECT_EQ(made["effective_keys"].data<double>()[i], 0.0);
      EXPECT_EQ(made["largest"].data<double>()[i], 0.0);
      EXPECT_EQ(made["largest_at"].data<std::int64_t>()[i], -1);
    }
    EXPECT_GT(largest_of(made["o"].values()), 0.0) << "the other batch entry has something to see";
  }
}

TEST(Shapes, nan_in_q_stays_in_its_row) {
  for (const auto& metric : metrics()) {
    if (std::holds_alternative<Jacobian>(metric.metric))
      continue;  // its estimate looks at every query
    Made clean(shape("small"), 2), poisoned(shape("small"), 2);
    const Options how{.metric = metric.metric};
    for (Made* made : {&clean, &poisoned}) give_metric(*made, how.metric);
    if (!refused(clean.inputs(), how).empty()) continue;
    poisoned["q"].data<double>()[2 * 4 + 1] = std::nan("");  // batch 0, head 0, query 2
    attend(all_outputs(clean, how), clean.inputs(), how);
    attend(all_outputs(poisoned, how), poisoned.inputs(), how);
    for (std::int64_t i = 0; i < 2 * 4 * 9; ++i) {
      for (std::int64_t e = 0; e < 4; ++e) {
        const double x = poisoned["o"].data<double>()[i * 4 + e];
        if (i == 2) {
          EXPECT_TRUE(std::isnan(x));
        } else {
          EXPECT_EQ(x, clean["o"].data<double>()[i * 4 + e]);
        }
      }
    }
    EXPECT_TRUE(std::isnan(poisoned["concentration"].data<double>()[2]));
    EXPECT_TRUE(std::isnan(poisoned["largest"].data<double>()[2]));
  }
}

/// Transposed, reversed and broadcast inputs, and a strided output, give the same bits as row-major
/// ones.
TEST(Shapes, strides_change_nothing) {
  Made plain(shape("small"), 2);
  const Case& c = plain.c;
  const Options how{.metric = LayerChange{}};
  attend({.o = plain.fresh("o", {c.B, c.H, c.N, c.E}, DType::f64)}, plain.inputs(), how);

  Inputs strided = plain.inputs();
  const Tensor q =
      Tensor::copy(plain["q"].view().swapped(1, 2), DType::f64);  // (B,N,H,D) in memory
  const Tensor k = Tensor::copy(plain["k"].view().swapped(2, 3), DType::f64);
  strided.q = q.view().swapped(1, 2);
  strided.k = k.view().swapped(2, 3);
  Tensor o(DType::f64, {c.B, c.N, c.H, c.E});
  attend({.o = o.view().swapped(1, 2)}, strided, how);
  EXPECT_EQ(Tensor::copy(o.view().swapped(1, 2), DType::f64).values(), plain["o"].values());

  Made broadcast(shape("small"), 2);
  Inputs shared = broadcast.inputs();
  shared.q.strides[0] = 0;  // every batch entry asks the same
  Made copied(shape("small"), 2);
  std::copy_n(copied["q"].data<double>(), 4 * 9 * 4, copied["q"].data<double>() + 4 * 9 * 4);
  attend({.o = broadcast.fresh("o", {c.B, c.H, c.N, c.E}, DType::f64)}, shared, how);
  attend({.o = copied.fresh("o", {c.B, c.H, c.N, c.E}, DType::f64)}, copied.inputs(), how);
  EXPECT_EQ(broadcast["o"].values(), copied["o"].values());
}

TEST(Shapes, no_batch_leaves_no_gradient_unwritten) {
  Made none({"none", 0, 2, 1, 3, 3, 4, 4});
  Tensor m(DType::f64, {1, 1, 1, 4});
  none.put("metric", std::move(m));
  const View dmetric = none.fresh("dmetric", {1, 1, 1, 4}, DType::f64);
  attend_backward({.d_o = none.find("d_o"), .dmetric = dmetric}, none.inputs(), {},
                  {.metric = Given{}});
  EXPECT_EQ(none["dmetric"].values(), std::vector<double>(4, 0.0));
}

TEST(Shapes, decay_alone_ignores_the_metric) {
  Made plain(shape("small")), other(shape("small"));
  const Options dot{.weighting = Decay{}, .causal = true};
  Options covariance = dot;
  covariance.metric = KeyCovariance{};
  other["k"].data<double>()[0] = std::nan("");
  attend(all_outputs(plain, dot), plain.inputs(), dot);
  attend(all_outputs(other, covariance), other.inputs(), covariance);
  EXPECT_EQ(plain["o"].values(), other["o"].values());
}

TEST(Values, large_and_small_do_not_overflow) {
  for (const double size : {1e4, 1e-4}) {
    for (const auto& metric : metrics()) {
      for (const auto& weighting : weightings()) {
        Made made(shape("small"), 2, DType::f32, size);
        Options how{.metric = metric.metric, .weighting = weighting.weighting, .causal = true};
        give_metric(made, how.metric);
        if (auto* covariance = std::get_if<KeyCovariance>(&how.metric))
          covariance->ridge = 1e-2 * size * size;
        if (!refused(made.inputs(), how).empty()) continue;
        attend(all_outputs(made, how), made.inputs(), how);
        for (const char* name : {"o", "concentration", "effective_keys", "largest"}) {
          for (const double x : made[name].values())
            ASSERT_TRUE(std::isfinite(x))
                << metric.name << " " << weighting.name << " " << name << " " << size;
        }
      }
    }
  }
}

/// Weights do not depend on the unit of the scores where the formula does not: no row drowns in
/// f32.
TEST(Values, rescaled_rows_survive_any_unit) {
  for (const double size : {1e-6, 1e6}) {
    for (const Rescale rescale : {Rescale::l1, Rescale::l2}) {
      for (const Weighting& weighting : {Weighting(Relu2{rescale}), Weighting(Identity{rescale})}) {
        Made one(shape("small"), 2, DType::f32), scaled(shape("small"), 2, DType::f32);
        for (const char* name : {"q", "k"}) {
          for (std::int64_t i = 0; i < scaled[name].view().count(); ++i)
            scaled[name].data<float>()[i] *= float(size);
        }
        attend(all_outputs(one, {.weighting = weighting}), one.inputs(), {.weighting = weighting});
        attend(all_outputs(scaled, {.weighting = weighting}), scaled.inputs(),
               {.weighting = weighting});
        EXPECT_LE(farthest(one["o"].values(), scaled["o"].values()), 1e-4) << size;
      }
    }
  }
}

/// A bias of -inf is a mask: weight 0, no NaN forward or backward.
TEST(Values, minus_infinity_as_bias_hides_a_key) {
  Made made(shape("small"), 2);
  Tensor bias(DType::f64, {2, 4, 9});
  for (int h = 0; h < 8; ++h)
    bias.data<double>()[h * 9 + 3] = -std::numeric_limits<double>::infinity();
  for (int j = 0; j < 9; ++j)
    bias.data<double>()[j] = -std::numeric_limits<double>::infinity();  // head 0 sees nothing
  made.put("key_bias", std::move(bias));
  run(made, {});
  for (const char* name : {"o", "dq", "dk", "dv", "dkey_bias"}) {
    for (const double x : made[name].values()) ASSERT_TRUE(std::isfinite(x)) << name;
  }
  EXPECT_EQ(made["largest"].data<double>()[0], 0.0);
  EXPECT_GT(made["largest"].data<double>()[9], 0.0);
}

TEST(Values, order_of_keys_does_not_matter) {
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      const Options how{.metric = metric.metric, .weighting = weighting.weighting};
      Made one(shape("small"), 2), turned(shape("small"), 2);
      for (Made* made : {&one, &turned}) give_metric(*made, how.metric);
      if (!refused(one.inputs(), how).empty() || std::holds_alternative<Decay>(how.weighting))
        continue;
      for (const char* name : {"k", "v", "v_prev"}) {
        for (int s = 0; s < 4; ++s) {
          double* rows = turned[name].data<double>() + s * 36;
          std::rotate(rows, rows + 5 * 4, rows + 36);
        }
      }
      attend(all_outputs(one, how), one.inputs(), how);
      attend(all_outputs(turned, how), turned.inputs(), how);
      for (const char* name : {"o", "concentration", "largest"}) {
        const double far = farthest(one[name].values(), turned[name].values());
        EXPECT_LE(far, 1e-11 * (1 + largest_of(one[name].values())))
            << metric.name << " " << weighting.name << " " << name;
      }
    }
  }
}

/// Distances do not change when q and k move together.
TEST(Values, full_metric_does_not_feel_an_offset) {
  Made here(shape("over_a_tile"), 2, DType::f32), there(shape("over_a_tile"), 2, DType::f32);
  const Options how{.metric = KeyCovariance{.ridge = 1e-2}};
  for (const char* name : {"q", "k"}) {
    for (std::int64_t i = 0; i < there[name].view().count(); ++i)
      there[name].data<float>()[i] += 64;
  }
  attend(all_outputs(here, how), here.inputs(), how);
  attend(all_outputs(there, how), there.inputs(), how);
  // Adding 64 costs six bits of q and k themselves; nothing more may be lost.
  EXPECT_LE(farthest(here["o"].values(), there["o"].values()),
            64 * 0x1p-19 * largest_of(here["o"].values()));
}

}  // namespace
}  // namespace foci
