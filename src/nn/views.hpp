// SPDX-License-Identifier: Apache-2.0
// torch tensors as foci sees them: views without a copy, devices and types checked by name, torch's
// threads as an Executor, and foci's errors as the ones Python knows.
#pragma once

#include <foci/call.hpp>
#include <foci/error.hpp>
#include <foci/executor.hpp>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <optional>
#include <string>
#include <string_view>

namespace foci::nn {

#if TORCH_VERSION_MAJOR >= 2
using OptionalTensor = std::optional<at::Tensor>;
#else
using OptionalTensor = c10::optional<at::Tensor>;
#endif

/// The tensors of a call, in the order in which every operator takes them.
struct Tensors {
  at::Tensor q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets;

  static Tensors of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const OptionalTensor& v_prev, const OptionalTensor& key_mask,
                    const OptionalTensor& key_bias, const OptionalTensor& metric,
                    const OptionalTensor& q_offsets, const OptionalTensor& k_offsets);

  /// Calls f with the nine, those that are missing as nothing.
  template <class F>
  auto spread(F&& f) const {
    return f(q, k, v, maybe(v_prev), maybe(key_mask), maybe(key_bias), maybe(metric),
             maybe(q_offsets), maybe(k_offsets));
  }
  static OptionalTensor maybe(const at::Tensor& tensor) {
    return tensor.defined() ? OptionalTensor(tensor) : OptionalTensor();
  }

  template <class Visit>
  void each(Visit&& visit) const {
    visit("q", q);
    visit("k", k);
    visit("v", v);
    visit("v_prev", v_prev);
    visit("key_mask", key_mask);
    visit("key_bias", key_bias);
    visit("metric", metric);
    visit("q_offsets", q_offsets);
    visit("k_offsets", k_offsets);
  }

  /// Throws InvalidArgument unless all lie on q's device.
  void want_one_device() const;
  Inputs views() const;
};

/// Absent for an undefined tensor. Throws InvalidArgument that names the argument.
View view_of(std::string_view name, const at::Tensor& tensor);

at::ScalarType scalar_type(DType dtype);

/// What an autocast region on such a device casts to.
at::ScalarType autocast_type(c10::DeviceType device);

/// f64 beside f64, f32 beside everything else.
inline at::ScalarType wide_type(const at::Tensor& q) {
  return q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// torch's own threads for a call made from this thread, as many as torch.set_num_threads() says.
Executor& torch_threads();

/// The settings of a call; the last text read on this thread is remembered.
const Options& options_from(std::string_view how);

/// Runs f; foci's errors come out as torch's (ValueError, NotImplementedError, RuntimeError).
template <class F>
auto translated(F&& f) {
  try {
    return f();
  } catch (const InvalidArgument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const Unsupported& error) {
    C10_THROW_ERROR(NotImplementedError, error.what());
  } catch (const foci::Error& error) {
    C10_THROW_ERROR(Error, error.what());
  }
}

}  // namespace foci::nn
