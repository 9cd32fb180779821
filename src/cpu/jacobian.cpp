// SPDX-License-Identifier: Apache-2.0
// Who works on which query: sizes of J query by query, then their mean or running mean; backwards a
// few queries at a time, each block of keys gathering from all of them in order.
#include "cpu/jacobian.hpp"

#include "metric/normalise.hpp"

#include <cmath>
#include <numeric>
#include <utility>

namespace foci::cpu {

namespace {

/// The mean is summed up in parts of a length that the number of queries alone decides.
constexpr std::int64_t most_parts = 64;
std::int64_t part_length(std::int64_t N) {
  return std::max<std::int64_t>(4, blocks_of(N, most_parts));
}

/// Queries whose share of a key's gradient is summed up apart before it joins the others.
constexpr std::int64_t group = 16;

std::int64_t queries_at_once(const Problem& p, std::int64_t threads) {
  return p.through
             ? std::max(padded(threads, group), std::min(padded(4 * threads, group), 4 * group))
             : threads;
}

}  // namespace

JacobianRoom JacobianRoom::take(Arena& arena, const Problem& p, int threads) {
  JacobianRoom room;
  if (!p.metric<Jacobian>()) return room;
  const std::int64_t D = p.size.D, E = p.size.E, queries = queries_at_once(p, threads);
  room.queries = arena.take<Query>(queries);
  for (std::int64_t i = 0; i < queries; ++i) {
    Query query;
    query.own = arena.take<float>(D);
    query.a = arena.take<float>(p.longest_m);
    query.centre = arena.take<float>(D + E);
    query.J = arena.take<float>(D, line_step(E));
    query.Jt = arena.take<float>(p.through ? E : 0, line_step(D));
    query.size = arena.take<float>(D);
    put(room.queries, i, query);
  }
  room.blocks = arena.take<Block>(threads);
  const std::int64_t back = p.through ? jacobian_keys : 0;
  for (int thread = 0; thread < threads; ++thread) {
    Block block;
    block.pulls = arena.take<float>(jacobian_keys, line_step(D));
    block.apart = arena.take<float>(jacobian_keys, line_step(E));
    for (auto* lines : {&block.of_key, &block.dk}) *lines = arena.take<float>(back, line_step(D));
    for (auto* lines : {&block.of_value, &block.dv}) *lines = arena.take<float>(back, line_step(E));
    block.wide = arena.take<double>(D + p.longest_m + 8 + (keeps_rest(p) ? (D + 2) * (E + 2) : 0));
    put(room.blocks, thread, block);
  }
  room.sums = arena.take<double>(p.heads_per_key(), most_parts, D);
  return room;
}

JacobianEstimate::JacobianEstimate(DiagonalMetric& of, const Kernels& isa, const float* k,
                                   const float* v)
    : of_(of),
      p_(*of.p),
      tokens_(*of.tokens),
      isa_(isa),
      k_(k),
      v_(v),
      D_(of.p->size.D),
      E_(of.p->size.E),
      N_(of.tokens->at.N),
      normalize_(of.p->metric<Jacobian>()->normalize),
      c_(std::holds_alternative<Linear>(of.p->how.weighting) ? 1 / std::sqrt(double(D_))
                                                             : of.p->c) {}

Executor* JacobianEstimate::worth(Executor* threads) const {
  constexpr double enough = 1e6;  // about the work of waking a thread, ten times over
  return double(of_.heads() * N_) * double(tokens_.n * D_ * E_) > enough ? threads : nullptr;
}

void JacobianEstimate::differentiate(Query& query, const Block& block, std::int64_t r,
                                     std::int64_t i) const {
  query.n = counts(i) ? tokens_.sees[i] : 0;
  if (query.n == 0) return;
  const std::int64_t head = of_.g * p_.heads_per_key() + r;
  query.q = tokens_.queries(p_.from.q, head, i, 1, D_, query.own.data());
  isa_.jacobian->differentiate({.q = query.q,
                                .k = k_,
                                .v = v_,
                                .n = query.n,
                                .D = D_,
                                .E = E_,
                                .c = c_,
                                .a = query.a.data(),
                                .centre = query.centre.data(),
                                .J = query.J.data(),
                                .size = query.size.data(),
                                .pulls = block.pulls.data(),
                                .apart = block.apart.data(),
                                .wide = block.wide.data()});
}

JacobianEstimate::Wide JacobianEstimate::widen(const Query& query, const Block& block) const {
  Wide of{};
  double* at = block.wide.data();
  const auto take = [&](std::int64_t count) { return std::exchange(at, at + count); };
  of.kappa = take(D_);
  of.a = take(p_.longest_m + 8);
  of.omega = take(E_);
  of.row = take(E_);
  of.X = take(D_ * E_);
  of.pulls = take(D_);
  of.sum = take(D_);
  const double sum = std::accumulate(of.a, of.a + query.n, 0.0);
  std::fill_n(of.kappa, D_, 0.0);
  std::fill_n(of.omega, E_, 0.0);
  for (std::int64_t j = 0; j < query.n; ++j) {
    of.a[j] /= sum;
    for (std::int64_t d = 0; d < D_; ++d) of.kappa[d] += of.a[j] * double(k_[j * D_ + d]);
    for (std::int64_t e = 0; e < E_; ++e) of.omega[e] += of.a[j] * double(v_[j * E_ + e]);
  }
  return of;
}

/// row = J_d
void JacobianEstimate::differentiate_row(const Wide& of, std::int64_t n, std::int64_t d) const {
  std::fill_n(of.row, E_, 0.0);
  for (std::int64_t j = 0; j < n; ++j) {
    const double pull = c_ * of.a[j] * (double(k_[j * D_ + d]) - of.kappa[d]);
    for (std::int64_t e = 0; e < E_; ++e)
      of.row[e] += pull * (double(v_[j * E_ + e]) - of.omega[e]);
  }
}

void JacobianEstimate::measure_wide(const Query& query, const Block& block, double* to) const {
  const Wide of = widen(query, block);
  for (std::int64_t d = 0; d < D_; ++d) {
    differentiate_row(of, query.n, d);
    to[d] = 0;
    for (std::int64_t e = 0; e < E_; ++e) to[d] += std::abs(of.row[e]);
  }
}

void JacobianEstimate::forward(const JacobianRoom& room, Executor* threads) {
  const std::int64_t heads = of_.heads(), length = part_length(N_), parts = blocks_of(N_, length);
  each(worth(threads), heads * parts, [&](std::int64_t task, int thread) {
    const std::int64_t r = task / parts, part = parts - 1 - task % parts;  // the last see most
    Query& query = room.queries[thread];
    double* sum = room.sums.data() + ((r * most_parts + part) * D_);
    std::fill_n(sum, D_, 0.0);
    for (std::int64_t i = part * length; i < std::min(N_, (part + 1) * length); ++i) {
      const Block& block = room.blocks[thread];
      differentiate(query, block, r, i);
      double* size = block.wide.data();
      if (query.n > 0 && !of_.m_rest.empty()) {
        measure_wide(query, block, size);
      } else {
        for (std::int64_t d = 0; d < D_; ++d) size[d] = query.n > 0 ? double(query.size[d]) : 0.0;
      }
      for (std::int64_t d = 0; d < D_; ++d) sum[d] += size[d];
      if (of_.per_query) of_.put_line(r, i, size);
    }
  });
  for (std::int64_t r = 0; r < heads; ++r) {
    of_.per_query ? finish_running_mean(room, r) : finish_mean(room, r);
  }
}

void JacobianEstimate::normalise(std::int64_t r, std::int64_t row, const double* sum,
                                 std::int64_t counted) const {
  double* raw = of_.room.data();
  for (std::int64_t d = 0; d < D_; ++d) raw[d] = counted > 0 ? sum[d] / double(counted) : 0.0;
  of_.by[r * of_.rows() + row] = metric::normalise(normalize_, counted, raw, D_);
  of_.put_line(r, row, raw);
}

void JacobianEstimate::finish_mean(const JacobianRoom& room, std::int64_t r) const {
  const std::int64_t parts = blocks_of(N_, part_length(N_));
  double* sum = room.sums.data() + (r * most_parts * D_);
  if (parts == 0) std::fill_n(sum, D_, 0.0);
  for (std::int64_t part = 1; part < parts; ++part) {
    for (std::int64_t d = 0; d < D_; ++d) sum[d] += sum[part * D_ + d];
  }
  normalise(r, 0, sum, counted());
}

void JacobianEstimate::finish_running_mean(const JacobianRoom& room, std::int64_t r) const {
  double* sum = room.sums.data() + (r * most_parts * D_);
  std::fill_n(sum, D_, 0.0);
  std::int64_t so_far = 0;
  for (std::int64_t i = 0; i < N_; ++i) {
    so_far += counts(i);
    const float *size = of_.of(r, i), *rest = of_.line(of_.m_rest, r, i);
    for (std::int64_t d = 0; d < D_; ++d)
      sum[d] += double(size[d]) + (rest ? double(rest[d]) : 0.0);
    normalise(r, i, sum, so_far);
  }
}

void JacobianEstimate::spread(const JacobianRoom& room, std::int64_t r) const {
  std::int64_t so_far = counted();
  double *sum = room.sums.data() + (r * most_parts * D_), *m = of_.room.data();
  std::fill_n(sum, D_, 0.0);
  for (std::int64_t row = of_.rows(); row-- > 0;) {  // a query belongs to every row at or after it
    double* dm = of_.line(of_.dm, r, row);
    std::copy_n(of_.of(r, row), D_, m);
    metric::normalise_backward(normalize_, of_.by[r * of_.rows() + row], dm, m, D_);
    for (std::int64_t d = 0; d < D_; ++d) {
      if (so_far > 0) sum[d] += dm[d] / double(so_far);
      dm[d] = sum[d];
    }
    if (of_.per_query) so_far -= counts(row);
  }
}

/// J of head r's query i becomes X, the gradient that reaches it.
void JacobianEstimate::turn(Query& query, const Block& block, std::int64_t r,
                            std::int64_t i) const {
  differentiate(query, block, r, i);
  if (query.n == 0) return;
  const double* dm = of_.line(of_.dm, r, i);
  query.delta = 0;  // sum_j a_j da_j = sum_de X_de J_de
  for (std::int64_t d = 0; d < D_; ++d) query.delta += dm[d] * double(query.size[d]);
  isa_.jacobian->turn(query.J.data(), dm, D_, E_);
  isa_.matrix->transpose(query.Jt.data(), query.J.data(), D_, E_, line_step(D_), line_step(E_));
}

void JacobianEstimate::pull(Query& query, const Block& block, const Keys& keys) const {
  isa_.jacobian->pull({.q = query.q,
                       .k = k_,
                       .v = v_,
                       .centre = query.centre.data(),
                       .X = query.J.data(),
                       .Xt = query.Jt.data(),
                       .delta = query.delta,
                       .first = keys.first,
                       .count = std::min(keys.last, query.n) - keys.first,
                       .D = D_,
                       .E = E_,
                       .c = c_,
                       .a = query.a.data(),
                       .dk = block.dk.data(),
                       .dv = block.dv.data(),
                       .pulls = block.pulls.data(),
                       .of_key = block.of_key.data(),
                       .apart = block.apart.data(),
                       .of_value = block.of_value.data()});
}

void JacobianEstimate::pull(const Gathered& to, std::span<Query> queries, const Block& block,
                            const Keys& keys) const {
  const auto join = [&](std::span<float> whole, std::span<float> share, std::int64_t width) {
    for (std::int64_t j = keys.first; j < keys.last && !whole.empty(); ++j) {
      const float* line = &share[(j - keys.first) * line_step(width)];
      for (std::int64_t d = 0; d < width; ++d) whole[j * width + d] += line[d];
    }
  };
  for (std::size_t first = 0; first < queries.size(); first += group) {
    std::fill(block.dk.begin(), block.dk.end(), 0.0f);
    std::fill(block.dv.begin(), block.dv.end(), 0.0f);
    for (Query& query : queries.subspan(first, group)) {
      if (query.n > keys.first) pull(query, block, keys);
    }
    join(to.dk, block.dk, D_);
    join(to.dv, block.dv, E_);
  }
}

/// What the keys sent back to the query: dq += sum_j c ds_j k_j. Then the query is done with.
void JacobianEstimate::finish(Query& query) const {
  if (query.n > 0 && query.dq) isa_.jacobian->sum_lines(query.dq, query.a.data(), k_, query.n, D_);
  query.n = 0;
}

/// As pull() and turn() have it in float.
void JacobianEstimate::pull_wide(const Gathered& to, const Query& query, const Block& block,
                                 const double* dm) const {
  const Wide of = widen(query, block);
  double delta = 0;
  for (std::int64_t d = 0; d < D_; ++d) {
    differentiate_row(of, query.n, d);
    for (std::int64_t e = 0; e < E_; ++e) {
      delta += dm[d] * std::abs(of.row[e]);
      of.X[d * E_ + e] = of.row[e] > 0 ? dm[d] : of.row[e] < 0 ? -dm[d] : 0.0;
    }
  }
  std::fill_n(of.sum, D_, 0.0);
  for (std::int64_t j = 0; j < query.n; ++j) {
    const float *k = k_ + j * D_, *v = v_ + j * E_;
    double da = -delta;
    std::fill_n(of.row, E_, 0.0);
    for (std::int64_t d = 0; d < D_; ++d) {
      const double *X = of.X + d * E_, apart = double(k[d]) - of.kappa[d];
      of.pulls[d] = 0;
      for (std::int64_t e = 0; e < E_; ++e) {
        of.pulls[d] += X[e] * (double(v[e]) - of.omega[e]);
        of.row[e] += X[e] * apart;
      }
      da += c_ * apart * of.pulls[d];
    }
    const double a = c_ * of.a[j], ds = a * da;
    for (std::int64_t d = 0; d < D_; ++d) {
      to.dk[j * D_ + d] += float(a * of.pulls[d] + ds * double(query.q[d]));
      of.sum[d] += ds * double(k[d]);
    }
    for (std::int64_t e = 0; e < E_; ++e) to.dv[j * E_ + e] += float(a * of.row[e]);
  }
  for (std::int64_t d = 0; d < D_ && query.dq; ++d) query.dq[d] += float(of.sum[d]);
}

void JacobianEstimate::backward(const Gathered& to, const JacobianRoom& room, Executor* threads) {
  threads = worth(threads);
  for (std::int64_t r = 0; r < of_.heads(); ++r) spread(room, r);
  for (Query& query : room.queries) query.n = 0;
  const bool few = !of_.m_rest.empty() && N_ <= gradient_keys;
  for (std::int64_t i = 0; i < of_.heads() * N_ && few; ++i) {
    Query& query = room.queries[0];
    query.dq = to.dq.empty() ? nullptr : &to.dq[(i / N_ * p_.longest_n + i % N_) * D_];
    differentiate(query, room.blocks[0], i / N_, i % N_);
    if (query.n > 0) pull_wide(to, query, room.blocks[0], of_.line(of_.dm, i / N_, i % N_));
  }
  if (few) return;
  const std::int64_t all = of_.heads() * N_, at_once = std::int64_t(room.queries.size());
  const std::int64_t share = blocks_of(tokens_.n, 2 * std::int64_t(room.blocks.size()));
  const std::int64_t length = std::clamp<std::int64_t>(padded(share, 12), 24, jacobian_keys);
  for (std::int64_t first = 0; first < all + at_once; first += at_once) {
    each(threads, at_once, [&](std::int64_t at, int thread) {
      Query& query = room.queries[at];
      finish(query);
      const std::int64_t line = all - 1 - first - at;  // under prefix the largest come last
      if (line < 0) return;
      const std::int64_t r = line / N_, i = line % N_;
      query.dq = to.dq.empty() ? nullptr : &to.dq[(r * p_.longest_n + i) * D_];
      turn(query, room.blocks[thread], r, i);
    });
    each(threads, first < all ? blocks_of(tokens_.n, length) : 0,
         [&](std::int64_t block, int thread) {
           const std::int64_t key = block * length;
           pull(to, room.queries, room.blocks[thread], {key, std::min(key + length, tokens_.n)});
         });
  }
}

}  // namespace foci::cpu
