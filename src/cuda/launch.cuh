// SPDX-License-Identifier: Apache-2.0
// Starting kernels: the only <<<>>> there is. A launch that fails throws, named after its place.
#pragma once

#include "cuda/words.cuh"

#include <foci/error.hpp>

#include <cstddef>
#include <string>

namespace foci::cuda {

#ifdef FOCI_EMULATED
using Stream = void*;
#else
using Stream = cudaStream_t;

/// Throws DeviceError where `code` is not success.
inline void expect_success(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // the next call shall not see it
  throw DeviceError(std::string("cuda: ") + what + ": " + cudaGetErrorString(code));
}
#endif

/// Blocks and threads of a launch.
struct Grid {
  dim3 blocks, threads;
  std::size_t shared = 0;  // bytes of dynamic shared memory of a block
};

/// kernel<<<grid>>>(args) on `stream`; nothing where the grid is empty.
template <class... P>
void launch(const char* what, void (*kernel)(P...), const Grid& grid, Stream stream, P... args) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
#ifdef FOCI_EMULATED
  static_cast<void>(what), static_cast<void>(stream);
  emulate::run(grid.blocks, grid.threads, grid.shared, [&] { kernel(args...); });
#else
  if (grid.shared > 48 * 1024) {
    expect_success(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(grid.shared)),
        what);
  }
  // clang-format off
  kernel<<<grid.blocks, grid.threads, grid.shared, stream>>>(args...);
  // clang-format on
  expect_success(cudaGetLastError(), what);
#endif
}

/// Fills device memory with a byte.
void fill(void* to, int byte, std::size_t bytes, Stream stream);
/// Host memory to the device; `from` may be gone when this returns.
void copy_in(void* to, const void* from, std::size_t bytes, Stream stream);

/// ceil(a / b)
constexpr std::int64_t parts(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace foci::cuda
