// SPDX-License-Identifier: Apache-2.0
// Token by token: the decoder keeps keys, values and the metric's running estimate, and gives each
// new token what the full causal pass would give it.
#include <foci/decode.hpp>

#include <cmath>
#include <cstdio>

int main() {
  using namespace foci;
  const std::int64_t H = 4, G = 2, D = 8, tokens = 20;
  Decoder decoder({.B = 1, .H = H, .G = G, .D = D, .E = D, .capacity = tokens},
                  {.metric = KeyCovariance{.period = 8}, .causal = true});

  Tensor q(DType::f32, {1, H, 1, D}), k(DType::f32, {1, G, 1, D}), v(DType::f32, {1, G, 1, D});
  Tensor o(DType::f32, {1, H, 1, D}), keys(DType::f32, {1, H, 1});
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < H * D; ++i) q.data<float>()[i] = std::sin(float(t + i));
    for (std::int64_t i = 0; i < G * D; ++i) {
      k.data<float>()[i] = std::cos(float(t * i));
      v.data<float>()[i] = float(t);
    }
    decoder.step({.o = o, .effective_keys = keys}, {.q = q, .k = k, .v = v});
    std::printf("token %2d looks back to %5.2f on average, using %4.1f keys\n", int(t),
                double(o.data<float>()[0]), double(keys.data<float>()[0]));
  }
}
