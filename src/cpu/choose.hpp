// SPDX-License-Identifier: Apache-2.0
// The kernels this machine can run, and the ones a call uses.
#pragma once

#include "cpu/narrow.hpp"

#include <span>

namespace foci::cpu {

/// Best first; the portable ones are always there.
std::span<const Kernels* const> available();
/// Those over bf16, best first; there may be none.
std::span<const NarrowKernels* const> available_narrow();
/// The names of all of them, which FOCI_ISA may take, best first.
std::span<const char* const> isa_names();

/// The best, or what the environment variable FOCI_ISA names (avx512, avx2, portable); the best
/// where it names one over bf16.
const Kernels& chosen();
/// For tensors of bf16 whose keys meet queries as they are: the best over bf16, or the one FOCI_ISA
/// names (amx, avx512bf16). None where it names another or the machine has none.
const NarrowKernels* chosen_narrow();

}  // namespace foci::cpu
