// SPDX-License-Identifier: Apache-2.0
// A call after checking: sizes, resolved choices, and where each sequence lies. What every backend
// gets.
#pragma once

#include "metric/chunk.hpp"
#include "metric/rows.hpp"

#include <foci/call.hpp>

#include <cstdint>
#include <variant>

namespace foci::metric {

/// product for metrics without a form.
inline Form form_of(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.form; }) return m.form;
        return Form::product;
      },
      metric);
}

struct Sizes {
  std::int64_t B = 0, H = 0, G = 0, N = 0, M = 0, D = 0, E = 0;
};

struct Problem {
  Sizes size;                  // packed: B = 1, N and M are totals
  std::int64_t sequences = 0;  // B, or as many as the offsets say
  std::int64_t longest_n = 0, longest_m = 0;
  Inputs from;
  Options how;
  Scope scope = Scope::sequence;  // never automatic
  double c = 1;                   // unless match_dot
  bool match_dot = false;
  bool through = false;    // the gradient follows the estimate
  bool full = false;       // P, not m
  bool on_device = false;  // tensors lie in a GPU's memory, offsets do not

  bool packed() const { return bool(from.q_offsets); }
  std::int64_t heads_per_key() const { return size.H / size.G; }
  template <class M>
  const M* metric() const {
    return std::get_if<M>(&how.metric);
  }
};

/// One stretch of queries and the keys it may look at.
struct Sequence {
  std::int64_t b = 0;          // index into the batch axis
  std::int64_t q0 = 0, N = 0;  // its queries
  std::int64_t k0 = 0, M = 0;  // its keys
  std::int64_t estimate = 0;   // batch index of a sequence-wide metric
  std::int64_t chunk0 = 0;     // first of its prefix chunks
  std::int64_t chunks = 0;
};

inline std::int64_t offset(const View& offsets, std::int64_t s) {
  return load_one<std::int64_t>(offsets, {s});
}

inline Sequence sequence(const Problem& p, std::int64_t s) {
  const auto* covariance = p.metric<KeyCovariance>();
  const auto chunks = [&](std::int64_t M) {
    return covariance ? chunk_count(M, covariance->period) : 0;
  };
  if (!p.packed()) {
    return {.b = s,
            .q0 = 0,
            .N = p.size.N,
            .k0 = 0,
            .M = p.size.M,
            .estimate = s,
            .chunk0 = 0,
            .chunks = chunks(p.size.M)};
  }
  Sequence at{.b = 0,
              .q0 = offset(p.from.q_offsets, s),
              .N = 0,
              .k0 = offset(p.from.k_offsets, s),
              .M = 0,
              .estimate = s,
              .chunk0 = 0,
              .chunks = 0};
  at.N = offset(p.from.q_offsets, s + 1) - at.q0;
  at.M = offset(p.from.k_offsets, s + 1) - at.k0;
  at.chunks = chunks(at.M);
  for (std::int64_t before = 0; before < s && covariance; ++before) {
    at.chunk0 += chunks(offset(p.from.k_offsets, before + 1) - offset(p.from.k_offsets, before));
  }
  return at;
}

}  // namespace foci::metric
