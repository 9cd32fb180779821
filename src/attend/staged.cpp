// SPDX-License-Identifier: Apache-2.0
// Tensors of host memory on their way to the GPU and back.
#include "attend/staged.hpp"

#ifdef FOCI_HAS_CUDA
#include "cuda/cuda.hpp"
#endif

#include <foci/error.hpp>

#include <fmt/core.h>

#include <cstring>

namespace foci::staged {
namespace {

/// to = from, element by element; `from` is row-major.
void spread(const View& to, const View& from) {
  const std::size_t size = size_of(to.dtype);
  const auto* source = static_cast<const std::byte*>(from.data);
  auto* target = static_cast<std::byte*>(to.data);
  std::array<std::int64_t, max_rank> at{};
  for (std::int64_t i = 0; i < from.count(); ++i) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < to.rank; ++axis) offset += at[axis] * to.strides[axis];
    std::memcpy(target + offset * std::int64_t(size), source + std::size_t(i) * size, size);
    for (int axis = to.rank - 1; axis >= 0 && ++at[axis] == to.shape[axis]; --axis) at[axis] = 0;
  }
}

}  // namespace

#ifdef FOCI_HAS_CUDA

void want_on_device(std::string_view name, const View& view) {
  if (!view || view.count() == 0 || cuda::on_device(view.data)) return;
  throw InvalidArgument(fmt::format(
      "{} lies in host memory and q on the GPU; a call's tensors lie on one side", name));
}

void want_on_device(const Inputs& from) {
  want_on_device("k", from.k);
  want_on_device("v", from.v);
  want_on_device("v_prev", from.v_prev);
  want_on_device("key_mask", from.key_mask);
  want_on_device("key_bias", from.key_bias);
  want_on_device("metric", from.metric);
}

#endif

View Stage::in(const View& host) {
  return host ? tensors_.emplace_back(DeviceTensor::copy(host)).view() : View();
}

View Stage::out(const View& host) {
  if (!host) return {};
  const DeviceTensor& made = tensors_.emplace_back(DeviceTensor(host.dtype, host.sizes()));
  back_.push_back({host, &made});
  return made.view();
}

Inputs Stage::in(const Inputs& host) {
  return {.q = in(host.q),
          .k = in(host.k),
          .v = in(host.v),
          .v_prev = in(host.v_prev),
          .key_mask = in(host.key_mask),
          .key_bias = in(host.key_bias),
          .metric = in(host.metric),
          .q_offsets = host.q_offsets,
          .k_offsets = host.k_offsets};
}

Outputs Stage::out(const Outputs& host) {
  return {.o = out(host.o),
          .lse = out(host.lse),
          .concentration = out(host.concentration),
          .effective_keys = out(host.effective_keys),
          .entropy = out(host.entropy),
          .largest = out(host.largest),
          .largest_at = out(host.largest_at),
          .metric = out(host.metric),
          .status = out(host.status),
          .scale = out(host.scale)};
}

Gradients Stage::out(const Gradients& host) {
  return {.d_o = in(host.d_o),
          .dq = out(host.dq),
          .dk = out(host.dk),
          .dv = out(host.dv),
          .dv_prev = out(host.dv_prev),
          .dmetric = out(host.dmetric),
          .dkey_bias = out(host.dkey_bias)};
}

void Stage::finish() {
  synchronize();
  for (const Back& back : back_) spread(back.host, back.device->host());
}

}  // namespace foci::staged
