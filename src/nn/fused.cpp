// SPDX-License-Identifier: Apache-2.0
// The fused steps' gradients, as autograd functions over the kernels of foci/fused.hpp and torch's
// products. They have no second derivative, and say so.
#include "nn/fused.hpp"

#include "nn/room.hpp"
#include "nn/rows_autograd.hpp"

#include <foci/device.hpp>
#include <foci/fused.hpp>

#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/functional/linear.h>

#include <utility>

namespace foci::nn {
namespace {

thread_local int unfused = 0;

/// (..,C), row-major, as R rows of C numbers.
View matrix_of(const at::Tensor& x) {
  const std::int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns;
  return {x.data_ptr(), view_of("x", x).dtype, Shape{rows, columns}};
}
at::Tensor matrix(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

at::Tensor floats(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

/// f32, from 16 bits.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
  if (dy.is_cuda()) return at::mm(dy.t(), x, at::kFloat);
#endif
  return at::mm(dy.t(), x).to(at::kFloat);
}

at::Tensor sums_of(const at::Tensor& rows) {
  at::Tensor sums = floats(rows, {rows.size(1)});
  const Room room(rows, fused::workspace(rows.size(1)));
  fused::column_sums(view_of("sums", sums), matrix_of(rows), room.call());
  return sums;
}

/// rows times a weight (out,in), plus a bias that may be missing, in 16 bits.
at::Tensor product(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias) {
  if (!bias.defined()) return at::mm(rows, weight.t());
  return at::addmm(bias.to(rows.scalar_type()), rows, weight.t());
}

std::vector<std::int64_t> widened(const at::Tensor& x, std::int64_t columns) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = columns;
  return sizes;
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const OptionalTensor& bias) {
    const Below below(x);
    const at::Tensor narrow = weight.to(x.scalar_type());
    ctx->save_for_backward({x, narrow});
    ctx->saved_data["bias"] = bias.has_value();
    ctx->set_materialize_grads(false);
    return product(matrix(x), narrow, bias ? *bias : at::Tensor()).view(widened(x, weight.size(0)));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    if (!above[0].defined()) return variable_list(3);
    refuse_second_derivative();
    const Below below(above[0]);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], dy = matrix(above[0]);
    at::Tensor dx, dweight, dbias;
    if (ctx->needs_input_grad(0)) dx = at::mm(dy, weight).view(x.sizes());
    if (ctx->needs_input_grad(1)) dweight = weight_gradient(dy, matrix(x));
    if (ctx->saved_data["bias"].toBool() && ctx->needs_input_grad(2)) dbias = sums_of(dy);
    return {dx, dweight, dbias};
  }
};

/// first and second with what lies between them.
struct PerceptronFunction : torch::autograd::Function<PerceptronFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& first,
                            const at::Tensor& first_bias, const at::Tensor& second,
                            const at::Tensor& second_bias) {
    const Below below(x);
    const at::Tensor up = first.to(x.scalar_type()), down = second.to(x.scalar_type());
    const at::Tensor h = product(matrix(x), up, first_bias), g = at::empty_like(h);
    fused::gelu(matrix_of(g), matrix_of(h), Room(x, 0).call());
    ctx->save_for_backward({x, up, down, h, g});
    ctx->set_materialize_grads(false);
    return product(g, down, second_bias).view(widened(x, second.size(0)));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    if (!above[0].defined()) return variable_list(5);
    refuse_second_derivative();
    const Below below(above[0]);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &up = saved[1], &down = saved[2], &h = saved[3], &g = saved[4];
    const at::Tensor dy = matrix(above[0]), dg = at::mm(dy, down), dh = at::empty_like(h),
                     first_bias = floats(x, {h.size(1)});
    const Room room(x, fused::workspace(h.size(1)));
    fused::gelu_backward(
        {.dy = matrix_of(dg), .dx = matrix_of(dh), .dx_sum = view_of("sums", first_bias)},
        matrix_of(h), room.call());
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) dx = at::mm(dh, up).view(x.sizes());
    return {dx, weight_gradient(dh, matrix(x)), first_bias, weight_gradient(dy, g), sums_of(dy)};
  }
};

View there(const OptionalTensor& x) {
  return x && x->defined() ? View(x->data_ptr(), view_of("x", *x).dtype, Shape{x->numel()})
                           : View();
}

