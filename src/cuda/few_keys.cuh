// SPDX-License-Identifier: Apache-2.0
// Softmax, relu2 and identity over sequences of a few keys, all in double: a few numbers average
// nothing out, so that what rounding takes from scores, weights and their differences would show.
#pragma once

#include "cuda/passes.cuh"

namespace foci::cuda {

/// Sequences of no more keys than this are few enough.
inline constexpr int few_keys = 64;

/// Whether this pass serves a problem that neither tensor cores nor chunks do. m stays apart from
/// q then: Folded::m is there under Score::product, too, and Sinks::dm gets its gradient.
bool few_keys_serve(const Problem& problem);

void few_keys_forward(const Shape& shape, const Folded& folded, const Weigh& weigh, const Rows& to,
                      Stream stream);
/// notes: (B,H,N,2) room for what each row is divided by, and delta.
void few_keys_backward(const Shape& shape, const Folded& folded, const Weigh& weigh,
                       const Field& d_o, const Sinks& to, double* notes, Stream stream);

}  // namespace foci::cuda
