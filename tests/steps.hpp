// SPDX-License-Identifier: Apache-2.0
// Feeding the tensors of a case to a decoder, some tokens at a time.
#pragma once

#include "mechanisms.hpp"

#include <foci/decode.hpp>

#include <algorithm>

namespace foci::cases {

/// Tokens [begin, end) of every input.
inline Inputs tokens(const Made& made, std::int64_t begin, std::int64_t end) {
  Inputs part = made.inputs();
  for (View* view : {&part.q, &part.k, &part.v, &part.v_prev, &part.key_bias}) {
    if (*view) *view = view->sliced(2, begin, end);
  }
  if (part.key_mask) part.key_mask = part.key_mask.sliced(1, begin, end);
  if (part.metric && part.metric.shape[2] == made.c.N && made.c.N != made.c.D)
    part.metric = part.metric.sliced(2, begin, end);
  return part;
}

inline Outputs rows(const Outputs& to, std::int64_t begin, std::int64_t end) {
  Outputs part = to;
  for (View* view : {&part.o, &part.lse, &part.concentration, &part.effective_keys, &part.entropy,
                     &part.largest, &part.largest_at, &part.metric}) {
    if (*view && (view != &part.metric || view->shape[2] == to.o.shape[2]))
      *view = view->sliced(2, begin, end);
  }
  return part;
}

inline DecoderSizes sizes_of(const Case& c, DType dtype) {
  return {.B = c.B, .H = c.H, .G = c.G, .D = c.D, .E = c.E, .capacity = c.N, .dtype = dtype};
}

/// All tokens, `step` at a time.
inline void decode(Decoder& decoder, const Made& made, const Outputs& to, std::int64_t step) {
  for (std::int64_t i = 0; i < made.c.N; i += step) {
    const std::int64_t end = std::min(i + step, made.c.N);
    decoder.step(rows(to, i, end), tokens(made, i, end));
  }
}

/// Every output that a decoder writes: a full metric it does not.
inline Outputs decoded_outputs(Made& made, const Options& how) {
  Outputs to = all_outputs(made, how);
  const auto* given = std::get_if<Given>(&how.metric);
  if (std::holds_alternative<KeyCovariance>(how.metric) || (given && given->extent == Extent::full))
    to.metric = made.fresh("metric_used", {}, made.dtype);
  return to;
}

}  // namespace foci::cases
