// SPDX-License-Identifier: Apache-2.0
// The jacobian metric of every instruction set against its definition in src/ref, by the tolerance
// rule: the estimate, and what a gradient of m made by hand sends back through it. Then the bits:
// threads do not matter, nor do tokens that come later.
#include "cpu/jacobian.hpp"

#include "attend/check.hpp"
#include "cpu/choose.hpp"
#include "mechanisms.hpp"
#include "ref/diagonal_rows.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace foci::cpu {
namespace {

using cases::Case;
using cases::Made;

/// The metric and what dm sends back, of all sequences and key heads one after another.
struct Found {
  std::vector<double> m, dq, dk, dv;
};

/// Calls f with an arena that counts, then with one that holds as much.
template <class F>
void with_arena(F&& f) {
  metric::Arena counting;
  f(counting, false);
  std::vector<std::byte> memory(counting.used() + metric::Arena::alignment);
  metric::Arena arena(memory);
  f(arena, true);
}

/// dm of a number of floats: the same for every arithmetic.
template <class T>
void fill_gradient(T* dm, std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> draw;
  for (std::int64_t i = 0; i < count; ++i) dm[i] = T(float(draw(random)));
}

template <class T>
void keep(std::vector<double>& to, const T* from, std::int64_t count) {
  to.insert(to.end(), from, from + count);
}

/// As src/ref has it, in T: exact in double, naive in float.
template <class T>
Found defined(const Made& made, const Options& how) {
  const metric::Problem p = checks::check(made.inputs(), how);
  Found found;
  const auto run = [&](metric::Arena& arena, bool real) {
    ref::Group<T> group(arena, p);
    ref::DiagonalRows<T> rows(arena, group);
    const std::int64_t M = p.longest_m, D = p.size.D, E = p.size.E;
    ref::Row<T> line = group.row();
    for (T** buffer : {&line.s, &line.a, &line.da, &line.ds}) *buffer = arena.take<T>(M).data();
    for (std::int64_t at = 0; real && at < p.sequences * p.size.G; ++at) {
      group.load(at / p.size.G, at % p.size.G);
      rows.estimate(line);
      const std::int64_t lines = p.scope == Scope::prefix ? group.N : 1;
      std::vector<T> dq(group.R * group.N * D), dk(group.n * D), dv(group.n * E);
      if (lines > 0) {
        keep(found.m, rows.of(0, 0), group.R * lines * D);
        fill_gradient(rows.gradient(0, 0), group.R * lines * D, 3 + at);
        rows.end_backward({}, ref::Accumulate::no, {dq.data(), dk.data(), dv.data(), nullptr});
      }
      keep(found.dq, dq.data(), std::int64_t(dq.size()));
      keep(found.dk, dk.data(), std::int64_t(dk.size()));
      keep(found.dv, dv.data(), std::int64_t(dv.size()));
    }
  };
  with_arena(run);
  return found;
}

struct Run {
  const Kernels& isa;
  Executor* threads = nullptr;
  double before = 0;  // what the gradients are added to
};

Found found_by(const Run& with, const Inputs& from, const Options& how) {
  const metric::Problem p = checks::check(from, how);
  Found found;
  const auto run = [&](metric::Arena& arena, bool real) {
    Tokens tokens = Tokens::take(arena, p);
    DiagonalMetric of = DiagonalMetric::take(arena, p);
    const JacobianRoom room =
        JacobianRoom::take(arena, p, with.threads ? with.threads->threads() : 1);
    for (std::int64_t at = 0; real && at < p.sequences * p.size.G; ++at) {
      tokens.place(p, at / p.size.G);
      of.tokens = &tokens;
      of.g = at % p.size.G;
      const std::int64_t D = p.size.D, E = p.size.E, n = tokens.n;
      std::vector<float> k(n * D), v(n * E);
      tokens.load(k.data(), p.from.k, of.g, 0, n, D);
      tokens.load(v.data(), p.from.v, of.g, 0, n, E);
      JacobianEstimate estimate(of, with.isa, k.data(), v.data());
      estimate.forward(room, with.threads);
      const std::int64_t lines = of.heads() * of.rows() * D;
      keep(found.m, of.m.data(), lines);
      fill_gradient(of.dm.data(), lines, 3 + at);
      const float before = float(with.before);
      std::vector<float> dq(of.heads() * tokens.at.N * D, before), dk(n * D, before),
          dv(n * E, before);
      estimate.backward({.dq = dq, .dk = dk, .dv = dv, .dv_prev = {}}, room, with.threads);
      keep(found.dq, dq.data(), std::int64_t(dq.size()));
      keep(found.dk, dk.data(), std::int64_t(dk.size()));
      keep(found.dv, dv.data(), std::int64_t(dv.size()));
    }
  };
  with_arena(run);
  return found;
}

/// max|ours - exact| <= 2 max|naive - exact| + eps max|exact|
void expect_near(const char* what, const std::vector<double>& ours,
                 const std::vector<double>& naive, const std::vector<double>& exact) {
  ASSERT_EQ(ours.size(), exact.size()) << what;
  double error = 0, naive_error = 0, largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_TRUE(std::isfinite(ours[i])) << what << " at " << i;
    error = std::max(error, std::abs(ours[i] - exact[i]));
    naive_error = std::max(naive_error, std::abs(naive[i] - exact[i]));
    largest = std::max(largest, std::abs(exact[i]));
  }
  EXPECT_LE(error, 2 * naive_error + 0x1p-23 * largest) << what << ", naive " << naive_error;
}

