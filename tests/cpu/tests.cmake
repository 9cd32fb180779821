# SPDX-License-Identifier: Apache-2.0
foci_test(cpu/matrix_test.cpp)
