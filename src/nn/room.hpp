// SPDX-License-Identifier: Apache-2.0
// What a call into foci gets from torch: memory of its allocators, its threads, its stream.
#pragma once

#include "nn/views.hpp"

#include <foci/attention.hpp>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#ifdef FOCI_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

#include <utility>

namespace foci::nn {

/// The stream that torch works on at q's device.
inline void* stream_of(const at::Tensor& q) {
#ifdef FOCI_TORCH_CUDA
  if (q.is_cuda()) return c10::cuda::getCurrentCUDAStream(q.device().index()).stream();
#endif
  static_cast<void>(q);
  return nullptr;
}

/// Host memory for one call. Each thread keeps what its last call used, up to 16 MiB: a megabyte
/// that malloc gives and takes back every time costs more than a short call itself.
class HostRoom {
 public:
  HostRoom() = default;
  explicit HostRoom(std::size_t bytes) : held_(std::exchange(kept(), {})) {
    if (held_.bytes < bytes) held_ = {c10::GetCPUAllocator()->allocate(bytes), bytes};
  }
  HostRoom(HostRoom&&) = default;
  HostRoom& operator=(HostRoom&&) = default;
  ~HostRoom() {
    if (held_.memory && held_.bytes <= (std::size_t(16) << 20)) kept() = std::move(held_);
  }

  void* memory() const { return held_.memory.get(); }

 private:
  struct Held {
    c10::DataPtr memory;
    std::size_t bytes = 0;
  };
  static Held& kept() {
    thread_local Held of_this_thread;
    return of_this_thread;
  }

  Held held_;
};

/// Memory for one call, and torch's threads or stream.
class Room {
 public:
  Room(const at::Tensor& q, const Inputs& from, const Options& how)
      : Room(q, need(from, how, torch_threads().threads()).workspace) {}
  /// As many bytes where q lies.
  Room(const at::Tensor& q, std::size_t bytes)
      : threads_(torch_threads()), bytes_(bytes), stream_(stream_of(q)) {
    if (q.is_cuda()) {
      on_gpu_ = at::empty({std::int64_t(bytes_)}, q.options().dtype(at::kByte));
    } else {
      on_host_ = HostRoom(bytes_);
    }
  }

  Call call() const {
    void* memory = on_gpu_.defined() ? on_gpu_.data_ptr() : on_host_.memory();
    return {.workspace = {static_cast<std::byte*>(memory), bytes_},
            .threads = &threads_,
            .stream = stream_,
            .deterministic = at::globalContext().deterministicAlgorithms()};
  }

 private:
  Executor& threads_;
  std::size_t bytes_;
  HostRoom on_host_;
  at::Tensor on_gpu_;
  void* stream_;
};

}  // namespace foci::nn
