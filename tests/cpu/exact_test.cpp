// SPDX-License-Identifier: Apache-2.0
// What must hold to the bit on the CPU backend: prefix scope is causal, a metric of ones is dot, a
// row's NaN stays in its row; and the largest weight is found where ref finds it.
#include "three.hpp"

namespace foci {
namespace {

using namespace cases;

/// Bytes of rows [0, end) of the third axis.
std::vector<std::byte> rows_before(const Tensor& tensor, std::int64_t end) {
  const View& view = tensor.view();
  const std::size_t outer = std::size_t(view.shape[0] * view.shape[1]);
  const std::size_t whole = std::size_t(view.count()) * size_of(view.dtype) / outer;
  const std::size_t part = whole / std::size_t(view.shape[2]) * std::size_t(end);
  std::vector<std::byte> bytes;
  for (std::size_t s = 0; s < outer; ++s) {
    const std::byte* first = tensor.data<std::byte>() + s * whole;
    bytes.insert(bytes.end(), first, first + part);
  }
  return bytes;
}

/// Tokens from t on become `what`, in every head.
void replace_after(Made& made, std::int64_t t, float what) {
  for (const char* name : {"q", "k", "v", "v_prev"}) {
    const View& view = made[name];
    const std::int64_t width = view.shape[3], rows = view.shape[2];
    for (std::int64_t s = 0; s < view.shape[0] * view.shape[1]; ++s) {
      for (std::int64_t i = t * width; i < rows * width; ++i) {
        const std::int64_t at = s * rows * width + i;
        if (view.dtype == DType::f32) made[name].data<float>()[at] = what + 0.01f * float(i % 7);
        if (view.dtype == DType::bf16) made[name].data<Bf16>()[at] = Bf16(what + float(i % 7));
      }
    }
  }
}

const char* const row_results[] = {"o",       "lse",     "concentration", "effective_keys",
                                   "entropy", "largest", "largest_at"};

void expect_causal(const Case& c, std::int64_t t, const Options& how, DType dtype,
                   const std::string& what) {
  Made before(c, 3, dtype);
  give_metric(before, how.metric);
  if (!served(before, how)) return;
  attend(all_outputs(before, how), before.inputs(), how);
  for (const float later : {5.0f, INFINITY, NAN}) {
    // Factors of what is infinite do not exist: such a call is refused as a whole.
    if (!std::isfinite(later) && std::holds_alternative<KeyCovariance>(how.metric)) continue;
    Made after(c, 3, dtype);
    give_metric(after, how.metric);
    replace_after(after, t, later);
    attend(all_outputs(after, how), after.inputs(), how);
    for (const char* name : row_results) {
      if (!before.find(name)) continue;
      EXPECT_EQ(rows_before(before[name], t), rows_before(after[name], t))
          << what << " " << name << " before " << later;
    }
    EXPECT_NE(rows_before(before["o"], c.N), rows_before(after["o"], c.N)) << what;
  }
}

TEST(CpuCausal, tokens_to_come_change_no_bit_of_the_past) {
  on_every_isa([] {
    for (const auto& [metric_name, metric] : metrics()) {
      for (const auto& [weighting_name, weighting] : weightings()) {
        const Options how{
            .metric = metric, .weighting = weighting, .causal = true, .backend = Backend::cpu};
        const std::string what = metric_name + " " + weighting_name;
        expect_causal(shape("holes"), 8, how, DType::f32, what);
        expect_causal({"causal", 1, 2, 1, 230, 230, 8, 8}, 101, how, DType::f32, what + " long");
      }
    }
  });
}

TEST(CpuCausal, tokens_to_come_change_no_bit_of_the_past_in_bf16) {
  on_every_isa(DType::bf16, [] {
    for (const auto& [metric_name, metric] : metrics()) {
      for (const auto& [weighting_name, weighting] : weightings()) {
        const Options how{
            .metric = metric, .weighting = weighting, .causal = true, .backend = Backend::cpu};
        const std::string what = metric_name + " " + weighting_name;
        expect_causal(shape("holes"), 8, how, DType::bf16, what);
        expect_causal({"half", 1, 2, 1, 230, 230, 8, 8}, 101, how, DType::bf16, what + " long");
      }
    }
  });
}

void expect_ones_are_dot(const Case& c, DType dtype) {
  for (const auto& [name, weighting] : weightings()) {
    for (const Form form : {Form::product, Form::distance}) {
      const Options dot{
          .metric = Dot{form}, .weighting = weighting, .causal = true, .backend = Backend::cpu};
      Made plain(c, 3, dtype), ones(c, 3, dtype);
      if (!served(plain, dot)) continue;
      Options given = dot;
      given.metric = Given{form};
      Tensor m(DType::f32, {1, c.G, 1, c.D});
      std::fill_n(m.data<float>(), c.G * c.D, 1.0f);
      ones.put("metric", std::move(m));
      run_on(plain, dot, nullptr);
      run_on(ones, given, nullptr);
      expect_same_bits(plain, ones, name + " " + std::string(name_of(dtype)));
    }
  }
}

TEST(CpuOnes, are_dot_to_the_bit) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    on_every_isa(dtype, [&] { expect_ones_are_dot(shape("holes"), dtype); });
  on_every_isa(DType::bf16, [] {
    expect_ones_are_dot({"long", 1, 2, 1, 130, 130, 8, 8}, DType::bf16);
  });
}

/// A query that is NaN spoils what ref says it spoils, its own row or what was estimated from it,
/// and no bit of the rest.
template <class T>
void expect_nan_stays(const Options& how, const std::string& what) {
  const Case c{"nan", 1, 2, 1, 40, 40, 8, 8};
  const DType dtype = dtype_of<T>;
  Made plain(c, 3, dtype), spoilt(c, 3, dtype), naive(c, 3, dtype);
  for (Made* made : {&plain, &spoilt, &naive}) give_metric(*made, how.metric);
  if (!served(plain, how)) return;
  for (Made* made : {&spoilt, &naive}) (*made)["q"].data<T>()[13 * 8 + 2] = T(NAN);
  attend(all_outputs(plain, how), plain.inputs(), how);
  attend(all_outputs(spoilt, how), spoilt.inputs(), how);
  Options by_ref = how;
  by_ref.backend = Backend::ref;
  attend(all_outputs(naive, how), naive.inputs(), by_ref);
  const std::vector<double> a = plain["o"].values(), b = spoilt["o"].values();
  const std::vector<double> right = naive["o"].values();
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool spoils = std::isnan(right[i]);
    wrong += spoils ? !std::isnan(b[i]) : a[i] != b[i];
  }
  EXPECT_EQ(wrong, 0) << what;
}

TEST(CpuNan, stays_in_its_row) {
  for (const auto& [metric_name, metric] : metrics()) {
    for (const auto& [weighting_name, weighting] : weightings()) {
      const Options how{.metric = metric, .weighting = weighting, .backend = Backend::cpu};
      const std::string what = metric_name + " " + weighting_name;
      on_every_isa([&] { expect_nan_stays<float>(how, what); });
      on_every_isa(DType::bf16, [&] { expect_nan_stays<Bf16>(how, what + " bf16"); });
    }
  }
}

TEST(CpuLargest, is_where_ref_finds_it) {
  on_every_isa([] {
    for (const auto& [metric_name, metric] : metrics()) {
      for (const auto& [weighting_name, weighting] : weightings()) {
        Options how{.metric = metric, .weighting = weighting, .backend = Backend::cpu};
        Three three(shape("holes"), DType::f32);
        give_metric(three.ours, metric);
        if (!served(three.ours, how)) continue;
        three.answer(how);
        run_on(three.ours, how, nullptr);
        EXPECT_EQ(three.ours["largest_at"].values(), three.exact["largest_at"].values())
            << metric_name << " " << weighting_name;
      }
    }
  });
}

}  // namespace
}  // namespace foci
