// SPDX-License-Identifier: Apache-2.0
// The instruction set a kernel over bf16 is compiled for, named by the build: FOCI_NARROW is its
// namespace. AMX may be emulated, see amx_tile.hpp.
#pragma once

#if defined(FOCI_AMX_EMULATED)
#define FOCI_NARROW amx_emulated
#elif defined(FOCI_NARROW_AMX)
#define FOCI_NARROW amx
#else
#define FOCI_NARROW avx512bf16
#endif

#include "cpu/narrow.hpp"
#include "cpu/vec_avx512.hpp"

#include <math.h>

namespace foci::cpu::FOCI_NARROW {

#include "cpu/bf16_vector.hpp"

#include "cpu/bf16_pack.hpp"

#include "cpu/bf16_products.hpp"

#if defined(FOCI_NARROW_AMX) || defined(FOCI_AMX_EMULATED)
#include "cpu/amx_tile.hpp"

#include "cpu/amx_products.hpp"
#else
#include "cpu/pair_products.hpp"
#endif

}  // namespace foci::cpu::FOCI_NARROW
