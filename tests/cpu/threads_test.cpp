// SPDX-License-Identifier: Apache-2.0
// What changes no bit of the CPU backend: the number of threads, other sequences in a pack, how
// tensors lie in memory. And a call with a workspace allocates nothing.
#include "allocations.hpp"
#include "three.hpp"

namespace foci {
namespace {

using namespace cases;

/// Calls f(options, what) for every metric and weighting.
template <class F>
void every_mechanism(F&& f) {
  for (const auto& [metric_name, metric] : metrics()) {
    for (const auto& [weighting_name, weighting] : weightings()) {
      const Options how{.metric = metric,
                        .weighting = weighting,
                        .metric_grad = MetricGrad::through,
                        .backend = Backend::cpu};
      f(how, metric_name + " " + weighting_name);
    }
  }
}

Made made_for(const Case& c, DType dtype, const Options& how) {
  Made made(c, 3, dtype);
  give_metric(made, how.metric);
  return made;
}

#ifdef __SANITIZE_THREAD__
constexpr bool watched = true;  // slow: seven threads show what two would, causal what all does
#else
constexpr bool watched = false;
#endif

void expect_threads_change_nothing(const Case& c, DType dtype, bool causal) {
  Executor two(2), seven(7);
  every_mechanism([&](Options how, std::string what) {
    how.causal = causal;
    Made one = made_for(c, dtype, how);
    if (!served(one, how)) return;
    run_on(one, how, nullptr);
    for (Executor* executor : {&two, &seven}) {
      if (watched && executor == &two) continue;
      Made many = made_for(c, dtype, how);
      run_on(many, how, executor);
      expect_same_bits(one, many, what + " " + std::to_string(executor->threads()));
    }
  });
}

TEST(CpuThreads, change_no_bit) {
  expect_threads_change_nothing(shape("vit"), DType::f32, false);
  on_every_isa(DType::bf16, [] {
    expect_threads_change_nothing({"half", 1, 4, 2, 130, 197, 8, 8}, DType::bf16, true);
  });
}

TEST(CpuThreads, change_no_bit_of_one_long_head) {
  expect_threads_change_nothing({"long", 1, 1, 1, 200, 1000, 8, 8}, DType::f32, false);
}

void expect_no_allocations(const Case& c, DType dtype) {
  Executor two(2);
  every_mechanism([&](const Options& how, const std::string& what) {
    Made made = made_for(c, dtype, how);
    if (!served(made, how)) return;
    const Inputs from = made.inputs();
    const Outputs to = all_outputs(made, how);
    const Gradients back = all_gradients(made, how);
    std::vector<std::byte> workspace(need(from, how, 2).workspace);
    const Call call{.workspace = workspace, .threads = &two};
    const std::int64_t before = allocations;
    attend(to, from, how, call);
    attend_backward(back, from, to, how, call);
    EXPECT_EQ(allocations, before) << what;
  });
}

TEST(CpuCall, allocates_nothing_with_a_workspace) {
  if (watched) GTEST_SKIP() << "nothing here that other tests do not show";
  expect_no_allocations(shape("padded"), DType::f32);
  on_every_isa(DType::bf16, [] {
    expect_no_allocations({"half", 1, 2, 1, 130, 130, 4, 4, Masked::tail}, DType::bf16);
  });
}

/// The same numbers with heads and tokens exchanged in memory, and every second number of a row.
class CpuStrides : public testing::Test {
 protected:
  View exchanged(const View& view) {
    kept_.push_back(Tensor::copy(view.swapped(1, 2), view.dtype));
    return kept_.back().view().swapped(1, 2);
  }
  View spread(const View& view) {
    kept_.push_back(
        Tensor(view.dtype, {view.shape[0], view.shape[1], view.shape[2], 2 * view.shape[3]}));
    View to = kept_.back();
    to.shape[3] /= 2;
    to.strides[3] = 2;
    const std::size_t size = size_of(view.dtype);
    for (std::int64_t i = 0; i < view.count(); ++i) {
      std::memcpy(static_cast<std::byte*>(to.data) + 2 * std::size_t(i) * size,
                  static_cast<std::byte*>(view.data) + std::size_t(i) * size, size);
    }
    return to;
  }
  void expect_no_change(const Case& c, DType dtype) {
    every_mechanism([&](const Options& how, const std::string& what) {
      Made plain = made_for(c, dtype, how), apart = made_for(c, dtype, how);
      if (!served(plain, how)) return;
      const Outputs to = all_outputs(plain, how), other = all_outputs(apart, how);
      Inputs from = plain.inputs();
      attend(to, from, how);
      attend_backward(all_gradients(plain, how), from, to, how);
      from.q = exchanged(from.q);
      from.k = spread(from.k);
      from.v = exchanged(from.v);
      from.v_prev = spread(from.v_prev);
      Gradients back = all_gradients(apart, how);
      back.d_o = exchanged(back.d_o);
      attend(other, from, how);
      attend_backward(back, from, other, how);
      expect_same_bits(plain, apart, what);
      from.q = spread(plain["q"]);
      from.k = exchanged(plain["k"]);
      back.d_o = spread(plain["d_o"]);
      attend(other, from, how);
      attend_backward(back, from, other, how);
      expect_same_bits(plain, apart, what + " spread");
      kept_.clear();
    });
  }

