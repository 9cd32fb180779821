# SPDX-License-Identifier: Apache-2.0
foci_test(metric/formulas_test.cpp)