struct AddNormFunction : torch::autograd::Function<AddNormFunction> {
  /// Gives x with the branch in it, and its norm.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const OptionalTensor& branch,
                               const OptionalTensor& scale, double epsilon, at::ScalarType type) {
    const Below below(x);
    const fused::Residual from{.x = matrix_of(x),
                               .branch = branch ? matrix_of(*branch) : View(),
                               .scale = there(scale),
                               .weight = there(weight),
                               .bias = there(bias),
                               .epsilon = float(epsilon)};
    const std::int64_t rows = from.x.shape[0];
    const at::Tensor y = at::empty(x.sizes(), x.options().dtype(type)), mean = floats(x, {rows}),
                     rstd = floats(x, {rows}), sum = branch ? at::empty_like(x) : x;
    fused::add_norm({.x = branch ? matrix_of(sum) : View(),
                     .y = matrix_of(y),
                     .mean = there(mean),
                     .rstd = there(rstd)},
                    from, Room(x, 0).call());
    ctx->save_for_backward({sum, weight, bias, mean, rstd, scale ? *scale : at::Tensor()});
    ctx->saved_data["branch"] = std::int64_t(branch ? branch->scalar_type() : at::kByte);
    ctx->saved_data["epsilon"] = epsilon;
    ctx->saved_data["type"] = std::int64_t(type);
    ctx->set_materialize_grads(false);
    return {sum, y};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    if (!above[0].defined() && !above[1].defined()) return variable_list(7);
    refuse_second_derivative();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &sum = saved[0], &weight = saved[1];
    const Below below(sum);
    const auto branch = at::ScalarType(ctx->saved_data["branch"].toInt());
    const auto type = at::ScalarType(ctx->saved_data["type"].toInt());
    const bool has_branch = branch != at::kByte;
    const at::Tensor dy = above[1].defined() ? above[1].contiguous()
                                             : at::zeros(sum.sizes(), sum.options().dtype(type));
    const at::Tensor dx = at::empty_like(sum), dweight = at::empty_like(weight),
                     dbias = at::empty_like(weight),
                     from_x = above[0].defined() ? above[0].contiguous() : at::Tensor();
    at::Tensor dbranch;
    if (has_branch) dbranch = at::empty(sum.sizes(), sum.options().dtype(branch));
    // The branch itself is in the sum: of it only the type is looked at.
    const fused::Residual from{.x = matrix_of(sum),
                               .branch = has_branch ? matrix_of(dbranch) : View(),
                               .scale = there(saved[5]),
                               .weight = there(weight),
                               .bias = there(saved[2]),
                               .epsilon = float(ctx->saved_data["epsilon"].toDouble())};
    const Room room(sum, fused::workspace(sum.size(-1)));
    fused::add_norm_backward(
        {.dy = matrix_of(dy),
         .from_x = from_x.defined() ? matrix_of(from_x) : View(),
         .dx = matrix_of(dx),
         .dbranch = has_branch ? matrix_of(dbranch) : View(),
         .dweight = there(dweight),
         .dbias = there(dbias)},
        from, {.x = matrix_of(sum), .mean = there(saved[3]), .rstd = there(saved[4])}, room.call());
    return {dx, dweight, dbias, dbranch, {}, {}, {}};
  }
};

/// Whether the kernels take a weight's columns, and f32 parameters.
bool fits(const at::Tensor& weight, const at::Tensor& bias) {
  return weight.scalar_type() == at::kFloat && weight.size(0) % 8 == 0 && weight.size(1) % 8 == 0 &&
         (!bias.defined() || bias.scalar_type() == at::kFloat);
}

bool fits(const torch::nn::LayerNormImpl& norm, const at::Tensor& x) {
  const std::int64_t columns = x.size(-1);
  return norm.weight.defined() && norm.bias.defined() && norm.weight.dim() == 1 &&
         norm.weight.scalar_type() == at::kFloat && x.scalar_type() == at::kFloat &&
         norm.weight.device() == x.device() && columns % 8 == 0 && columns <= 4096 &&
         norm.weight.size(0) == columns;
}

at::Tensor narrowed(const at::Tensor& x) { return x.to(narrow_type(x)); }

}  // namespace

Unfused::Unfused() { ++unfused; }
Unfused::~Unfused() { --unfused; }

at::ScalarType narrow_type(const at::Tensor& x) { return autocast_type(x.device().type()); }

bool fuses(const at::Tensor& x) {
  const auto device = x.device().type();
  if (unfused > 0 || device != fused_device || x.numel() == 0) return false;
  if (x.scalar_type() == at::kDouble) return false;  // autocast leaves it alone
#if TORCH_VERSION_MAJOR >= 2
  const bool casts = at::autocast::is_autocast_enabled(device);
#else
  const bool casts =
      device == at::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
#endif
  if (!casts || !has_cuda()) return false;
  const at::ScalarType type = narrow_type(x);
  return type == at::kBFloat16 || type == at::kHalf;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!fuses(x) || !fits(weight, bias)) {
    return torch::nn::functional::linear(x, weight, bias);
  }
  return LinearFunction::apply(narrowed(x), weight, Tensors::maybe(bias));
}

at::Tensor linear(torch::nn::LinearImpl& module, const at::Tensor& x) {
  return fuses(x) ? linear(x, module.weight, module.bias) : module.forward(x);
}

at::Tensor perceptron(torch::nn::LinearImpl& first, torch::nn::LinearImpl& second,
                      const at::Tensor& x) {
  const bool biased = first.bias.defined() && second.bias.defined();
  if (!fuses(x) || !biased || !fits(first.weight, first.bias) ||
      !fits(second.weight, second.bias)) {
    return second.forward(at::gelu(first.forward(x)));
  }
  return PerceptronFunction::apply(narrowed(x), first.weight, first.bias, second.weight,
                                   second.bias);
}

Normed add_norm(const at::Tensor& x, const Branch& branch, torch::nn::LayerNormImpl& norm,
                at::ScalarType type) {
  if (!fits(norm, x)) {
    at::Tensor sum = x;
    if (branch.y.defined()) {
      sum = branch.scale.defined() ? x + branch.y * branch.scale.view({-1, 1, 1}) : x + branch.y;
    }
    return {sum, norm.forward(sum).to(type)};
  }
  const variable_list made =
      AddNormFunction::apply(x.contiguous(), norm.weight, norm.bias,
                             Tensors::maybe(branch.y.defined() ? branch.y.contiguous() : branch.y),
                             Tensors::maybe(branch.scale), norm.options.eps(), type);
  return {made[0], made[1]};
}

}  // namespace foci::nn
