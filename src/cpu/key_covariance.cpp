// SPDX-License-Identifier: Apache-2.0
// Moments of keys, their whitening, and the gradient of the covariance.
#include "cpu/key_covariance.hpp"

#include <foci/error.hpp>

#include <algorithm>

namespace foci::cpu {

std::int64_t covariance_room(const MatrixKernels& kernels, std::int64_t D) {
  return std::max(kernels.scatter_room(D), 2 * D * D);
}

void gather(const Moments& to, const float* x, std::int64_t D, const MatrixKernels& kernels,
            double* room) {
  std::fill_n(to.mean, D, 0.0);
  std::fill_n(to.sum, D * D, 0.0);
  if (to.n == 0) return;
  kernels.sum_rows(to.mean, x, to.n, D);
  for (std::int64_t d = 0; d < D; ++d) to.mean[d] /= double(to.n);
  kernels.scatter(to.sum, x, to.mean, to.n, D, room);
}

void join(const Moments& to, const Moments& before, std::int64_t D, const MatrixKernels& kernels,
          double* room) {
  if (before.n == 0) return;
  const double part = double(to.n) / double(to.n + before.n);
  double* gap = room;
  for (std::int64_t d = 0; d < D; ++d) {
    gap[d] = to.n == 0 ? 0.0 : to.mean[d] - before.mean[d];
    to.mean[d] = before.mean[d] + part * gap[d];
  }
  kernels.join(to.sum, before.sum, gap, part * double(before.n), D);
}

int whiten(double* W, const Moments& keys, const metric::Shrinkage& shrink, std::int64_t D,
           const MatrixKernels& kernels, double* room) {
  double *sigma = room, *L = room + D * D, trace = 0;
  const double weight = shrink.weight(keys.n), own = shrink.own(keys.n);
  for (std::int64_t i = 0; i < D * D; ++i) sigma[i] = weight * keys.sum[i];
  for (std::int64_t d = 0; d < D; ++d) trace += sigma[d * D + d];
  if (shrink.hardly_any(keys.n, D, trace)) warn(metric::at_the_mercy_of_rounding);
  double raised = shrink.ridge;
  for (int raises = 0; raises <= metric::most_raises; ++raises, raised *= 10) {
    for (std::int64_t d = 0; d < D; ++d)
      sigma[d * D + d] = weight * keys.sum[d * D + d] + own + raised;
    if (!kernels.cholesky(L, sigma, D)) continue;
    kernels.invert_lower(W, L, D);
    return raises;
  }
  return -1;
}

namespace {

/// Rows of a symmetric matrix formed at a time, from the diagonal on.
constexpr std::int64_t strip = 16;

void mirror_upper(double* A, std::int64_t D) {
  for (std::int64_t i = 0; i < D; ++i) {
    for (std::int64_t j = i + 1; j < D; ++j) A[j * D + i] = A[i * D + j];
  }
}

}  // namespace

/// Rows of W before row i are zero in column i: a strip of P leaves them out.
void form_metric(double* P, const double* W, std::int64_t D, const MatrixKernels& kernels) {
  for (std::int64_t i = 0; i < D; i += strip) {
    kernels.product_wide({P + i * D + i, W + i * D + i, W + i * D + i, std::min(strip, D - i),
                          D - i, D - i, D, 1, D, D, false});
  }
  mirror_upper(P, D);
}

void pull_through(double* dP, const double* W, double slope, std::int64_t D,
                  const MatrixKernels& kernels, double* room) {
  double *P = room, *X = room + D * D;
  form_metric(P, W, D, kernels);
  for (std::int64_t i = 0; i < D; ++i) {
    for (std::int64_t j = 0; j <= i; ++j)
      dP[i * D + j] = dP[j * D + i] = -slope / 2 * (dP[i * D + j] + dP[j * D + i]);
  }
  kernels.product_wide({X, P, dP, D, D, D, D, D, 1, D, false});
  for (std::int64_t i = 0; i < D; i += strip) {
    kernels.product_wide(
        {dP + i * D + i, X + i * D, P + i, std::min(strip, D - i), D - i, D, D, D, 1, D, false});
  }
  mirror_upper(dP, D);
}

}  // namespace foci::cpu
