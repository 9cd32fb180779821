# SPDX-License-Identifier: Apache-2.0
foci_test(experiments/experiments_test.cpp LABELS quick threads)
