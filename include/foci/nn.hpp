// SPDX-License-Identifier: Apache-2.0
// foci in libtorch: attention as one differentiable call, its row statistics, and layers with
// torch's names. State dicts are those of the Python package, so weights go both ways.
#pragma once

#include <foci/export.h>
#include <foci/call.hpp>
#include <foci/decode.hpp>
#include <foci/error.hpp>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace foci::nn {

/// What a call may have beside q, k, v; undefined = absent. Shapes are those of foci::Inputs.
struct Extras {
  at::Tensor v_prev = {};     ///< (B,G,M,E), with a gradient when the metric's is `through`
  at::Tensor key_mask = {};   ///< (B,M) bool, true = keep
  at::Tensor key_bias = {};   ///< (B,H,M) or (B,G,M), with a gradient
  at::Tensor metric = {};     ///< metric `given`, with a gradient
  at::Tensor q_offsets = {};  ///< (S+1) packed sequences
  at::Tensor k_offsets = {};
};

/// o (B,H,N,E), differentiable; through torch's dispatcher, so autocast holds. No copies, torch's
/// threads, the same bits for any number of them. A second derivative is refused when asked for.
///   auto o = nn::attend(q, k, v, {.v_prev = below}, {.metric = LayerChange{}});
FOCI_API at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Extras& extras = {}, const Options& how = {});

/// Row statistics (B,H,N) without the N x M matrix; undefined where the mechanism has none.
struct Statistics {
  at::Tensor o, lse, concentration, effective_keys, entropy, largest, largest_at, metric;
};
FOCI_API Statistics measure(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Extras& extras = {}, const Options& how = {});

/// Where a learned metric begins: m = 1 or P = I; the estimate from the first training batch (how
/// values change, so m = 1 on the lowest layer, or the keys' covariance); a draw from torch's
/// generator.
enum class Init { identity, estimate, random };

/// A metric that is a parameter: m = softplus (G,D), or P = L L' (G,D,D). In place of Options'.
struct Learned {
  Extent extent = Extent::diagonal;
  Form form = Form::product;  ///< of a diagonal one
  Init init = Init::identity;
};

/// Scope `running`: the estimate averaged over past training batches, fixed at evaluation.
struct Running {
  double momentum = 0.99;
};

/// Layers on a GPU under autocast to 16 bits go by passes of foci's own (foci/fused.hpp), numbers
/// between products in f32. While one of these lives, what its thread calls takes torch's
/// operators.
class FOCI_API Unfused {
 public:
  Unfused();
  ~Unfused();
  Unfused(const Unfused&) = delete;
  Unfused& operator=(const Unfused&) = delete;
};

struct AttentionOptions {
  std::int64_t dim = 0;       ///< size of a token
  std::int64_t heads = 1;     ///< query heads
  std::int64_t kv_heads = 0;  ///< key heads; 0 = as many
  std::int64_t head_dim = 0;  ///< 0 = dim / heads
  bool qkv_bias = true, proj_bias = true;
  Options how = {};  ///< key-covariance: here prior D and scale 1/sqrt(D) unless given
  std::optional<Learned> learned = {};
  std::optional<Running> running = {};
  bool lowest = false;  ///< no layer below: layer-change and flat are `dot`
};

struct Mechanism;

/// Tokens so far of one layer, for decoding; room for `capacity` of them.
class FOCI_API Cache {
 public:
  explicit Cache(std::int64_t capacity);
  ~Cache();
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;
  std::int64_t length() const;
  void reset();

 private:
  friend class AttentionImpl;
  std::int64_t capacity_;
  std::unique_ptr<Decoder> decoder_;
};

/// Self-attention: parameters `qkv` (rows q|k|v) and `proj`; the buffer `mechanism` holds every
/// setting as text. A checkpoint made under other settings is refused.
class FOCI_API AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const AttentionOptions& options);
  ~AttentionImpl() override;

  struct Result {
    at::Tensor y;  ///< (B,N,dim)
    at::Tensor v;  ///< (B,G,N,D): the next layer's v_prev
  };
  /// x (B,N,dim), v_prev (B,G,N,D) of the layer below, key_mask (B,N) true = keep, key_bias
  /// (B,H,N) or (B,G,N).
  Result forward(const at::Tensor& x, const at::Tensor& v_prev = {},
                 const at::Tensor& key_mask = {}, const at::Tensor& key_bias = {});
  /// The tokens x after those that `cache` holds, as forward would give them. Causal layers,
  /// without gradients.
  Result step(const at::Tensor& x, Cache& cache, const at::Tensor& v_prev = {},
              const at::Tensor& key_mask = {});

  /// "metric=layer-change weighting=softmax ...": what the buffer `mechanism` holds.
  const std::string& mechanism() const;
  void load(torch::serialize::InputArchive& archive) override;
  /// Called by load_weights: throws InvalidArgument when `stored` means something else.
  void check_mechanism(const std::string& name, const at::Tensor& stored) const;
  /// A learned metric came from a checkpoint: it waits for no first batch.
  void loaded();

  torch::nn::Linear qkv = nullptr, proj = nullptr;
  at::Tensor metric_raw, metric_factor;                                ///< learned
  at::Tensor metric_drawn;                                             ///< random
  at::Tensor running_m, running_mean, running_scatter, running_steps;  ///< scope running

 private:
  struct Projected;
  Projected project(const at::Tensor& x, const at::Tensor& v_prev, const at::Tensor& key_mask);
  void remember();
  void start(const Projected& p);
  void observe(const Projected& p);
  at::Tensor given_metric() const;
  std::pair<at::Tensor, at::Tensor> raw(const Projected& p) const;

  AttentionOptions options_;
  std::unique_ptr<Mechanism> how_;
  bool awaits_ = false;
};
TORCH_MODULE(Attention);

/// fc2(gelu(fc1(x))), with the exact GELU.
class FOCI_API MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(std::int64_t dim, std::int64_t hidden);
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear fc1 = nullptr, fc2 = nullptr;
};
TORCH_MODULE(Mlp);

struct BlockOptions {
  AttentionOptions attention;
  double mlp_ratio = 4;
};

/// Pre-norm transformer block: x + attn(norm1(x)), then x + mlp(norm2(x)). timm's names.
class FOCI_API BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const BlockOptions& options);
  using Result = AttentionImpl::Result;  ///< y: the tokens
  Result forward(const at::Tensor& x, const at::Tensor& v_prev = {},
                 const at::Tensor& key_mask = {}, const at::Tensor& key_bias = {});
  Result step(const at::Tensor& x, Cache& cache, const at::Tensor& v_prev = {},
              const at::Tensor& key_mask = {});

  torch::nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  Attention attn = nullptr;
  Mlp mlp = nullptr;

 private:
  Result finish(const at::Tensor& x, const Result& attended);
};
TORCH_MODULE(Block);

/// Parameters and buffers of a module as a safetensors file that torch and the Python package read.
FOCI_API void save_weights(const torch::nn::Module& module, const std::string& path);
/// Reads them back, all or nothing: a name that is missing or unknown, another shape, or another
/// mechanism throws InvalidArgument and changes nothing.
FOCI_API void load_weights(torch::nn::Module& module, const std::string& path);

}  // namespace foci::nn
