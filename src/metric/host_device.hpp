// SPDX-License-Identifier: Apache-2.0
// FOCI_HD marks formulas that the host and a GPU kernel evaluate alike.
#pragma once

#ifdef __CUDACC__
#define FOCI_HD __host__ __device__
#else
#define FOCI_HD
#endif