void expect_near(const Found& ours, const Found& naive, const Found& exact) {
  expect_near("m", ours.m, naive.m, exact.m);
  expect_near("dq", ours.dq, naive.dq, exact.dq);
  expect_near("dk", ours.dk, naive.dk, exact.dk);
  expect_near("dv", ours.dv, naive.dv, exact.dv);
}

void expect_same(const Found& a, const Found& b) {
  EXPECT_EQ(a.m, b.m);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

Options with(const Jacobian& metric) {
  return {.metric = metric, .metric_grad = MetricGrad::through};
}

Options causal(const Jacobian& metric) {
  Options how = with(metric);
  how.causal = true;
  how.allow_leak = metric.scope == Scope::sequence;
  return how;
}

/// Calls f with every instruction set of this machine.
template <class F>
void each_isa(F&& f) {
  for (const Kernels* isa : available()) {
    SCOPED_TRACE(isa->name);
    f(*isa);
  }
}

void check(const Made& made, const Options& how) {
  const Found naive = defined<float>(made, how), exact = defined<double>(made, how);
  each_isa(
      [&](const Kernels& isa) { expect_near(found_by({isa}, made.inputs(), how), naive, exact); });
}

TEST(Jacobian, every_shape_and_scope) {
  for (const Case& c : cases::shapes()) {
    for (const Normalize normalize : {Normalize::max, Normalize::mean, Normalize::none}) {
      if (c.N > 100 && normalize != Normalize::max) continue;  // ref takes its time
      SCOPED_TRACE(std::string(c.name) + " normalize " + std::to_string(int(normalize)));
      const Made made(c, 5, DType::f32);
      check(made, with({.normalize = normalize}));
      check(made, causal({.normalize = normalize}));
      check(made, causal({.normalize = normalize, .scope = Scope::sequence}));
    }
  }
}

/// Sizes around panels, tiles and blocks of keys; few keys for many coordinates, and the reverse.
TEST(Jacobian, sizes_around_tiles) {
  const Case sizes[] = {{"", 1, 2, 1, 3, 97, 64, 64},  {"", 1, 1, 1, 2, 200, 33, 17},
                        {"", 1, 1, 1, 4, 4, 80, 96},   {"", 1, 1, 1, 3, 193, 7, 31},
                        {"", 1, 2, 1, 99, 99, 24, 40}, {"", 1, 1, 1, 2, 96, 15, 1},
                        {"", 1, 1, 1, 40, 289, 1, 32}};
  for (const Case& c : sizes) {
    SCOPED_TRACE(std::to_string(c.M) + " keys, " + std::to_string(c.D) + ", " +
                 std::to_string(c.E));
    check(Made(c, 11, DType::f32), with({}));
    check(Made(c, 12, DType::f32), causal({}));
  }
}

TEST(Jacobian, every_type) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Made made(cases::shape("holes"), 7, dtype);
    check(made, with({}));
    check(made, causal({}));
  }
}

/// From weights that are all alike to weights of one key alone, and with a far offset, where a
/// difference of large sums would have nothing left.
TEST(Jacobian, large_small_and_far_values) {
  for (const double size : {1e-4, 3.0, 10.0, 1e4}) {
    SCOPED_TRACE(size);
    check(Made(cases::shape("over_a_tile"), 3, DType::f32, size), with({}));
  }
  Made made(cases::shape("over_a_tile"), 3, DType::f32);
  for (const char* name : {"k", "v"}) {
    Tensor far = Tensor::copy(made[name], DType::f32);
    for (std::int64_t i = 0; i < far.view().count(); ++i) far.data<float>()[i] += 100.0f;
    made.put(name, std::move(far));
  }
  check(made, with({}));
}

/// linear's own scale is not the estimate's.
TEST(Jacobian, scale) {
  const Made made(cases::shape("small"), 9, DType::f32);
  const Kernels& isa = *available().front();
  Options how = with({.normalize = Normalize::none});
  how.scale = 0.3;
  check(made, how);
  const Found scaled = found_by({isa}, made.inputs(), how);
  how.weighting = Linear{};
  check(made, how);
  const Found linear = found_by({isa}, made.inputs(), how);
  EXPECT_NE(linear.m, scaled.m);
  how.scale = {};
  EXPECT_EQ(found_by({isa}, made.inputs(), how).m, linear.m);
}

TEST(Jacobian, queries_apart_in_memory) {
  const Case& c = cases::shape("small");
  Made made(c, 2, DType::f32);
  Tensor apart(DType::f32, {c.B, c.H, c.N, c.D + 3});
  for (std::int64_t line = 0; line < c.B * c.H * c.N; ++line)
    std::copy_n(made["q"].data<float>() + line * c.D, c.D, apart.data<float>() + line * (c.D + 3));
  Inputs from = made.inputs();
  from.q = apart.view();
  from.q.shape[3] = c.D;
  each_isa([&](const Kernels& isa) {
    expect_same(found_by({isa}, from, with({})), found_by({isa}, made.inputs(), with({})));
  });
}

