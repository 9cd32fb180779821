# SPDX-License-Identifier: Apache-2.0
foci_test(ref/gradients_test.cpp)
foci_test(ref/key_covariance_test.cpp)
foci_test(ref/statistics_test.cpp)
