// SPDX-License-Identifier: Apache-2.0
// The CUDA backend as the host sees it: attention over tensors in device memory, on a stream,
// without a word to the host in between; and what has to be known of devices and their memory.
// Offsets of packed sequences lie in host memory. Tensors of float, Bf16 or F16; float in between,
// estimates factored in double.
#pragma once

#include "metric/problem.hpp"

#include <foci/device.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace foci::cuda {

/// A cudaStream_t.
using StreamHandle = void*;

/// Why these kernels do not take a problem; empty when they do.
std::string refusal(const metric::Problem& problem);

/// Bytes for forward() and backward().
std::size_t workspace(const metric::Problem& problem);

/// Where and how a pass runs.
struct Run {
  std::span<std::byte> memory;  // of the device
  StreamHandle stream = nullptr;
  bool deterministic = true;
  bool lse_for_backward = false;  // like Call's
};
void forward(const Outputs& to, const metric::Problem& problem, const Run& run);
/// Uses saved.o and saved.lse where they have all the bits; else it computes them again.
void backward(const Gradients& to, const Outputs& saved, const metric::Problem& problem,
              const Run& run);

/// GPUs of this machine, and of this process' choice.
std::vector<Device> devices();
/// Throws unless the current device exists and these kernels run on it.
void want_device();

void* allocate(std::size_t bytes);
void release(void* memory) noexcept;
bool on_device(const void* memory);
void copy_to_device(void* to, const void* from, std::size_t bytes);
void copy_to_host(void* to, const void* from, std::size_t bytes);
/// Waits for everything on the device; throws what went wrong there.
void synchronize();

}  // namespace foci::cuda
