// SPDX-License-Identifier: Apache-2.0
// Where full metrics come from, where they are written, and how their gradient reaches the keys.
#include "cpu/full_metric.hpp"

#include "metric/cholesky.hpp"

#include <foci/error.hpp>

namespace foci::cpu {

namespace {

/// Keys sent back at a time.
constexpr std::int64_t spread_rows = 64, spread_columns = 64;

}  // namespace

FullRoom FullRoom::take(Arena& arena, const Problem& p, const MatrixKernels& kernels) {
  const std::int64_t D = p.full ? p.size.D : 0;
  return {arena.take<double>(covariance_room(kernels, D) + D),
          arena.take<float>(D + 2 * spread_rows, D)};
}

FullMetric FullMetric::take(Arena& arena, const Problem& p, const MatrixKernels& kernels) {
  FullMetric of;
  of.p = &p;
  of.kernels = &kernels;
  if (!p.full) return of;
  const std::int64_t D = p.size.D;
  std::int64_t slots = 1;
  if (const auto* how = p.metric<KeyCovariance>()) {
    of.shrink = {how->ridge, *how->prior};
    if (of.prefix())
      slots = std::max<std::int64_t>(metric::chunk_count(p.longest_m, how->period), 1);
  }
  of.factors = arena.take<double>(slots, D, D);
  of.means = arena.take<double>(slots, D);
  of.W = arena.take<float>(slots, D, D);
  of.Wt = arena.take<float>(slots, D, D);
  of.centres = arena.take<float>(slots, D);
  of.raises = arena.take<int>(slots);
  of.most_slots = slots;
  return of;
}

void FullMetric::take_gradient(Arena& arena) {
  dP = arena.take<double>(most_slots, p->size.D, p->size.D);
}

Whitening FullMetric::at(std::int64_t c) const {
  return {W.data() + (c * square()), Wt.data() + (c * square()), centres.data() + (c * p->size.D),
          factors.data() + (c * square()), raises[c]};
}

/// Queries come in order, so theirs lie between the first's and the last's.
FullMetric::Range FullMetric::asked_for() const {
  const std::int64_t N = tokens->at.N;
  if (N == 0) return {};
  return {slot_of(0), slot_of(N - 1)};
}

void FullMetric::estimate(const float* keys, bool every, FullRoom& room) const {
  if (p->metric<Given>()) return load_given(keys, room);
  const Range of = every ? Range{0, slots() - 1} : asked_for();
  for (std::int64_t c = 0; c <= of.last; ++c) gather_slot(c, keys, room);
  join_slots(of.last, room);
  for (std::int64_t c = of.first; c <= of.last; ++c) whiten_slot(c, keys, room);
  check(of.first, of.last);
}

/// The keys that slot c knows and the one before it does not.
void FullMetric::gather_slot(std::int64_t c, const float* keys, FullRoom& room) const {
  const std::int64_t D = p->size.D, first = c == 0 ? 0 : count(c - 1);
  gather({count(c) - first, means.data() + (c * D), factors.data() + (c * square())},
         keys + first * D, D, *kernels, room.wide.data());
}

void FullMetric::join_slots(std::int64_t last, FullRoom& room) const {
  const std::int64_t D = p->size.D;
  for (std::int64_t c = 1; c <= last; ++c) {
    const Moments before{count(c - 1), means.data() + ((c - 1) * D),
                         factors.data() + ((c - 1) * square())};
    join({count(c) - before.n, means.data() + (c * D), factors.data() + (c * square())}, before, D,
         *kernels, room.wide.data());
  }
}

void FullMetric::whiten_slot(std::int64_t c, const float* keys, FullRoom& room) const {
  const std::int64_t D = p->size.D;
  double* factor = factors.data() + (c * square());
  raises[c] = whiten(factor, {count(c), means.data() + (c * D), factor}, shrink, D, *kernels,
                     room.wide.data());
  if (raises[c] >= 0) place(c, count(c), keys);
}

void FullMetric::check(std::int64_t first, std::int64_t last) const {
  for (std::int64_t c = first; c <= last; ++c) {
    if (raises[c] >= 0) continue;
    throw NumericalError(metric::unfactorable(tokens->at.estimate, g, count(c), shrink.ridge));
  }
}

void FullMetric::place(std::int64_t c, std::int64_t known, const float* keys) const {
  const std::int64_t D = p->size.D;
  const double *factor = factors.data() + (c * square()), *mean = means.data() + (c * D);
  float *to = W.data() + (c * square()), *centre = centres.data() + (c * D);
  for (std::int64_t i = 0; i < square(); ++i) to[i] = float(factor[i]);
  kernels->transpose(Wt.data() + (c * square()), to, D, D, D, D);
  for (std::int64_t d = 0; d < D; ++d)
    centre[d] = known > 0 ? float(mean[d]) : tokens->n > 0 ? keys[d] : 0.0f;
}

void whiten_given(double* W, const View& given, const GivenAt& at, const MatrixKernels& kernels,
                  double* room) {
  const std::int64_t D = given.shape[3];
  double *A = room, *L = A + D * D;
  for (std::int64_t d = 0; d < D; ++d) metric::load(A + d * D, given, {at.b, at.g, d}, D);
  for (std::int64_t i = 0; i < D; ++i) {
    for (std::int64_t j = 0; j < i; ++j) A[j * D + i] = A[i * D + j];
  }
  const double slack = metric::slack_of(given.dtype == DType::f64, D);
  bool sound = kernels.cholesky(L, A, D);
  for (std::int64_t d = 0; d < D && sound; ++d)
    sound = L[d * D + d] * L[d * D + d] > slack * A[d * D + d];
  if (!sound && !metric::cholesky(L, A, D, metric::Definite::semi, slack))
    throw InvalidArgument(metric::not_semidefinite(at.b, at.g));
  for (std::int64_t i = 0; i < D; ++i) {
    for (std::int64_t j = 0; j < D; ++j) W[j * D + i] = L[i * D + j];
  }
}

/// A causal row may not feel a mean of keys it does not see.
void FullMetric::load_given(const float* keys, FullRoom& room) const {
  const View& given = p->from.metric;
  const std::int64_t D = p->size.D, b = given.shape[0] == 1 ? 0 : tokens->at.estimate;
  whiten_given(factors.data(), given, {b, g}, *kernels, room.wide.data());
  const std::int64_t known = p->how.causal ? 0 : tokens->n;
  std::fill(means.begin(), means.end(), 0.0);
  if (known > 0) kernels->sum_rows(means.data(), keys, known, D);
  for (std::int64_t d = 0; d < D && known > 0; ++d) means[d] /= double(known);
  raises[0] = 0;
  place(0, known, keys);
}

void FullMetric::write(const Outputs& to, FullRoom& room) const {
  const Sequence& at = tokens->at;
  if (p->metric<Given>() && to.status && at.estimate < to.status.shape[0])
    metric::store_one(to.status, {at.estimate, g}, 0);  // or it would not have come this far
  if ((!to.metric && !to.status) || p->metric<Given>()) return;
  const std::int64_t chunks = prefix() ? at.chunks : 1;
  for (std::int64_t c = 0; c < chunks; ++c) {
    if (to.metric) {
      form_metric(room.wide.data(), factors.data() + (c * square()), p->size.D, *kernels);
      store(to.metric, c, room.wide.data(), false);
    }
    if (prefix()) {
      metric::store_one(to.status, {at.b, g, at.chunk0 + c}, raises[c]);
    } else {
      metric::store_one(to.status, {at.estimate, g}, raises[c]);
    }
  }
}

void FullMetric::store(const View& to, std::int64_t c, const double* matrix, bool joins) const {
  const std::int64_t D = p->size.D, b = to.shape[0] == 1 ? 0 : tokens->at.estimate;
  for (std::int64_t d = 0; d < D; ++d) {
    if (prefix()) {
      metric::store(to, {tokens->at.b, g, tokens->at.chunk0 + c, d}, matrix + d * D, D);
      continue;
    }
    for (std::int64_t e = 0; e < D; ++e) {
      const double before = joins ? metric::load_one<double>(to, {b, g, d, e}) : 0.0;
      metric::store_one(to, {b, g, d, e}, before + matrix[d * D + e]);
    }
  }
}

void FullMetric::clear_gradient() const { std::fill(dP.begin(), dP.end(), 0.0); }

void FullMetric::symmetrise_gradient() const {
  const std::int64_t D = p->size.D;
  for (std::int64_t c = 0; c < slots(); ++c) {
    double* of = gradient(c);
    for (std::int64_t i = 0; i < D; ++i) {
      for (std::int64_t j = 0; j < i; ++j)
        of[i * D + j] = of[j * D + i] = 0.5 * (of[i * D + j] + of[j * D + i]);
    }
  }
}

void FullMetric::write_gradient(const View& to, bool joins) const {
  const std::int64_t chunks = prefix() ? tokens->at.chunks : 1;
  for (std::int64_t c = 0; c < chunks && to; ++c) store(to, c, gradient(c), joins);
}

/// dk_j += sum over the slots c that know key j of A_c (k_j - mean_c), A_c = slope dSigma: from the
/// last slot to the first, A and A (mean - centre) summed up, so that a key meets one matrix.
void FullMetric::through(float* dk, const float* keys, FullRoom& room) const {
  const Range of = asked_for();
  const std::int64_t D = p->size.D;
  const float* centre = centres.data() + (of.last < 0 ? 0 : of.last * D);
  double* shift = room.wide.data() + covariance_room(*kernels, D);
  std::fill_n(shift, D, 0.0);
  for (std::int64_t c = of.last; c >= of.first && count(c) > 0; --c) {
    double* A = gradient(c);
    pull_through(A, factors.data() + (c * square()), shrink.slope(count(c)), D, *kernels,
                 room.wide.data());
    for (std::int64_t i = 0; i < D; ++i) {
      const double gap = means[c * D + i] - double(centre[i]);
      for (std::int64_t j = 0; j < D; ++j) shift[j] += gap * A[i * D + j];
    }
    for (std::int64_t i = 0; i < square() && c < of.last; ++i) A[i] += A[square() + i];
    const std::int64_t first = c == of.first ? 0 : count(c - 1);
    spread(dk + first * D, keys + first * D, count(c) - first, A, centre, room);
  }
}

/// dk (rows,D) += (keys - centre) A - shift
void FullMetric::spread(float* dk, const float* keys, std::int64_t rows, const double* A,
                        const float* centre, FullRoom& room) const {
  const std::int64_t D = p->size.D;
  const double* shift = room.wide.data() + covariance_room(*kernels, D);
  if (p->longest_m <= gradient_keys) {  // few, and A is far larger than what comes out
    for (std::int64_t i = 0; i < rows; ++i, keys += D, dk += D) {
      for (std::int64_t first = 0; first < D; first += spread_columns) {
        const std::int64_t cols = std::min(spread_columns, D - first);
        double pull[spread_columns];
        for (std::int64_t e = 0; e < cols; ++e) pull[e] = -shift[first + e];
        for (std::int64_t d = 0; d < D; ++d) {
          const double x = double(keys[d]) - double(centre[d]);
          for (std::int64_t e = 0; e < cols; ++e) pull[e] += x * A[d * D + first + e];
        }
        for (std::int64_t e = 0; e < cols; ++e) dk[first + e] += float(pull[e]);
      }
    }
    return;
  }
  float *matrix = room.narrow.data(), *x = matrix + square(), *sum = x + spread_rows * D;
  for (std::int64_t i = 0; i < square(); ++i) matrix[i] = float(A[i]);
  for (std::int64_t row = 0; row < rows; row += spread_rows, keys += spread_rows * D) {
    const std::int64_t high = std::min(spread_rows, rows - row);
    for (std::int64_t i = 0; i < high; ++i) {
      for (std::int64_t d = 0; d < D; ++d) x[i * D + d] = keys[i * D + d] - centre[d];
    }
    kernels->product({sum, x, matrix, high, D, D, D, D, 1, D, false});
    for (std::int64_t i = 0; i < high; ++i, dk += D) {
      for (std::int64_t d = 0; d < D; ++d) dk[d] += sum[i * D + d] - float(shift[d]);
    }
  }
}

}  // namespace foci::cpu
