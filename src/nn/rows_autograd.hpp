// SPDX-License-Identifier: Apache-2.0
// What the fused steps' autograd functions share: where they run, and the guards below which they
// do their work.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

namespace foci::nn {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

#ifdef FOCI_EMULATED  // tests alone: kernels that run on the processor take its tensors
inline constexpr auto fused_device = at::kCPU;
inline constexpr auto fused_autocast = c10::DispatchKey::AutocastCPU;
#else
inline constexpr auto fused_device = at::kCUDA;
inline constexpr auto fused_autocast = c10::DispatchKey::Autocast;
#endif

/// On x's device, and neither recorded nor cast: types are as they shall be.
struct Below {
  explicit Below(const at::Tensor& x) : device(x.device()), uncast(fused_autocast) {}
  c10::DeviceGuard device;
  at::AutoDispatchBelowADInplaceOrView unrecorded;
  c10::impl::ExcludeDispatchKeyGuard uncast;
};

inline void refuse_second_derivative() {
  if (!at::GradMode::is_enabled()) return;
  C10_THROW_ERROR(
      NotImplementedError,
      "the fused steps of a block have no second derivative: leave out create_graph, or "
      "run the model without autocast or under nn::Unfused");
}

}  // namespace foci::nn
