// SPDX-License-Identifier: Apache-2.0
// The tensors of one call by the names they have in a file, and the call made ready: outputs,
// gradients and workspace allocated once, forward and backward callable again and again.
#pragma once

#include <foci/call.hpp>
#include <foci/device.hpp>
#include <foci/executor.hpp>
#include <foci/safetensors.hpp>
#include <foci/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace foci::cli {

struct Sizes {
  std::int64_t B = 1, H = 1, G = 1, N = 1, M = 1, D = 1, E = 1;
};

/// q k v [v_prev] [key_mask] [key_bias] [metric] [q_offsets] [k_offsets] and the gradient of o,
/// [do].
struct Problem {
  std::map<std::string, Tensor> tensors;

  View view(const std::string& name) const;  ///< absent when there is none
  Inputs inputs() const;
  Sizes sizes() const;
  std::size_t bytes() const;
};

/// What `how` needs of an opened file; floating tensors in `dtype`. Throws FileError without q, k
/// and v.
Problem read_problem(const Safetensors& file, const std::string& path, const Options& how,
                     DType dtype);

/// A copy with the floating tensors in `dtype`.
Problem converted(const Problem& from, DType dtype);

struct Wanted {
  bool statistics = true;
  bool gradients = true;  ///< when the problem has `do`
};

/// A call with everything it writes to, on the GPU where the backend is. The problem must outlive
/// it.
class Prepared {
 public:
  Prepared(const Problem& problem, const Options& how, Executor& threads, const Wanted& wanted);

  void forward();
  void backward();
  bool has_gradients() const { return bool(gradients_.d_o); }

  /// o, statistics, metric, gradients, by name.
  const std::map<std::string, Tensor>& tensors() const;
  std::map<std::string, Tensor> take() && { return tensors(), std::move(tensors_); }
  /// Inputs, outputs and workspace: all the memory of a call.
  std::size_t bytes() const;

 private:
  View make(const std::string& name, DType dtype, std::span<const std::int64_t> shape);
  View placed(const View& host);
  void place_inputs();
  Call call();
  void make_outputs(const Wanted& wanted);
  void make_gradients();

  const Problem& problem_;
  Options how_;
  Executor& threads_;
  Inputs inputs_;
  Outputs outputs_;
  Gradients gradients_;
  mutable std::map<std::string, Tensor> tensors_;  // cuda: as last asked for
  std::vector<std::byte> workspace_;
  // Backend cuda: what came along, what comes out, the workspace.
  bool on_gpu_;
  std::vector<DeviceTensor> there_;
  std::map<std::string, DeviceTensor> made_there_;
  DeviceTensor workspace_there_;
};

/// Forward, and backward when the problem has `do`.
std::map<std::string, Tensor> answers(const Problem& problem, const Options& how,
                                      Executor& threads);

}  // namespace foci::cli
