// SPDX-License-Identifier: Apache-2.0
// The kernel's count of pages, and that of torch's allocator for a GPU, which is in its CUDA builds
// alone.
#include "train/memory.hpp"

#if defined(FOCI_TORCH_CUDA) && __has_include(<cuda_runtime_api.h>)
#define FOCI_ASKS_ALLOCATOR
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <unistd.h>

#include <fstream>

namespace foci::train {

std::int64_t used_bytes(c10::Device device) {
#ifdef FOCI_ASKS_ALLOCATOR
  // The first of the counts is that over all pools, in every version.
  if (device.is_cuda())
    return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
#endif
  static_cast<void>(device);
  std::int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace foci::train
