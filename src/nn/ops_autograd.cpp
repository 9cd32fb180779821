// SPDX-License-Identifier: Apache-2.0
// The operators' gradients: one autograd function over attend and attend_backward. There is no
// second derivative, and whoever asks for one is told so. Autocast is here too: it comes before.
#include "nn/ops.hpp"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

namespace foci::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What is kept for the way back: o, lse and the nine, up to the last of them that is there.
variable_list listed(const Tensors& from, const at::Tensor& o, const at::Tensor& lse) {
  variable_list tensors;
  tensors.reserve(11);
  tensors.push_back(o);
  tensors.push_back(lse);
  from.each([&](std::string_view, const at::Tensor& tensor) { tensors.push_back(tensor); });
  while (!tensors.back().defined()) tensors.pop_back();
  return tensors;
}

BackwardTensors unlisted(const at::Tensor& d_o, variable_list saved) {
  saved.resize(11);
  return {
      d_o,
      {saved[2], saved[3], saved[4], saved[5], saved[6], saved[7], saved[8], saved[9], saved[10]},
      saved[0],
      saved[1],
      {}};
}

/// Which of the nine each of the six gradients belongs to.
constexpr std::array<std::size_t, 6> differentiable{0, 1, 2, 3, 5, 6};

struct Attend : torch::autograd::Function<Attend> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const OptionalTensor& v_prev,
                               const OptionalTensor& key_mask, const OptionalTensor& key_bias,
                               const OptionalTensor& metric, const OptionalTensor& q_offsets,
                               const OptionalTensor& k_offsets, const std::string& how) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const Tensors from =
        Tensors::of(q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets);
    const auto [o, lse] = call_attend(from, how);
    ctx->save_for_backward(listed(from, o, lse));
    ctx->saved_data["how"] = how;
    ctx->mark_non_differentiable({lse});
    return {o, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    variable_list gradients(10);  // one for each parameter of forward, the settings too
    if (!above[0].defined()) return gradients;
    BackwardTensors given = unlisted(above[0], ctx->get_saved_variables());
    std::array<bool, 9> needed{};
    std::size_t input = 0, edge = 0;  // tensors that are missing have no edge
    given.from.each([&](std::string_view, const at::Tensor& tensor) {
      needed[input++] = tensor.defined() && ctx->needs_input_grad(edge++);
    });
    for (std::size_t i = 0; i < differentiable.size(); ++i) {
      given.wanted[i] = needed[differentiable[i]];
    }
    const auto d = call_attend_backward(given, ctx->saved_data["how"].toStringRef());
    const variable_list made{std::get<0>(d), std::get<1>(d), std::get<2>(d),
                             std::get<3>(d), std::get<4>(d), std::get<5>(d)};
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (given.wanted[i]) gradients[differentiable[i]] = made[i];
    }
    return gradients;
  }
};

/// attend_backward with somebody recording: the record is a refusal.
struct AttendBackward : torch::autograd::Function<AttendBackward> {
  static variable_list forward(AutogradContext*, const at::Tensor&, const at::Tensor&,
                               const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                               const OptionalTensor&, const OptionalTensor&,
                               const BackwardTensors& given, const std::string& how) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto d = call_attend_backward(given, how);
    return {std::get<0>(d), std::get<1>(d), std::get<2>(d),
            std::get<3>(d), std::get<4>(d), std::get<5>(d)};
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    C10_THROW_ERROR(NotImplementedError,
                    "foci.attend has no second derivative: its gradient cannot be differentiated "
                    "again (leave out create_graph, or use a plain softmax attention for this)");
  }
};

bool nobody_records(const Tensors& from) {
  if (!at::GradMode::is_enabled()) return true;
  bool recorded = false;
  from.each([&](std::string_view, const at::Tensor& tensor) {
    recorded |= tensor.defined() && (tensor.requires_grad());
  });
  return !recorded;
}

Attended attend_autograd(const Tensors& t, const std::string& how) {
  if (nobody_records(t)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_attend(t, how);
  }
  const variable_list out =
      t.spread([&](const auto&... tensor) { return Attend::apply(tensor..., how); });
  return {out[0], out[1]};
}

Differentiated attend_backward_autograd(const BackwardTensors& given, const std::string& how) {
  const Tensors& t = given.from;
  const variable_list d =
      AttendBackward::apply(given.d_o, t.q, t.k, t.v, Tensors::maybe(t.v_prev),
                            Tensors::maybe(t.key_bias), Tensors::maybe(t.metric), given, how);
  return {d[0], d[1], d[2], d[3], d[4], d[5]};
}

/// Statistics are numbers to look at: nothing flows back through them.
Measured measure_autograd(const Tensors& from, const std::string& how) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return call_measure(from, how);
}

/// q, k, v and v_prev in the type that the autocast region asks for; biases and metrics stay as
/// they are.
template <c10::DeviceType device>
Tensors cast(const Tensors& from) {
  Tensors to = from;
  for (at::Tensor* tensor : {&to.q, &to.k, &to.v, &to.v_prev}) {
    if (tensor->defined())
      *tensor = at::autocast::cached_cast(autocast_type(device), *tensor, device);
  }
  return to;
}

constexpr auto autocast_key(c10::DeviceType device) {
  return device == c10::DeviceType::CPU ? c10::DispatchKey::AutocastCPU
                                        : c10::DispatchKey::Autocast;
}

template <c10::DeviceType device>
Attended attend_autocast(const Tensors& from, const std::string& how) {
  const c10::impl::ExcludeDispatchKeyGuard once(autocast_key(device));
  return call_attend(cast<device>(from), how);
}

template <c10::DeviceType device>
Measured measure_autocast(const Tensors& from, const std::string& how) {
  const c10::impl::ExcludeDispatchKeyGuard once(autocast_key(device));
  return call_measure(cast<device>(from), how);
}

}  // namespace

TORCH_LIBRARY_IMPL(foci, Autograd, m) {
  m.impl("attend", &flat<attend_autograd>);
  m.impl("attend_backward", &flat_backward<attend_backward_autograd>);
  m.impl("measure", &flat<measure_autograd>);
}

TORCH_LIBRARY_IMPL(foci, AutocastCPU, m) {
  m.impl("attend", &flat<attend_autocast<c10::DeviceType::CPU>>);
  m.impl("measure", &flat<measure_autocast<c10::DeviceType::CPU>>);
}

TORCH_LIBRARY_IMPL(foci, Autocast, m) {
  m.impl("attend", &flat<attend_autocast<c10::DeviceType::CUDA>>);
  m.impl("measure", &flat<measure_autocast<c10::DeviceType::CUDA>>);
}

}  // namespace foci::nn
