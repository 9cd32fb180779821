# SPDX-License-Identifier: Apache-2.0
foci_test(tensor/number_test.cpp)
foci_test(tensor/tensor_test.cpp)