 private:
  std::vector<Tensor> kept_;
};

TEST_F(CpuStrides, change_no_bit) {
  if (watched) GTEST_SKIP() << "one thread, which has no races";
  on_every_isa([&] { expect_no_change(shape("holes"), DType::f32); });
  on_every_isa(DType::bf16, [&] {
    expect_no_change(shape("holes"), DType::bf16);
    expect_no_change({"half", 1, 2, 1, 100, 130, 6, 5}, DType::bf16);
  });
}

class CpuPacked : public testing::Test {
 protected:
  struct Lengths {
    std::int64_t queries[3], keys[3];
    std::int64_t all(const std::int64_t* of) const { return of[0] + of[1] + of[2]; }
  };
  static Tensor offsets(const std::int64_t* lengths) {
    Tensor made(DType::i64, {4});
    for (int s = 0; s < 3; ++s)
      made.data<std::int64_t>()[s + 1] = made.data<std::int64_t>()[s] + lengths[s];
    return made;
  }
  /// Sequence s alone, on the same numbers.
  static Made alone(const Made& all, const Lengths& n, int s, std::int64_t q0, std::int64_t k0) {
    Made one({"one", 1, 4, 2, n.queries[s], n.keys[s], 4, 4}, 6, all.dtype);
    const auto take = [&](const char* name, int axis, std::int64_t begin, std::int64_t count) {
      const View& from = all[name];
      one.put(name, Tensor::copy(from.sliced(axis, begin, begin + count), from.dtype));
    };
    for (const char* name : {"q", "d_o"}) take(name, 2, q0, n.queries[s]);
    for (const char* name : {"k", "v", "v_prev"}) take(name, 2, k0, n.keys[s]);
    take("key_mask", 1, k0, n.keys[s]);
    return one;
  }
  static void expect_part(const Made& all, const Made& one, const char* name, std::int64_t begin,
                          const std::string& what) {
    const View part = all[name].view().sliced(2, begin, begin + one[name].view().shape[2]);
    EXPECT_EQ(Tensor::copy(part, DType::f64).values(), one[name].values()) << what << " " << name;
  }
  static void expect_each_alone(const Lengths& n, const Options& how, const std::string& what,
                                DType dtype = DType::f32) {
    Executor two(2);
    Made all({"packed", 1, 4, 2, n.all(n.queries), n.all(n.keys), 4, 4, Masked::holes}, 6, dtype);
    const Tensor q_offsets = offsets(n.queries), k_offsets = offsets(n.keys);
    Inputs from = all.inputs();
    from.q_offsets = q_offsets;
    from.k_offsets = k_offsets;
    if (!refused(from, how).empty()) return;
    Outputs to = all_outputs(all, how);
    to.metric = {};
    std::vector<std::byte> workspace(need(from, how, 2).workspace);
    const Call call{.workspace = workspace, .threads = &two};
    attend(to, from, how, call);
    Gradients back = all_gradients(all, how);
    back.dmetric = {};
    attend_backward(back, from, to, how, call);
    std::int64_t q0 = 0, k0 = 0;
    for (int s = 0; s < 3; q0 += n.queries[s], k0 += n.keys[s], ++s) {
      Made one = alone(all, n, s, q0, k0);
      run_on(one, how, nullptr);
      for (const char* name : {"o", "largest", "largest_at", "dq"})
        expect_part(all, one, name, q0, what);
      for (const char* name : {"dk", "dv", "dv_prev"}) expect_part(all, one, name, k0, what);
    }
  }
};

/// Short ones among short ones and long ones among long ones: what is best for a few keys is
/// chosen for a pack as a whole.
TEST_F(CpuPacked, sequences_equal_each_alone) {
  every_mechanism([&](Options how, const std::string& what) {
    if (std::holds_alternative<Given>(how.metric)) return;
    for (const bool causal : {false, true}) {
      if (watched && !causal) continue;
      how.causal = causal;
      expect_each_alone({{3, 7, 1}, {5, 7, 9}}, how, what + " short");
      expect_each_alone({{101, 120, 97}, {101, 120, 110}}, how, what + " long");
    }
  });
}

TEST_F(CpuPacked, sequences_of_bf16_equal_each_alone) {
  on_every_isa(DType::bf16, [&] {
    every_mechanism([&](Options how, const std::string& what) {
      if (std::holds_alternative<Given>(how.metric)) return;
      for (const bool causal : {false, true}) {
        if (watched && !causal) continue;
        how.causal = causal;
        expect_each_alone({{3, 7, 1}, {5, 7, 9}}, how, what + " short", DType::bf16);
        expect_each_alone({{101, 220, 197}, {201, 220, 133}}, how, what + " long", DType::bf16);
      }
    });
  });
}

}  // namespace
}  // namespace foci
