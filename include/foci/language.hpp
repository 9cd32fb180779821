// SPDX-License-Identifier: Apache-2.0
// Language models: a causal transformer over tokens whose layers have any metric and weighting.
// GPT-2's and llama2.c's weights load into it; it generates text and is measured by perplexity.
#pragma once

#include <foci/export.h>
#include <foci/llama2c.hpp>
#include <foci/models.hpp>
#include <foci/share.hpp>

#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace foci::models {

class RotaryAttention;
struct RotaryCache;

/// Tokens so far of a model's layers; room for `capacity` of them.
class FOCI_API LanguageCache {
 public:
  explicit LanguageCache(std::int64_t capacity);
  ~LanguageCache();
  LanguageCache(LanguageCache&&) noexcept;
  LanguageCache& operator=(LanguageCache&&) noexcept;
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }

 private:
  friend class LanguageImpl;
  std::int64_t capacity_, length_ = 0;
  std::vector<nn::Cache> plain_;
  std::vector<RotaryCache> rotary_;
};

/// weight, and bias where it is LayerNorm.
class FOCI_API LanguageNormImpl : public torch::nn::Module {
 public:
  LanguageNormImpl(std::int64_t dim, Norm kind, double eps);
  at::Tensor forward(const at::Tensor& x);
  at::Tensor weight, bias;

 private:
  double eps_;
};
TORCH_MODULE(LanguageNorm);

/// x + attn(norm1(x)), then x + mlp(norm2(x)): fc2(gelu(fc1(x))), or fc2(silu(gate(x)) fc1(x)).
class FOCI_API LanguageBlockImpl : public torch::nn::Module {
 public:
  LanguageBlockImpl(const LanguageOptions& options, std::int64_t index);
  ~LanguageBlockImpl() override;

  LanguageNorm norm1 = nullptr, norm2 = nullptr;
  nn::Attention attn = nullptr;
  torch::nn::Linear fc1 = nullptr, fc2 = nullptr, gate = nullptr;

 private:
  friend class LanguageImpl;
  at::Tensor mlp(const at::Tensor& x);
  Activation activation_;
  std::unique_ptr<RotaryAttention> rotary_;
};
TORCH_MODULE(LanguageBlock);

/// embed, positions (learned ones), blocks.*, norm, head (one of its own).
class FOCI_API LanguageImpl : public torch::nn::Module {
 public:
  explicit LanguageImpl(const LanguageOptions& options);
  /// tokens (B,N) i64 to logits (B,N,vocabulary) of each next one.
  at::Tensor forward(const at::Tensor& tokens) { return logits(states(tokens)); }
  /// What stands before the head, (B,N,dim).
  at::Tensor states(const at::Tensor& tokens);
  /// What each part gives, (B,N,dim): "embed", "blocks.0", ..., "norm".
  std::vector<std::pair<std::string, at::Tensor>> parts(const at::Tensor& tokens);
  /// The same for the tokens (B,n) after those that `cache` holds. Without gradients.
  at::Tensor step(const at::Tensor& tokens, LanguageCache& cache);
  at::Tensor logits(const at::Tensor& states);
  const LanguageOptions& options() const { return options_; }

  torch::nn::Embedding embed = nullptr;
  at::Tensor positions;  ///< (context,dim)
  std::vector<LanguageBlock> blocks;
  LanguageNorm norm = nullptr;
  torch::nn::Linear head = nullptr;

 private:
  using Parts = std::vector<std::pair<std::string, at::Tensor>>;
  at::Tensor run(const at::Tensor& tokens, LanguageCache* cache, Parts* parts = nullptr);
  LanguageOptions options_;
};
TORCH_MODULE(Language);

/// Hugging Face's GPT-2: a folder with model.safetensors and config.json, or such a file beside its
/// config.json; names with and without `transformer.`. Without a config.json heads have size 64.
/// Whatever the metric, it takes the plain model's weights. Throws FileError.
FOCI_API Language read_gpt2(const std::string& path, const Mechanism& mechanism = {});
/// The same, or what `foci convert` made of llama2.c's file: foci's names, heads and context in the
/// metadata.
FOCI_API Language read_language(const std::string& path, const Mechanism& mechanism = {});
/// llama2.c's: rotary positions, RMSNorm, SwiGLU.
FOCI_API Language language_of(const data::Llama2c& file, const Mechanism& mechanism = {});

/// The plain weights of a model that was read from `path`, into one of the same shape, whatever its
/// metric. Its context may be shorter. Throws FileError that says what differs.
FOCI_API void begin_with(Language& model, Language& read, const std::string& path);

struct Sampling {
  std::int64_t tokens = 256;  ///< at most, and never more than the context holds
  double temperature = 0;     ///< 0: the likeliest token
  double top_p = 1;           ///< draw among the likeliest tokens that have this much together
  std::uint64_t seed = 0;
};
/// Continues the prompt (at least one token) and gives each new token to `take` until that returns
/// false. Returns how many there were.
FOCI_API std::int64_t generate(Language& model, std::span<const std::int32_t> prompt,
                               const Sampling& how, const std::function<bool(std::int32_t)>& take);

struct FOCI_API Perplexity {
  double loss = 0;           ///< mean -log p of a token, in nats
  std::int64_t counted = 0;  ///< tokens: every one but the first, and but those left out
  double perplexity() const;
  /// Of a text of so many bytes.
  double bits_per_byte(std::int64_t bytes) const;
};
/// The windows that one of several processes judges; `alive` is called now and then.
struct PerplexityPart {
  Share share = {};
  std::function<void()> alive = {};
};
/// Windows of `window` tokens begin every `stride` tokens; each predicts the tokens that no window
/// before it did, so that one sees at least window - stride tokens before it (fewer at the start).
/// `left_out`, of one number a token or empty: those that are not 0 are seen and not counted.
/// The losses of all parts add up to that of the text.
FOCI_API Perplexity perplexity(Language& model, std::span<const std::int32_t> tokens,
                               std::int64_t window, std::int64_t stride,
                               std::span<const std::uint8_t> left_out = {},
                               const PerplexityPart& part = {});

}  // namespace foci::models
