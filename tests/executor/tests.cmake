# SPDX-License-Identifier: Apache-2.0
foci_test(executor/executor_test.cpp)
foci_test(executor/allocation_test.cpp)
