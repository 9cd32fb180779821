// SPDX-License-Identifier: Apache-2.0
// GPUs and tensors in their memory, for builds with CUDA and for those without.
#include <foci/device.hpp>

#include <foci/error.hpp>

#ifdef FOCI_HAS_CUDA
#include "cuda/cuda.hpp"
#endif

namespace foci {
namespace {

#ifndef FOCI_HAS_CUDA
[[noreturn]] void refuse() {
  throw Unsupported("this build of foci has no CUDA; configure it with -DFOCI_CUDA=ON");
}
#endif

}  // namespace

#ifdef FOCI_HAS_CUDA

std::vector<Device> devices() { return cuda::devices(); }
bool has_cuda() { return true; }
void synchronize() { cuda::synchronize(); }

DeviceTensor::DeviceTensor(DType dtype, std::span<const std::int64_t> shape)
    : view_(nullptr, dtype, shape) {
  cuda::want_device();
  const std::size_t bytes = std::size_t(view_.count()) * size_of(dtype);
  memory_.reset(static_cast<std::byte*>(cuda::allocate(bytes)));
  view_.data = memory_.get();
}

DeviceTensor DeviceTensor::copy(const View& host) {
  if (!host) return {};
  const Tensor rows = host.contiguous() ? Tensor() : Tensor::copy(host, host.dtype);
  DeviceTensor made(host.dtype, host.sizes());
  cuda::copy_to_device(made.view_.data, rows ? rows.view().data : host.data,
                       std::size_t(host.count()) * size_of(host.dtype));
  return made;
}

Tensor DeviceTensor::host() const {
  Tensor made(view_.dtype, view_.sizes());
  cuda::copy_to_host(made.view().data, view_.data,
                     std::size_t(view_.count()) * size_of(view_.dtype));
  return made;
}

void DeviceTensor::Free::operator()(std::byte* memory) const { cuda::release(memory); }

#else

std::vector<Device> devices() { refuse(); }
bool has_cuda() { return false; }
void synchronize() { refuse(); }
DeviceTensor::DeviceTensor(DType, std::span<const std::int64_t>) { refuse(); }
DeviceTensor DeviceTensor::copy(const View&) { refuse(); }
Tensor DeviceTensor::host() const { refuse(); }
void DeviceTensor::Free::operator()(std::byte*) const {}

#endif

}  // namespace foci
