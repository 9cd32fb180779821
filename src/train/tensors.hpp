// SPDX-License-Identifier: Apache-2.0
// torch's tensors as views for files, and what files and batches hold as torch's tensors. Types are
// those that models, optimisers and batches have.
#pragma once

#include <foci/error.hpp>
#include <foci/tensor.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <functional>
#include <span>
#include <string>
#include <utility>

namespace foci::train {

inline constexpr std::pair<DType, at::ScalarType> types[] = {
    {DType::f64, at::kDouble}, {DType::f32, at::kFloat},   {DType::bf16, at::kBFloat16},
    {DType::f16, at::kHalf},   {DType::i64, at::kLong},    {DType::i32, at::kInt},
    {DType::u8, at::kByte},    {DType::boolean, at::kBool}};

/// Of a contiguous tensor on the processor; a scalar has shape (1).
inline View view_of(const std::string& name, const at::Tensor& tensor) {
  constexpr std::int64_t one = 1;
  const std::span<const std::int64_t> sizes(tensor.sizes().data(), tensor.sizes().size());
  for (const auto& [ours, theirs] : types) {
    if (theirs != tensor.scalar_type()) continue;
    return View(tensor.data_ptr(), ours, sizes.empty() ? std::span(&one, 1) : sizes);
  }
  throw InvalidArgument(name + " has a type that no checkpoint holds");
}

/// Of the view's own memory; `release` is called when the tensor goes.
inline at::Tensor tensor_of(const View& view, const std::function<void(void*)>& release) {
  at::ScalarType type = at::kFloat;
  for (const auto& [ours, theirs] : types) {
    if (ours == view.dtype) type = theirs;
  }
  const at::IntArrayRef sizes(view.shape.data(), std::size_t(view.rank));
  return at::from_blob(view.data, sizes, release, at::TensorOptions().dtype(type));
}

}  // namespace foci::train
