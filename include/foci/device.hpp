// SPDX-License-Identifier: Apache-2.0
// GPUs: which there are, and tensors in their memory, for calls with Backend::cuda. A build without
// CUDA has none.
#pragma once

#include <foci/export.h>
#include <foci/tensor.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace foci {

struct Device {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t memory = 0;  ///< bytes
  std::string why_not;     ///< empty where foci's kernels run on it
};

/// In CUDA's order, empty where there is no driver; throws Unsupported where the build has no CUDA.
FOCI_API std::vector<Device> devices();
/// Whether this build has CUDA kernels.
FOCI_API bool has_cuda();

/// Owns row-major memory of the current GPU.
class FOCI_API DeviceTensor {
 public:
  DeviceTensor() = default;
  DeviceTensor(DType dtype, std::span<const std::int64_t> shape);
  /// A row-major copy of host memory.
  static DeviceTensor copy(const View& host);

  const View& view() const { return view_; }
  operator const View&() const { return view_; }
  explicit operator bool() const { return bool(view_); }
  /// Waits for the GPU, then a copy in host memory.
  Tensor host() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  View view_;
};

/// Waits for the current GPU; throws DeviceError with what went wrong on it.
FOCI_API void synchronize();

}  // namespace foci
