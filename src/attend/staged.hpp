// SPDX-License-Identifier: Apache-2.0
// Tensors of host memory on their way to the GPU and back, for calls that name the CUDA backend and
// bring none of its memory: convenient, not fast.
#pragma once

#include "metric/problem.hpp"

#include <foci/device.hpp>

#include <deque>
#include <string_view>
#include <vector>

namespace foci::staged {

#ifdef FOCI_HAS_CUDA
/// Throws where the memory is the host's; for calls whose q lies on the GPU.
void want_on_device(std::string_view name, const View& view);
void want_on_device(const Inputs& from);
#endif

class Stage {
 public:
  /// A copy on the device; absent stays absent.
  View in(const View& host);
  /// Room on the device whose contents finish() brings back to `host`.
  View out(const View& host);
  Inputs in(const Inputs& host);
  Outputs out(const Outputs& host);
  Gradients out(const Gradients& host);
  /// Waits, then writes what came out.
  void finish();

 private:
  struct Back {
    View host;
    const DeviceTensor* device;
  };
  std::deque<DeviceTensor> tensors_;
  std::vector<Back> back_;
};

}  // namespace foci::staged
