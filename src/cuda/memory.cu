// SPDX-License-Identifier: Apache-2.0
// Device memory and the device itself: filled, copied, asked about.
#include "cuda/launch.cuh"

#include <cstring>

namespace foci::cuda {

#ifdef FOCI_EMULATED

void fill(void* to, int byte, std::size_t bytes, Stream) { std::memset(to, byte, bytes); }
void copy_in(void* to, const void* from, std::size_t bytes, Stream) {
  std::memcpy(to, from, bytes);
}

#else

void fill(void* to, int byte, std::size_t bytes, Stream stream) {
  if (bytes > 0) expect_success(cudaMemsetAsync(to, byte, bytes, stream), "filling memory");
}
void copy_in(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  expect_success(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream),
                 "copying to the device");
}

#endif

}  // namespace foci::cuda
