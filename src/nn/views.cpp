// SPDX-License-Identifier: Apache-2.0
// torch tensors as views, torch's threads as an Executor.
#include "nn/views.hpp"

#include <foci/settings.hpp>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>

#include <fmt/core.h>

#include <array>
#include <memory>
#include <optional>

namespace foci::nn {
namespace {

struct Pair {
  at::ScalarType theirs;
  DType ours;
};
constexpr std::array<Pair, 8> types{{{at::kDouble, DType::f64},
                                     {at::kFloat, DType::f32},
                                     {at::kBFloat16, DType::bf16},
                                     {at::kHalf, DType::f16},
                                     {at::kLong, DType::i64},
                                     {at::kInt, DType::i32},
                                     {at::kByte, DType::u8},
                                     {at::kBool, DType::boolean}}};

std::optional<DType> dtype_of(at::ScalarType theirs) {
  for (const Pair& pair : types) {
    if (pair.theirs == theirs) return pair.ours;
  }
  return {};
}

void spread(void*, int threads, void (*work)(void*, int), void* task) {
  at::parallel_for(0, threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) work(task, int(i));
  });
}

at::Tensor or_none(const OptionalTensor& tensor) { return tensor ? *tensor : at::Tensor(); }

}  // namespace

Tensors Tensors::of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const OptionalTensor& v_prev, const OptionalTensor& key_mask,
                    const OptionalTensor& key_bias, const OptionalTensor& metric,
                    const OptionalTensor& q_offsets, const OptionalTensor& k_offsets) {
  return {q,
          k,
          v,
          or_none(v_prev),
          or_none(key_mask),
          or_none(key_bias),
          or_none(metric),
          or_none(q_offsets),
          or_none(k_offsets)};
}

void Tensors::want_one_device() const {
  each([&](std::string_view name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() == q.device()) return;
    if (name.ends_with("_offsets") && tensor.is_cpu()) return;  // a GPU's kernels want them there
    throw InvalidArgument(fmt::format("{} is on {} and q on {}; move it with {}.to({})", name,
                                      tensor.device().str(), q.device().str(), name, "q.device"));
  });
}

Inputs Tensors::views() const {
  return {.q = view_of("q", q),
          .k = view_of("k", k),
          .v = view_of("v", v),
          .v_prev = view_of("v_prev", v_prev),
          .key_mask = view_of("key_mask", key_mask),
          .key_bias = view_of("key_bias", key_bias),
          .metric = view_of("metric", metric),
          .q_offsets = view_of("q_offsets", q_offsets),
          .k_offsets = view_of("k_offsets", k_offsets)};
}

View view_of(std::string_view name, const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  if (!dtype) {
    throw InvalidArgument(
        fmt::format("{} has type {}; it must be float64, float32, bfloat16 or "
                    "float16",
                    name, c10::toString(tensor.scalar_type())));
  }
  const auto sizes = tensor.sizes();
  if (sizes.empty() || sizes.size() > max_rank) {
    throw InvalidArgument(
        fmt::format("{} has {} axes; it must have 1 to {}", name, sizes.size(), max_rank));
  }
  View view(tensor.data_ptr(), *dtype, std::span(sizes.data(), sizes.size()));
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    view.strides[axis] = tensor.strides()[axis];
  }
  return view;
}

at::ScalarType scalar_type(DType dtype) {
  for (const Pair& pair : types) {
    if (pair.ours == dtype) return pair.theirs;
  }
  return at::kFloat;
}

at::ScalarType autocast_type(c10::DeviceType device) {
#if TORCH_VERSION_MAJOR >= 2
  return at::autocast::get_autocast_dtype(device);
#else
  return device == c10::DeviceType::CPU ? at::autocast::get_autocast_cpu_dtype()
                                        : at::autocast::get_autocast_gpu_dtype();
#endif
}

Executor& torch_threads() {
  thread_local std::unique_ptr<Executor> mine;
  const int threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  if (!mine || mine->threads() != threads) {
    mine = std::make_unique<Executor>(threads, &spread, nullptr);
  }
  return *mine;
}

const Options& options_from(std::string_view how) {
  thread_local std::string text;
  thread_local Options options;
  if (text != how) {
    options = options_of(parse_settings(how));
    text = how;
  }
  return options;
}

}  // namespace foci::nn