TEST(Jacobian, gradients_are_added) {
  const Made made(cases::shape("holes"), 4, DType::f32);
  each_isa([&](const Kernels& isa) {
    const Found plain = found_by({isa}, made.inputs(), with({}));
    const Found added = found_by({.isa = isa, .before = 64}, made.inputs(), with({}));
    const auto expect_on_top = [](const std::vector<double>& x, const std::vector<double>& y) {
      ASSERT_EQ(x.size(), y.size());
      for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], 64 + y[i], 1e-3);
    };
    expect_on_top(added.dq, plain.dq);
    expect_on_top(added.dk, plain.dk);
    expect_on_top(added.dv, plain.dv);
  });
}

TEST(Jacobian, threads_change_no_bit) {
  const Made made({"", 1, 2, 1, 197, 197, 16, 24}, 6, DType::f32);
  const Inputs from = made.inputs();
  each_isa([&](const Kernels& isa) {
    for (const Options& how : {with({}), causal({})}) {
      const Found alone = found_by({isa}, from, how);
      for (const int count : {1, 2, 7}) {
        Executor threads(count);
        expect_same(found_by({isa, &threads}, from, how), alone);
        Found inside;  // from a task of the same threads, on which a run stays
        threads.run(2, [&](std::int64_t task, int) {
          if (task == 0) inside = found_by({isa, &threads}, from, how);
        });
        expect_same(inside, alone);
      }
    }
  });
}

/// NaN and infinity in later tokens, and any change of them, leave a row of m as it is.
TEST(Jacobian, later_tokens_change_no_bit) {
  const Case c{"", 1, 2, 1, 110, 110, 8, 11};
  const Made whole(c, 8, DType::f32);
  for (const std::int64_t t : {1, 15, 16, 95, 96, 109}) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""), 3.0f}) {
      Made made(c, 8, DType::f32);
      for (const char* name : {"q", "k", "v"}) {
        Tensor changed = Tensor::copy(made[name], DType::f32);
        const std::int64_t heads = changed.view().shape[1], width = changed.view().shape[3];
        for (std::int64_t h = 0; h < heads; ++h)
          std::fill_n(changed.data<float>() + (h * c.N + t) * width, (c.N - t) * width, bad);
        made.put(name, std::move(changed));
      }
      each_isa([&](const Kernels& isa) {
        const Found before = found_by({isa}, whole.inputs(), causal({}));
        const Found after = found_by({isa}, made.inputs(), causal({}));
        for (std::int64_t r = 0; r < c.H; ++r) {
          for (std::int64_t i = r * c.N * c.D; i < (r * c.N + t) * c.D; ++i)
            ASSERT_EQ(before.m[i], after.m[i]) << t << ' ' << bad << ' ' << i;
        }
      });
    }
  }
}

/// Everything a call through the estimate gives, of two packed sequences and of each alone.
TEST(Jacobian, packed_sequences_stay_apart) {
  constexpr std::int64_t length[] = {3, 37}, total = 40;
  for (const bool is_causal : {false, true}) {
    Options how = is_causal ? causal({}) : with({});
    how.backend = Backend::cpu;
    Made all({"packed", 1, 4, 2, total, total, 8, 8}, 6, DType::f32);
    Tensor offsets(DType::i64, {3});
    offsets.data<std::int64_t>()[1] = length[0];
    offsets.data<std::int64_t>()[2] = total;
    Inputs from = all.inputs();
    from.q_offsets = from.k_offsets = offsets;
    const View o = all.fresh("o", {1, 4, total, 8}, DType::f32);
    const View dq = all.fresh("dq", {1, 4, total, 8}, DType::f32);
    const View dk = all.fresh("dk", {1, 2, total, 8}, DType::f32);
    const View dv = all.fresh("dv", {1, 2, total, 8}, DType::f32);
    attend({.o = o}, from, how);
    attend_backward({.d_o = all.find("d_o"), .dq = dq, .dk = dk, .dv = dv}, from, {}, how);
    for (std::int64_t s = 0, first = 0; s < 2; first += length[s++]) {
      const auto part = [&](const char* name) {
        return Tensor::copy(all[name].view().sliced(2, first, first + length[s]), DType::f32);
      };
      Made one({"one", 1, 4, 2, length[s], length[s], 8, 8}, 6, DType::f32);
      for (const char* name : {"q", "k", "v", "d_o"}) one.put(name, part(name));
      cases::run(one, how);
      for (const char* name : {"o", "dq", "dk", "dv"}) {
        const std::vector<double> ours = part(name).values(), alone = one[name].values();
        for (std::size_t i = 0; i < alone.size(); ++i)
          ASSERT_NEAR(ours[i], alone[i], 1e-5) << name << ' ' << s << ' ' << i;
      }
    }
  }
}

}  // namespace
}  // namespace foci::cpu
