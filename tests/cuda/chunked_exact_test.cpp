// SPDX-License-Identifier: Apache-2.0
// What holds to the bit of linear, identity and decay chunk by chunk: rows know nothing of later
// tokens, packed sequences are each alone, statistics change no output; and what must not spread:
// numbers in rows that see nothing and in masked keys.
#include "cuda/by_chunks.hpp"

namespace foci::cuda {
namespace {

/// The first `rows` rows of every head.
std::vector<double> first_rows(const Made& made, const std::string& name, std::int64_t rows) {
  return Tensor::copy(made[name].view().sliced(2, 0, rows), DType::f64).values();
}

TEST(CudaChunked, is_causal_to_the_bit) {
  constexpr std::int64_t t = 101, N = 150, D = 4;
  const Case c{"causal", 1, 2, 1, N, N, D, D};
  each_weighting([&](const std::string& what, const Options& how) {
    if (!how.causal) return;
    Made before(c, 3, DType::f32);
    run_chunked(before, before.inputs(), how);
    for (const float later : {1e3f, INFINITY, std::nanf("")}) {
      Made after(c, 3, DType::f32);
      for (const char* name : {"q", "k", "v", "d_o"}) {
        for (std::int64_t h = 0; h < after[name].view().shape[1]; ++h) {
          for (std::int64_t i = t * D; i < N * D; ++i)
            after[name].data<float>()[h * N * D + i] = later;
        }
      }
      run_chunked(after, after.inputs(), how);
      for (const char* name : {"o", "dq", "concentration", "largest"})
        EXPECT_EQ(first_rows(before, name, t), first_rows(after, name, t)) << what << " " << name;
    }
  });
}

TEST(CudaChunked, what_is_not_seen_may_hold_anything) {
  each_weighting([](const std::string& what, const Options& how) {
    if (!how.causal) return;
    Made made({"early", 1, 2, 2, 40, 9, 4, 4, cases::Masked::holes}, 3, DType::f32);
    for (const char* name : {"q", "d_o"}) {
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t i = 0; i < 31 * 4; ++i)
          made[name].data<float>()[h * 40 * 4 + i] = std::nanf("");
      }
    }
    for (const char* name : {"k", "v"}) {
      for (std::int64_t j = 0; j < 18; ++j) {
        for (int d = 0; d < 4 && made["key_mask"].data<std::uint8_t>()[j % 9] == 0; ++d)
          made[name].data<float>()[j * 4 + d] = std::nanf("");
      }
    }
    run_chunked(made, made.inputs(), how);
    for (const std::string& name : cases::results(made)) {
      for (const double x : made[name].values()) ASSERT_TRUE(std::isfinite(x)) << what << name;
    }
  });
}

TEST(CudaChunked, packed_sequences_equal_each_alone) {
  const std::int64_t lengths[4] = {70, 3, 0, 66};
  each_weighting([&](const std::string& what, const Options& how) {
    Made all({"packed", 1, 2, 1, 139, 139, 4, 4, cases::Masked::holes}, 6, DType::f32);
    Tensor offsets(DType::i64, {5});
    for (int s = 0; s < 4; ++s)
      offsets.data<std::int64_t>()[s + 1] = offsets.data<std::int64_t>()[s] + lengths[s];
    Inputs from = all.inputs();
    from.q_offsets = from.k_offsets = offsets;
    run_chunked(all, from, how);
    for (int s = 0; s < 4; ++s) {
      const std::int64_t first = offsets.data<std::int64_t>()[s], last = first + lengths[s];
      if (first == last) continue;
      Made one({"one", 1, 2, 1, lengths[s], lengths[s], 4, 4}, 6, DType::f32);
      for (const char* name : {"q", "k", "v", "d_o"})
        one.put(name, Tensor::copy(all[name].view().sliced(2, first, last), DType::f32));
      one.put("key_mask",
              Tensor::copy(all["key_mask"].view().sliced(1, first, last), DType::boolean));
      run_chunked(one, one.inputs(), how);
      for (const char* name : {"o", "concentration", "dq", "dk", "dv"}) {
        const View part = all[name].view().sliced(2, first, last);
        EXPECT_EQ(Tensor::copy(part, DType::f64).values(), one[name].values())
            << what << " " << name << " " << s;
      }
    }
  });
}

TEST(CudaChunked, statistics_change_no_output) {
  each_weighting([](const std::string& what, const Options& how) {
    Made with({"with", 1, 1, 1, 80, 80, 4, 4}, 3, DType::f32);
    Made without({"without", 1, 1, 1, 80, 80, 4, 4}, 3, DType::f32);
    run_chunked(with, with.inputs(), how);
    Outputs to;
    to.o = without.fresh("o", {1, 1, 80, 4}, DType::f32);
    Asked(without.inputs(), how).forward(to);
    EXPECT_EQ(with["o"].values(), without["o"].values()) << what;
  });
}

TEST(CudaChunked, finds_the_largest_weight_where_ref_finds_it) {
  for (const bool causal : {false, true}) {
    const Options how{.weighting = Linear{}, .causal = causal, .backend = Backend::ref};
    Made ref(cases::shape("over_a_tile"), 3, DType::f32), ours(ref.c, 3, DType::f32);
    cases::run(ref, how);
    run_chunked(ours, ours.inputs(), how);
    EXPECT_EQ(ours["largest_at"].values(), ref["largest_at"].values());
  }
}

TEST(CudaChunked, serves_products_alone) {
  const Made made(cases::shape("small"), 1, DType::f32);
  const auto served = [&](const Options& how) {
    return chunked_serves(checks::check(made.inputs(), how));
  };
  EXPECT_TRUE(served({.weighting = Linear{}}));
  EXPECT_TRUE(served({.metric = LayerChange{}, .weighting = Identity{}}));
  EXPECT_TRUE(served({.weighting = Decay{}, .causal = true}));
  EXPECT_FALSE(served({.weighting = Identity{Rescale::l1}}));
  EXPECT_FALSE(served({.weighting = Softmax{}}));
  EXPECT_FALSE(served({.metric = Dot{Form::distance}, .weighting = Identity{}}));
}

}  // namespace
}  // namespace foci::cuda
