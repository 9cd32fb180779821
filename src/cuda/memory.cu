// SPDX-License-Identifier: Apache-2.0
// Device memory and the device itself: filled, copied, asked about. Emulated, the device is one
// more corner of the host's memory.
#include "cuda/cuda.hpp"
#include "cuda/launch.cuh"
#include "cuda/memory.cuh"

#include <cstdlib>
#include <cstring>
#include <map>

namespace foci::cuda {

#ifdef FOCI_EMULATED

namespace {

/// What allocate() gave out: first byte and how many.
std::map<const std::byte*, std::size_t>& allocated() {
  static std::map<const std::byte*, std::size_t> all;
  return all;
}

}  // namespace

void fill(void* to, int byte, std::size_t bytes, Stream) {
  if (bytes > 0) std::memset(to, byte, bytes);
}
void copy_in(void* to, const void* from, std::size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::vector<Device> devices() {
  return {{.name = "emulated",
           .major = 8,
           .minor = 0,
           .multiprocessors = 1,
           .memory = 1 << 30,
           .why_not = {}}};
}
void want_device() {}
std::size_t block_memory() { return 227 * 1024; }

/// Filled with NaN, so that what nobody wrote shows.
void* allocate(std::size_t bytes) {
  const std::size_t size = (bytes + 255) / 256 * 256 + 256;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(256, size));
  std::memset(memory, 0xff, size);
  allocated()[memory] = size;
  return memory;
}
void release(void* memory) noexcept {
  allocated().erase(static_cast<std::byte*>(memory));
  std::free(memory);
}
bool on_device(const void* memory) {
  const auto* at = static_cast<const std::byte*>(memory);
  const auto after = allocated().upper_bound(at);
  if (after == allocated().begin()) return false;
  const auto& [first, size] = *std::prev(after);
  return std::size_t(at - first) < size;
}
void copy_to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void synchronize() {}

#else

void fill(void* to, int byte, std::size_t bytes, Stream stream) {
  if (bytes > 0) expect_success(cudaMemsetAsync(to, byte, bytes, stream), "filling memory");
}
void copy_in(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  expect_success(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream),
                 "copying to the device");
}

namespace {

Device described(int index) {
  cudaDeviceProp of;
  expect_success(cudaGetDeviceProperties(&of, index), "asking for a device's properties");
  Device device{.name = of.name,
                .major = of.major,
                .minor = of.minor,
                .multiprocessors = of.multiProcessorCount,
                .memory = of.totalGlobalMem};
  if (of.major < 8) {
    device.why_not = "its compute capability is " + std::to_string(of.major) + "." +
                     std::to_string(of.minor) + "; foci's kernels need 8.0";
  }
  return device;
}

}  // namespace

std::vector<Device> devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  std::vector<Device> all;
  for (int index = 0; index < count; ++index) all.push_back(described(index));
  return all;
}

void want_device() {
  static const std::vector<Device> all = devices();
  if (all.empty()) throw Unsupported("backend cuda: no GPU here; the nearest is backend cpu");
  int current = 0;
  expect_success(cudaGetDevice(&current), "asking for the current device");
  const Device& device = all[std::size_t(current)];
  if (!device.why_not.empty())
    throw Unsupported("backend cuda: " + device.name + ": " + device.why_not);
}

std::size_t block_memory() {
  int device = 0, most = 0;
  expect_success(cudaGetDevice(&device), "asking for the current device");
  expect_success(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                 "asking for its shared memory");
  return std::size_t(most);
}

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t code = cudaMalloc(&memory, bytes > 0 ? bytes : 1);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0, total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    throw DeviceError("cuda: " + std::to_string(bytes) + " bytes of device memory asked for, " +
                      std::to_string(free) + " free");
  }
  expect_success(code, "allocating memory");
  return memory;
}
void release(void* memory) noexcept { static_cast<void>(cudaFree(memory)); }

bool on_device(const void* memory) {
  cudaPointerAttributes of;
  if (memory == nullptr || cudaPointerGetAttributes(&of, memory) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  return of.type == cudaMemoryTypeDevice || of.type == cudaMemoryTypeManaged;
}
void copy_to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  expect_success(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copying to the device");
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  expect_success(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copying from the device");
}
void synchronize() { expect_success(cudaDeviceSynchronize(), "waiting for the device"); }

#endif

}  // namespace foci::cuda
