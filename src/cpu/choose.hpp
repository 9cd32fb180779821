// SPDX-License-Identifier: Apache-2.0
// The kernels this machine can run, and the ones a call uses.
#pragma once

#include "cpu/kernels.hpp"

#include <span>

namespace foci::cpu {

/// Best first; the portable ones are always there.
std::span<const Kernels* const> available();

/// The best, or what the environment variable FOCI_ISA names (avx512, avx2, portable).
const Kernels& chosen();

}  // namespace foci::cpu
