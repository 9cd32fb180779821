# SPDX-License-Identifier: Apache-2.0
# The CUDA backend: on a GPU where nvcc is, else over the emulator, in alphabetical order. Not under
# a sanitizer: it does not follow stacks that change hands.
if(FOCI_SANITIZE)
  return()
endif()
if(NOT FOCI_CUDA)
  foci_cuda_test(cuda/chunked_exact_test.cpp)
  foci_cuda_test(cuda/chunked_test.cpp)
  foci_cuda_test(cuda/diagonal_test.cpp)
  foci_cuda_test(cuda/emulate_test.cpp)
  foci_cuda_test(cuda/full_metric_test.cpp)
  foci_cuda_test(cuda/softmax_mma_test.cpp)
  foci_cuda_test(cuda/split_keys_test.cpp)
  foci_cuda_test(cuda/tile_test.cpp)
  foci_cuda_test(cuda/weights_mma_test.cpp)
endif()
foci_cuda_test(cuda/golden_test.cpp)
foci_cuda_test(cuda/sweep_test.cpp)
