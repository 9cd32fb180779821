# SPDX-License-Identifier: Apache-2.0
foci_test(executor/executor_test.cpp LABELS quick threads)
foci_test(executor/allocation_test.cpp LABELS quick threads)
