# SPDX-License-Identifier: Apache-2.0
foci_test(record/record_test.cpp)
