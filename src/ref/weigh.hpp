// SPDX-License-Identifier: Apache-2.0
// From a query to its weights, its output and what is written of it: what full passes and decoding
// share.
#pragma once

#include "ref/decay.hpp"
#include "ref/diagonal.hpp"
#include "ref/full.hpp"
#include "ref/identity.hpp"
#include "ref/linear.hpp"
#include "ref/relu2.hpp"
#include "ref/softmax.hpp"
#include "ref/statistics.hpp"

#include <variant>

namespace foci::ref {

/// linear makes its weights from q' and k, decay without content from positions alone.
inline bool needs_scores(const Weighting& weighting) {
  if (std::holds_alternative<Linear>(weighting)) return false;
  const auto* decay = std::get_if<Decay>(&weighting);
  return !decay || decay->content;
}

/// One query as it meets the keys.
template <class T>
struct Query {
  const T* q = nullptr;     // (D)
  const T* m = nullptr;     // (D), nullptr = ones
  const T* bias = nullptr;  // (n), nullptr = none
  T* folded = nullptr;      // (D) room for q'
};

/// Scores, then weights.
template <class T>
void weigh(Row<T>& row, const Query<T>& query, const Problem& p, const Diagonal<T>& diagonal,
           Full<T>& full) {
  row.q = query.folded;
  if (!p.full) diagonal.fold(query.folded, query.q, query.m);
  if (needs_scores(p.how.weighting)) {
    if (p.full) {
      full.score(row, query.q);
    } else {
      diagonal.score(row, query.q, query.m);
    }
    for (std::int64_t j = 0; j < row.n && query.bias; ++j) row.s[j] += query.bias[j];
  }
  std::visit([&](const auto& weighting) { forward(weighting, row); }, p.how.weighting);
}

/// o = sum_j a_j v_j
template <class S>
void gather(Arithmetic<S>* o, const Row<Arithmetic<S>>& row, const Arithmetic<S>* v,
            std::int64_t E) {
  std::fill(o, o + E, Arithmetic<S>(0));
  for (std::int64_t j = 0; j < row.n; ++j) add(o, rounded<S>(row.a[j]), v + j * E, E);
}

/// o and the row's statistics to their place {b, h, i}.
template <class T>
void write_row(const Outputs& to, const metric::Index& at, const Row<T>& row,
               std::span<const T> o) {
  metric::store(to.o, at, o.data(), std::int64_t(o.size()));
  const T lse = row.n == 0 ? -std::numeric_limits<T>::infinity() : row.lse;
  metric::store_one(to.lse, at, lse);
  if (!to.concentration && !to.effective_keys && !to.entropy && !to.largest && !to.largest_at)
    return;
  const Statistics<T> of = statistics(row);
  metric::store_one(to.concentration, at, of.concentration);
  metric::store_one(to.effective_keys, at, of.effective_keys);
  metric::store_one(to.entropy, at, of.entropy);
  metric::store_one(to.largest, at, of.largest);
  metric::store_one(to.largest_at, at, of.largest_at);
}

}  // namespace foci::ref
