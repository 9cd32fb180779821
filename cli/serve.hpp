// SPDX-License-Identifier: Apache-2.0
// The words of `foci serve`. Reads no file.
#pragma once

#include "cli/tree.hpp"
#include "cli/verbs.hpp"

namespace foci::cli {

/// Throws Misuse.
Serve serve_of(const Called& called);

}  // namespace foci::cli
