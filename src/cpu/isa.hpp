// SPDX-License-Identifier: Apache-2.0
// The instruction set this object is compiled for, named by the build: FOCI_ISA is its namespace.
#pragma once

#if defined(FOCI_ISA_AVX512)
#include "cpu/vec_avx512.hpp"
#define FOCI_ISA avx512
#elif defined(FOCI_ISA_AVX2)
#include "cpu/vec_avx2.hpp"
#define FOCI_ISA avx2
#else
#include "cpu/vec_portable.hpp"
#define FOCI_ISA portable
#endif

#include "cpu/kernels.hpp"
