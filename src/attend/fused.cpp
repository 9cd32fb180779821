// SPDX-License-Identifier: Apache-2.0
// The fused passes of a transformer block: what they take, and the words for what they do not.
// There is one backend for them, the CUDA one.
#include <foci/fused.hpp>

#include <foci/error.hpp>

#ifdef FOCI_HAS_CUDA
#include "cuda/fused.hpp"
#endif

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

namespace foci::fused {

#ifdef FOCI_HAS_CUDA
namespace {

constexpr std::int64_t most_normed = 4096;

using Types = std::initializer_list<DType>;
constexpr Types wide = {DType::f32};
constexpr Types narrow = {DType::bf16, DType::f16};
constexpr Types any = {DType::f32, DType::bf16, DType::f16};

/// Throws unless the view has this shape and one of these types and lies as kernels read it.
void want(std::string_view name, const View& view, Shape shape, Types types) {
  if (!view) throw InvalidArgument(fmt::format("{} is missing", name));
  if (Shape(view.sizes().begin(), view.sizes().end()) != shape) {
    throw InvalidArgument(fmt::format("{} has shape {}; it must be {}", name,
                                      to_string(view.sizes()), to_string(shape)));
  }
  if (std::find(types.begin(), types.end(), view.dtype) == types.end()) {
    std::string names;
    for (const DType type : types)
      names += (names.empty() ? "" : " or ") + std::string(name_of(type));
    throw InvalidArgument(
        fmt::format("{} has type {}; it must be {}", name, name_of(view.dtype), names));
  }
  if (!view.contiguous() || reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) {
    throw InvalidArgument(
        fmt::format("{} must be row-major and begin at a multiple of 16 bytes", name));
  }
}

/// The shape of a matrix that comes in.
Shape matrix(std::string_view name, const View& view, std::int64_t most_columns) {
  if (!view) throw InvalidArgument(fmt::format("{} is missing", name));
  if (view.rank != 2) {
    throw InvalidArgument(
        fmt::format("{} has {} axes; it must have 2: (rows, columns)", name, view.rank));
  }
  const std::int64_t columns = view.shape[1];
  if (columns < 8 || columns % 8 != 0 || columns > most_columns) {
    throw InvalidArgument(fmt::format("{} has {} columns; they must be a multiple of 8 up to {}",
                                      name, columns, most_columns));
  }
  return {view.shape[0], columns};
}

/// Sixteen-bit numbers of one call are of one type.
void want_alike(const View& branch, std::string_view name, const View& y) {
  if (!branch || branch.dtype == y.dtype) return;
  if (branch.dtype == DType::f32 || y.dtype == DType::f32) return;
  throw InvalidArgument(
      fmt::format("branch has type {} and {} has type {}; 16-bit numbers must be "
                  "of one type",
                  name_of(branch.dtype), name, name_of(y.dtype)));
}

Shape check(const Residual& from) {
  Shape all = matrix("x", from.x, most_normed);
  want("x", from.x, all, wide);
  if (from.branch) want("branch", from.branch, all, any);
  if (from.scale) {
    const std::int64_t count = from.scale.count();
    want("scale", from.scale, {count}, wide);
    if (!from.branch) throw InvalidArgument("scale came without the branch that it belongs to");
    if (count < 1 || all[0] % count != 0) {
      throw InvalidArgument(
          fmt::format("scale has {} numbers; they must divide {} rows", count, all[0]));
    }
  }
  want("weight", from.weight, {all[1]}, wide);
  want("bias", from.bias, {all[1]}, wide);
  return all;
}

/// Throws unless the call has room for sums.
cuda::Run run_of(const Call& call, std::int64_t columns) {
  if (const std::size_t needed = workspace(columns); call.workspace.size() < needed) {
    throw InvalidArgument(fmt::format("the workspace has {} bytes; {} columns need {}",
                                      call.workspace.size(), columns, needed));
  }
  return {.memory = call.workspace, .stream = call.stream};
}

constexpr std::int64_t most_summed = std::int64_t(1) << 17;

}  // namespace

void add_norm(const Normed& to, const Residual& from, const Call& call) {
  const Shape all = check(from), rows = {all[0]};
  want("y", to.y, all, any);
  want_alike(from.branch, "y", to.y);
  if (from.branch) want("the sum", to.x, all, wide);
  want("mean", to.mean, rows, wide);
  want("rstd", to.rstd, rows, wide);
  cuda::want_device();
  cuda::add_norm(to, from, call.stream);
}

void add_norm_backward(const NormGradients& to, const Residual& from, const Normed& saved,
                       const Call& call) {
  const Shape all = check(from), rows = {all[0]}, columns = {all[1]};
  if (from.branch) want("the sum", saved.x, all, wide);
  want("mean", saved.mean, rows, wide);
  want("rstd", saved.rstd, rows, wide);
  want("dy", to.dy, all, any);
  want_alike(from.branch, "dy", to.dy);
  if (to.from_x) want("from_x", to.from_x, all, wide);
  want("dx", to.dx, all, wide);
  if (to.dbranch) {
    if (!from.branch) throw InvalidArgument("dbranch came without a branch");
    want("dbranch", to.dbranch, all, {from.branch.dtype});
  }
  want("dweight", to.dweight, columns, wide);
  want("dbias", to.dbias, columns, wide);
  cuda::want_device();
  cuda::add_norm_backward(to, from, saved, run_of(call, all[1]));
}

void column_sums(const View& to, const View& from, const Call& call) {
  const Shape all = matrix("the matrix", from, most_summed);
  want("the matrix", from, all, any);
  want("its sums", to, {all[1]}, wide);
  cuda::want_device();
  cuda::column_sums(to, from, run_of(call, all[1]));
}

void gelu(const View& to, const View& from, const Call& call) {
  const Shape all = matrix("x", from, most_summed);
  want("x", from, all, narrow);
  want("gelu(x)", to, all, {from.dtype});
  cuda::want_device();
  cuda::gelu(to, from, call.stream);
}

void gelu_backward(const GeluGradients& to, const View& x, const Call& call) {
  const Shape all = matrix("x", x, most_summed);
  want("x", x, all, narrow);
  want("dy", to.dy, all, {x.dtype});
  want("dx", to.dx, all, {x.dtype});
  want("dx_sum", to.dx_sum, {all[1]}, wide);
  cuda::want_device();
  cuda::gelu_backward(to, x, run_of(call, all[1]));
}

std::size_t workspace(std::int64_t columns) { return cuda::fused_workspace(columns); }

#else
namespace {

[[noreturn]] void refuse() {
  throw Unsupported("this build of foci has no CUDA kernels; the nearest are torch's operators");
}

}  // namespace

void add_norm(const Normed&, const Residual&, const Call&) { refuse(); }
void add_norm_backward(const NormGradients&, const Residual&, const Normed&, const Call&) {
  refuse();
}
void column_sums(const View&, const View&, const Call&) { refuse(); }
void gelu(const View&, const View&, const Call&) { refuse(); }
void gelu_backward(const GeluGradients&, const View&, const Call&) { refuse(); }
std::size_t workspace(std::int64_t) { refuse(); }

#endif

}  // namespace foci::fused
