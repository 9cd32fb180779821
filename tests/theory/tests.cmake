# SPDX-License-Identifier: Apache-2.0
foci_test(theory/theory_test.cpp)
