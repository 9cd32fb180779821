// SPDX-License-Identifier: Apache-2.0
// The operators' shapes without their numbers: what torch.compile and torch.export trace, symbolic
// sizes included. Nothing here touches data.
#include "nn/ops.hpp"

#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/library.h>

#include <fmt/core.h>

#include <variant>
#include <vector>

namespace foci::nn {
namespace {

using Sizes = std::vector<c10::SymInt>;

at::Tensor made(const at::Tensor& like, const Sizes& sizes, at::ScalarType type) {
  return like.new_empty_symint(sizes, like.options().dtype(type));
}

struct Shapes {
  const Tensors& from;
  const Options& how;
  const at::Tensor& q = from.q;
  c10::SymInt B = q.sym_size(0), H = q.sym_size(1), N = q.sym_size(2), D = q.sym_size(3),
              G = from.k.sym_size(1), M = from.k.sym_size(2), E = from.v.sym_size(3);

  at::Tensor o() const { return made(q, {B, H, N, E}, q.scalar_type()); }
  at::Tensor none(at::ScalarType type) const { return made(q, {0}, type); }
  at::Tensor rows(bool there, at::ScalarType type) const {
    return there ? made(q, {B, H, N}, type) : none(type);
  }
  bool softmax() const { return std::holds_alternative<Softmax>(how.weighting); }

  /// As metric_shape() says. Packed sequences have one estimate each.
  at::Tensor metric() const {
    const auto type = wide_type(q);
    const auto* decay = std::get_if<Decay>(&how.weighting);
    if (std::holds_alternative<Dot>(how.metric) || (decay && !decay->content)) return none(type);
    if (from.metric.defined()) {
      return made(q, from.metric.sym_sizes().vec(), type);
    }
    const c10::SymInt sequences =
        from.q_offsets.defined() ? from.q_offsets.sym_size(0) - 1 : c10::SymInt(B);
    const bool prefix = prefix_scope();
    if (const auto* covariance = std::get_if<KeyCovariance>(&how.metric)) {
      if (!prefix) return made(q, {sequences, G, D, D}, type);
      const c10::SymInt period = covariance->period;
      return made(q, {B, G, (M + period - 1) / period, D, D}, type);
    }
    const c10::SymInt heads = std::holds_alternative<Jacobian>(how.metric) ? H : G;
    if (prefix && !std::holds_alternative<Random>(how.metric))
      return made(q, {B, heads, N, D}, type);
    return made(q, {sequences, heads, 1, D}, type);
  }

  bool prefix_scope() const {
    return std::visit(
        [&](const auto& metric) {
          if constexpr (requires { metric.scope; }) {
            return metric.scope == Scope::automatic ? how.causal : metric.scope == Scope::prefix;
          }
          return false;
        },
        how.metric);
  }
};

/// Axes are read before sizes are compared, so their number is checked here.
void want_four_axes(const Tensors& from) {
  from.want_one_device();
  from.each([](std::string_view name, const at::Tensor& tensor) {
    if (name.size() == 1 && tensor.dim() != 4) {
      throw InvalidArgument(fmt::format(
          "{} has {} axes; it must have 4: (batch, heads, tokens, size)", name, tensor.dim()));
    }
  });
}

Attended attend_meta(const Tensors& from, const std::string& how) {
  return translated([&]() -> Attended {
    want_four_axes(from);
    const Shapes shapes{from, options_from(how)};
    return {shapes.o(), shapes.rows(shapes.softmax(), wide_type(from.q))};
  });
}

Differentiated attend_backward_meta(const BackwardTensors& given, const std::string&) {
  const Tensors& from = given.from;
  const auto like = [&](int index, const at::Tensor& of) {
    return given.wanted[std::size_t(index)] && of.defined()
               ? made(of, of.sym_sizes().vec(), of.scalar_type())
               : made(from.q, {0}, at::kFloat);
  };
  return {like(0, from.q),      like(1, from.k),        like(2, from.v),
          like(3, from.v_prev), like(4, from.key_bias), like(5, from.metric)};
}

Measured measure_meta(const Tensors& from, const std::string& how) {
  return translated([&]() -> Measured {
    want_four_axes(from);
    const Shapes shapes{from, options_from(how)};
    const auto type = wide_type(from.q);
    return {shapes.o(),
            shapes.rows(shapes.softmax(), type),
            shapes.rows(true, type),
            shapes.rows(true, type),
            shapes.rows(has_entropy(shapes.how.weighting), type),
            shapes.rows(true, type),
            shapes.rows(true, at::kLong),
            shapes.metric()};
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(foci, Meta, m) {
  m.impl("attend", &flat<attend_meta>);
  m.impl("attend_backward", &flat_backward<attend_backward_meta>);
  m.impl("measure", &flat<measure_meta>);
}

}  // namespace foci::nn
