// SPDX-License-Identifier: Apache-2.0
// Elliptical attention in thirty lines, without torch: the metric comes from how values change
// between two layers, and every row tells how many keys it really uses.
#include <foci/attention.hpp>

#include <cmath>
#include <cstdio>

int main() {
  using namespace foci;
  const std::int64_t H = 2, N = 16, D = 4;
  Tensor q(DType::f32, {1, H, N, D}), k(DType::f32, {1, H, N, D});
  Tensor v(DType::f32, {1, H, N, D}), v_prev(DType::f32, {1, H, N, D});
  for (std::int64_t i = 0; i < H * N * D; ++i) {
    q.data<float>()[i] = std::sin(float(i));
    k.data<float>()[i] = std::cos(float(3 * i));
    v_prev.data<float>()[i] = std::sin(float(5 * i));
    v.data<float>()[i] =
        v_prev.data<float>()[i] + float(i % D) * 0.5f;  // the last coordinate changes most
  }

  Tensor o(DType::f32, {1, H, N, D}), keys(DType::f32, {1, H, N}), m(DType::f32, {1, H, 1, D});
  attend({.o = o, .effective_keys = keys, .metric = m}, {.q = q, .k = k, .v = v, .v_prev = v_prev},
         {.metric = LayerChange{}});

  std::printf("metric of head 0:");
  for (std::int64_t d = 0; d < D; ++d) std::printf(" %.3f", m.data<float>()[d]);
  std::printf("\nquery 0 uses %.1f of %d keys\n", keys.data<float>()[0], int(N));
}
