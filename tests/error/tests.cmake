# SPDX-License-Identifier: Apache-2.0
foci_test(error/error_test.cpp)
