// SPDX-License-Identifier: Apache-2.0
// Attention over tokens as a projection left them: o comes in the layout that the next projection
// reads, and dq, dk, dv go into one tensor, which is the gradient of q, k and v side by side.
#include "nn/fused.hpp"
#include "nn/ops.hpp"
#include "nn/room.hpp"
#include "nn/rows_autograd.hpp"

#include <foci/attention.hpp>
#include <foci/watch.hpp>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <string>
#include <variant>
#include <vector>

namespace foci::nn {
namespace {

using Heads = std::vector<std::int64_t>;  // H, G, D

/// (B,N,heads D) as (B,heads,N,D)
at::Tensor by_heads(const at::Tensor& rows, std::int64_t D) {
  return rows.view({rows.size(0), rows.size(1), -1, D}).transpose(1, 2);
}

/// q, k and v of rows.
Tensors taken_apart(const at::Tensor& rows, const Heads& heads) {
  const at::Tensor all = by_heads(rows, heads[2]);
  Tensors parts;
  parts.q = all.narrow(1, 0, heads[0]);
  parts.k = all.narrow(1, heads[0], heads[1]);
  parts.v = all.narrow(1, heads[0] + heads[1], heads[1]);
  return parts;
}

Options on_a_gpu(const std::string& how) {
  Options options = options_from(how);
  options.backend = Backend::cuda;
  return options;
}

struct AttendRowsFunction : torch::autograd::Function<AttendRowsFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& rows,
                               const OptionalTensor& v_prev, const OptionalTensor& key_mask,
                               const Heads& heads, const std::string& how) {
    const Below below(rows);
    Tensors from = taken_apart(rows, heads);
    if (v_prev) from.v_prev = *v_prev;
    if (key_mask) from.key_mask = *key_mask;
    from.want_one_device();
    const Options options = on_a_gpu(how);
    const std::int64_t B = rows.size(0), N = rows.size(1), H = heads[0];
    const at::Tensor o = at::empty({B, N, H * heads[2]}, rows.options());
    const bool softmax = std::holds_alternative<Softmax>(options.weighting);
    const auto wide = rows.options().dtype(at::kFloat);
    const at::Tensor lse = softmax ? at::empty({B, H, N}, wide) : at::empty({0}, wide);
    const Inputs in = from.views();
    const Room room(rows, in, options);
    Outputs out{.o = view_of("o", by_heads(o, heads[2]))};
    if (softmax) out.lse = view_of("lse", lse);
    Call call = room.call();
    call.lse_for_backward = true;
    foci::attend(out, in, options, call);
    ctx->save_for_backward({rows, o, lse, from.v_prev, from.key_mask});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["how"] = how;
    ctx->saved_data["below"] = v_prev.has_value();
    ctx->set_materialize_grads(false);
    return {o, from.v};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& above) {
    if (!above[0].defined() && !above[1].defined()) return variable_list(5);
    refuse_second_derivative();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &rows = saved[0], &o = saved[1], &lse = saved[2];
    const Below below(rows);
    const Heads heads = ctx->saved_data["heads"].toIntVector();
    const bool goes_below = ctx->saved_data["below"].toBool() && ctx->needs_input_grad(1);
    Tensors from = taken_apart(rows, heads);
    from.v_prev = saved[3], from.key_mask = saved[4];
    const at::Tensor drows = at::empty_like(rows);
    const Tensors d = taken_apart(drows, heads);
    at::Tensor dv_prev;
    if (goes_below) {
      // As rows lie, so that it is added to theirs side by side.
      dv_prev = by_heads(
          at::empty({rows.size(0), rows.size(1), heads[1] * heads[2]}, rows.options()), heads[2]);
    }
    const at::Tensor d_o = above[0].defined() ? above[0].contiguous() : at::zeros_like(o);
    const Options options = on_a_gpu(ctx->saved_data["how"].toStringRef());
    const Inputs in = from.views();
    Outputs known{.o = view_of("o", by_heads(o, heads[2]))};
    if (lse.dim() == 3) known.lse = view_of("lse", lse);
    const Room room(rows, in, options);
    foci::attend_backward({.d_o = view_of("d_o", by_heads(d_o, heads[2])),
                           .dq = view_of("dq", d.q),
                           .dk = view_of("dk", d.k),
                           .dv = view_of("dv", d.v),
                           .dv_prev = view_of("dv_prev", dv_prev)},
                          in, known, options, room.call());
    if (above[1].defined()) at::Tensor(d.v).add_(above[1]);
    return {drows, dv_prev, {}, {}, {}};
  }
};

}  // namespace

bool attends_rows(const Rows& from, const Options& how) {
  const at::Tensor& qkv = from.qkv;
  const bool here = how.backend == Backend::automatic || how.backend == Backend::cuda;
  const bool narrow = qkv.scalar_type() == at::kBFloat16 || qkv.scalar_type() == at::kHalf;
  const bool alike = !from.v_prev.defined() || from.v_prev.scalar_type() == qkv.scalar_type();
  return fuses(qkv) && here && narrow && alike && qkv.is_contiguous() && !Watch::current();
}

AttendedRows attend_rows(const Rows& from, const Options& how) {
  const variable_list made = AttendRowsFunction::apply(from.qkv, Tensors::maybe(from.v_prev),
                                                       Tensors::maybe(from.key_mask),
                                                       Heads{from.H, from.G, from.D}, text_of(how));
  return {made[0], made[1]};
}

}  // namespace foci::nn
