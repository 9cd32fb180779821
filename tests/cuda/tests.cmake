# SPDX-License-Identifier: Apache-2.0
# The CUDA backend. One line a test, in alphabetical order.
if(NOT FOCI_CUDA)
  foci_cuda_test(cuda/diagonal_test.cpp)
  foci_cuda_test(cuda/emulate_test.cpp)
  foci_cuda_test(cuda/full_metric_test.cpp)
  foci_cuda_test(cuda/tile_test.cpp)
endif()
