// SPDX-License-Identifier: Apache-2.0
// How much memory of a kind the current GPU has.
#pragma once

#include <cstddef>

namespace foci::cuda {

/// Bytes of shared memory that a block may have.
std::size_t block_memory();

}  // namespace foci::cuda
