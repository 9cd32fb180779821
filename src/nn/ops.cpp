// SPDX-License-Identifier: Apache-2.0
// torch.ops.foci.*: schemas, the kernels, and the dispatcher's handles. Shapes alone are in
// ops_meta.cpp, gradients in ops_autograd.cpp, autocast in ops_autocast.cpp.
#include "nn/ops.hpp"

#include "nn/room.hpp"

#include <foci/attention.hpp>
#include <foci/device.hpp>
#include <foci/settings.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <fmt/core.h>

#include <variant>

namespace foci::nn {
namespace {

at::Tensor none(const at::Tensor& like, at::ScalarType type) {
  return at::empty({0}, like.options().dtype(type));
}

/// The settings of a call on q's device.
Options options_for(const std::string& how, const at::Tensor& q) {
  Options options = options_from(how);
  if (!q.is_cuda()) return options;
  if (options.backend != Backend::automatic && options.backend != Backend::cuda)
    throw InvalidArgument(
        "q is on a GPU, where backend is cuda; leave it out, or move the tensors");
  options.backend = Backend::cuda;
  return options;
}

Attended attend_here(const Tensors& from, const std::string& how) {
  return translated([&]() -> Attended {
    from.want_one_device();
    const Options options = options_for(how, from.q);
    const Inputs in = from.views();
    const Room room(from.q, in, options);
    const auto& q = from.q;
    const at::Tensor o = at::empty({q.size(0), q.size(1), q.size(2), from.v.size(3)}, q.options());
    const bool softmax = std::holds_alternative<Softmax>(options.weighting);
    const auto wide = q.options().dtype(wide_type(q));
    const at::Tensor lse =
        softmax ? at::empty({q.size(0), q.size(1), q.size(2)}, wide) : at::empty({0}, wide);
    Outputs out{.o = view_of("o", o)};
    if (softmax) out.lse = view_of("lse", lse);
    Call call = room.call();
    call.lse_for_backward = true;  // measure() is who tells it to people
    attend(out, in, options, call);
    return {o, lse};
  });
}

Differentiated attend_backward_here(const BackwardTensors& given, const std::string& how) {
  return translated([&]() -> Differentiated {
    const Tensors& from = given.from;
    from.want_one_device();
    const Options options = options_for(how, from.q);
    const Inputs in = from.views();
    const Room room(from.q, in, options);
    // Weights that come from positions alone do not look at the metric: its gradient is 0.
    const auto* decay = std::get_if<Decay>(&options.weighting);
    const bool blind = decay != nullptr && !decay->content;
    const auto made = [&](int index, const at::Tensor& of) {
      if (!given.wanted[std::size_t(index)] || !of.defined()) return none(from.q, at::kFloat);
      return blind && index == 5 ? at::zeros(of.sizes(), of.options())
                                 : at::empty(of.sizes(), of.options());
    };
    const Differentiated d{made(0, from.q),      made(1, from.k),        made(2, from.v),
                           made(3, from.v_prev), made(4, from.key_bias), made(5, from.metric)};
    const auto view = [&](int index, std::string_view name, const at::Tensor& of,
                          const at::Tensor& tensor) {
      return given.wanted[std::size_t(index)] && of.defined() ? view_of(name, tensor) : View();
    };
    const Gradients to{.d_o = view_of("d_o", given.d_o),
                       .dq = view(0, "dq", from.q, std::get<0>(d)),
                       .dk = view(1, "dk", from.k, std::get<1>(d)),
                       .dv = view(2, "dv", from.v, std::get<2>(d)),
                       .dv_prev = view(3, "dv_prev", from.v_prev, std::get<3>(d)),
                       .dmetric = blind ? View() : view(5, "dmetric", from.metric, std::get<5>(d)),
                       .dkey_bias = view(4, "dkey_bias", from.key_bias, std::get<4>(d))};
    Outputs saved{.o = view_of("o", given.o)};
    if (given.lse.dim() == 3) saved.lse = view_of("lse", given.lse);
    attend_backward(to, in, saved, options, room.call());
    return d;
  });
}

Measured measure_here(const Tensors& from, const std::string& how) {
  return translated([&]() -> Measured {
    from.want_one_device();
    const Options options = options_for(how, from.q);
    const Inputs in = from.views();
    const Room room(from.q, in, options);
    const auto& q = from.q;
    const auto wide = q.options().dtype(wide_type(q));
    const auto rows = [&](bool there, at::ScalarType type) {
      return there ? at::empty({q.size(0), q.size(1), q.size(2)}, wide.dtype(type)) : none(q, type);
    };
    const at::ScalarType type = wide_type(q);
    const Shape shape = metric_shape(in, options);
    const Measured m{at::empty({q.size(0), q.size(1), q.size(2), from.v.size(3)}, q.options()),
                     rows(std::holds_alternative<Softmax>(options.weighting), type),
                     rows(true, type),
                     rows(true, type),
                     rows(has_entropy(options.weighting), type),
                     rows(true, type),
                     rows(true, at::kLong),
                     shape.empty() ? none(q, type) : at::empty(shape, wide)};
    const auto there = [](std::string_view name, const at::Tensor& tensor) {
      return tensor.dim() > 1 ? view_of(name, tensor) : View();
    };
    attend({.o = view_of("o", std::get<0>(m)),
            .lse = there("lse", std::get<1>(m)),
            .concentration = view_of("concentration", std::get<2>(m)),
            .effective_keys = view_of("effective_keys", std::get<3>(m)),
            .entropy = there("entropy", std::get<4>(m)),
            .largest = view_of("largest", std::get<5>(m)),
            .largest_at = view_of("largest_at", std::get<6>(m)),
            .metric = there("metric", std::get<7>(m))},
           in, options, room.call());
    return m;
  });
}

/// Tensors of a GPU, offsets of packed sequences on the host: the kernels want them there.
Tensors on_gpu(const Tensors& from) {
  return translated([&] {
    if (!has_cuda()) {
      from.want_one_device();
      throw Unsupported(fmt::format(
          "q is on {}, and this build of foci has no CUDA kernels; move the tensors to the CPU",
          from.q.device().str()));
    }
    Tensors there = from;
    if (there.q_offsets.defined()) there.q_offsets = there.q_offsets.cpu();
    if (there.k_offsets.defined()) there.k_offsets = there.k_offsets.cpu();
    return there;
  });
}
Attended attend_cuda(const Tensors& from, const std::string& how) {
  const c10::DeviceGuard guard(from.q.device());
  return attend_here(on_gpu(from), how);
}
Measured measure_cuda(const Tensors& from, const std::string& how) {
  const c10::DeviceGuard guard(from.q.device());
  return measure_here(on_gpu(from), how);
}
Differentiated attend_backward_cuda(const BackwardTensors& given, const std::string& how) {
  const c10::DeviceGuard guard(given.from.q.device());
  BackwardTensors there = given;
  there.from = on_gpu(given.from);
  return attend_backward_here(there, how);
}

std::string check_settings(const std::string& how) {
  return translated([&] { return to_text(settings_of(options_of(parse_settings(how)))); });
}

/// The parameters of a call's tensors, in Tensors' order.
#define FOCI_TENSORS                                                                            \
  "Tensor q, Tensor k, Tensor v, Tensor? v_prev=None, Tensor? key_mask=None, Tensor? key_bias=" \
  "None, Tensor? metric=None, Tensor? q_offsets=None, Tensor? k_offsets=None, "

}  // namespace

TORCH_LIBRARY(foci, m) {
  m.def("attend(" FOCI_TENSORS "str how=\"\") -> (Tensor o, Tensor lse)");
  m.def(
      "attend_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor? v_prev, Tensor? key_mask, "
      "Tensor? key_bias, Tensor? metric, Tensor? q_offsets, Tensor? k_offsets, Tensor o, Tensor "
      "lse, str how, bool[6] wanted) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dv_prev, Tensor "
      "dkey_bias, Tensor dmetric)");
  m.def("measure(" FOCI_TENSORS
        "str how=\"\") -> (Tensor o, Tensor lse, Tensor concentration, Tensor effective_keys, "
        "Tensor entropy, Tensor largest, Tensor largest_at, Tensor metric_used)");
  m.def("check_settings(str how) -> str", &check_settings);
}

TORCH_LIBRARY_IMPL(foci, CPU, m) {
  m.impl("attend", &flat<attend_here>);
  m.impl("attend_backward", &flat_backward<attend_backward_here>);
  m.impl("measure", &flat<measure_here>);
}

TORCH_LIBRARY_IMPL(foci, CUDA, m) {
  m.impl("attend", &flat<attend_cuda>);
  m.impl("attend_backward", &flat_backward<attend_backward_cuda>);
  m.impl("measure", &flat<measure_cuda>);
}

Attended call_attend(const Tensors& t, const std::string& how) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("foci::attend", "")
                             .typed<decltype(flat<attend_here>)>();
  return t.spread([&](const auto&... tensor) { return op.call(tensor..., how); });
}

Measured call_measure(const Tensors& t, const std::string& how) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("foci::measure", "")
                             .typed<decltype(flat<measure_here>)>();
  return t.spread([&](const auto&... tensor) { return op.call(tensor..., how); });
}

Differentiated call_attend_backward(const BackwardTensors& given, const std::string& how) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("foci::attend_backward", "")
                             .typed<decltype(flat_backward<attend_backward_here>)>();
  return given.from.spread([&](const auto&... tensor) {
    return op.call(given.d_o, tensor..., given.o, given.lse, how, given.wanted);
  });
}

}  // namespace foci::nn
