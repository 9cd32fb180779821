# SPDX-License-Identifier: Apache-2.0
foci_test(corrupt/corrupt_test.cpp LIBRARIES foci_data_inside)
target_sources(corrupt_corrupt_test PRIVATE corrupt/sequences_test.cpp)
