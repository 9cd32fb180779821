# SPDX-License-Identifier: Apache-2.0
foci_test(cpu/matrix_test.cpp)
foci_test(cpu/softmax_test.cpp)
foci_test(cpu/sweep_test.cpp LABELS full)
foci_test(cpu/isa_test.cpp)
foci_test(cpu/softmax_bf16_test.cpp)
foci_test(cpu/key_covariance_test.cpp)
foci_test(cpu/full_metric_test.cpp)
