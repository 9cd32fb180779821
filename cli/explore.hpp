// SPDX-License-Identifier: Apache-2.0
// The explorer's question: one query, some keys and the flags of `foci attend`; its answer: the
// weights, their concentration and the metric, all as the library computes them.
#pragma once

#include "cli/mechanism.hpp"

namespace foci::cli {

/// `asked`: words (flags of attend to their text), q (one row), k, v and v_prev (rows of numbers).
/// Throws Misuse and the library's errors.
Json explore(const Json& asked);

}  // namespace foci::cli
