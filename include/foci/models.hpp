// SPDX-License-Identifier: Apache-2.0
// Transformers whose layers have any metric and weighting: for images, for the classes of pixels,
// for sequences; and what a language model is made of. Vision transformers have timm's names and
// shapes, so that its checkpoints load.
#pragma once

#include <foci/export.h>
#include <foci/nn.hpp>
#include <foci/settings.hpp>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foci::models {

/// What the layers of a model attend with. Layers outside [first, last) have the weighting and the
/// metric dot; so has the lowest one where the metric compares values with those below.
struct Mechanism {
  Settings words = {};     ///< as the command line has them; metric learned and scope running too
  std::int64_t first = 0;  ///< the layers with the metric, counted from 0
  std::int64_t last = -1;  ///< one past; -1: to the top
};

/// Layer `index` of `depth`; dim, heads and the like are the caller's to add.
FOCI_API nn::AttentionOptions attention_of(const Mechanism& mechanism, std::int64_t index,
                                           std::int64_t depth);

/// With probability p a sample's branch is left out in training, the others grow by 1/(1-p).
FOCI_API at::Tensor drop_path(const at::Tensor& branch, double p, bool training);

struct VitOptions {
  std::int64_t image = 224, patch = 16, channels = 3;
  std::int64_t classes = 1000;  ///< 0: no head
  std::int64_t dim = 192, depth = 12, heads = 3;
  double mlp_ratio = 4;
  double drop_path = 0;  ///< of the last layer; it grows from 0 at the first
  Mechanism mechanism = {};
};

/// patch_embed.proj, cls_token, pos_embed, blocks.*, norm, head.
class FOCI_API VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const VitOptions& options);
  /// images (B,C,S,S) to logits (B,classes).
  at::Tensor forward(const at::Tensor& images);
  /// The class token and the patches after the last norm, (B,1+P,dim).
  at::Tensor tokens(const at::Tensor& images);
  const VitOptions& options() const { return options_; }

  torch::nn::Conv2d proj = nullptr;
  at::Tensor cls_token, pos_embed;  ///< (1,1,dim), (1,1+P,dim)
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear head = nullptr;

 private:
  VitOptions options_;
};
TORCH_MODULE(Vit);

struct SegmenterOptions {
  VitOptions encoder = {};  ///< its image is a window; it has no head
  std::int64_t classes = 150;
  std::int64_t decoder_depth = 2, decoder_heads = 3;
  Mechanism decoder = {};  ///< of the mask transformer's layers
};

/// Strudel et al.'s Segmenter: patches from a vision transformer, then layers over them and a token
/// for each class; a mask is the product of a class and the patches, both of length 1. encoder.*,
/// decoder.{proj_dec, blocks.*, decoder_norm, mask_norm, cls_emb, proj_patch, proj_classes}.
class FOCI_API SegmenterImpl : public torch::nn::Module {
 public:
  explicit SegmenterImpl(const SegmenterOptions& options);
  /// images (B,C,S,S) to logits (B,classes,S,S).
  at::Tensor forward(const at::Tensor& images);
  /// The same before they are made as large as the image, (B,classes,S/patch,S/patch).
  at::Tensor masks(const at::Tensor& images);
  const SegmenterOptions& options() const { return options_; }

  Vit encoder = nullptr;
  torch::nn::Linear proj_dec = nullptr;
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm decoder_norm = nullptr, mask_norm = nullptr;
  at::Tensor cls_emb, proj_patch, proj_classes;  ///< (1,classes,dim), (dim,dim), (dim,dim)

 private:
  SegmenterOptions options_;
};
TORCH_MODULE(Segmenter);

/// Logits (classes,H,W) of an image (C,H,W) of any size: windows of the model's size begin every
/// `stride` pixels, the last ones at the border; where they overlap the mean counts. An image that
/// is smaller is filled up with 0. Without gradients, `batch` windows at once.
FOCI_API at::Tensor sliding_logits(Segmenter& model, const at::Tensor& image, std::int64_t stride,
                                   std::int64_t batch = 8);

/// How often pixels of a class were taken for another.
class FOCI_API Confusion {
 public:
  static constexpr std::int64_t ignored = 255;  ///< pixels with this label do not count

  explicit Confusion(std::int64_t classes);
  /// labels and guesses of one shape, whole numbers. Throws InvalidArgument for a class that is
  /// none.
  void add(const at::Tensor& labels, const at::Tensor& guesses);
  double pixel_accuracy() const;  ///< share of the pixels that are right
  double mean_accuracy() const;   ///< of each class's pixels, the mean over classes that occur
  double mean_iou() const;        ///< right / (labelled or guessed so), over those that occur so
  /// The same for each class, NaN where it is neither a label nor a guess.
  at::Tensor iou() const;
  const at::Tensor& counts() const { return counts_; }  ///< (label, guess) i64

 private:
  at::Tensor counts_;
};

enum class Pooling { mean, cls };

/// Tokens when there is a vocabulary (Long Range Arena), else steps of numbers (time series).
struct SequenceOptions {
  std::int64_t vocabulary = 0, channels = 0;
  std::int64_t length = 1024;  ///< tokens or steps at most
  std::int64_t classes = 10, dim = 64, depth = 2, heads = 2;
  std::int64_t head_dim = 0;  ///< 0 = dim / heads
  double mlp_ratio = 2;
  Pooling pooling = Pooling::mean;
  double dropout = 0;    ///< of the embedding and of what each branch adds
  double drop_path = 0;  ///< of the last layer; it grows from 0 at the first
  Mechanism mechanism = {};
};

/// embed, pos_embed, cls_token (with pooling cls), blocks.*, norm, head.
class FOCI_API SequenceImpl : public torch::nn::Module {
 public:
  explicit SequenceImpl(const SequenceOptions& options);
  /// tokens (B,N) i64 or steps (B,N,channels) to logits (B,classes). lengths (B) i64 on the CPU:
  /// what comes after them is padding and changes nothing.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& lengths = {});
  const SequenceOptions& options() const { return options_; }

  torch::nn::Embedding tokens = nullptr;  ///< either this
  torch::nn::Linear steps = nullptr;      ///< or that is `embed`
  at::Tensor pos_embed, cls_token;
  std::vector<nn::Block> blocks;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear head = nullptr;

 private:
  at::Tensor embedded(const at::Tensor& x);
  SequenceOptions options_;
};
TORCH_MODULE(Sequence);

enum class Positions { learned, rotary };
/// Which coordinates of a head rotary positions turn together: d and d + D/2, or 2d and 2d + 1. A
/// diagonal metric is averaged within them before it is normalised, as the turn would mix them.
enum class Pairs { halves, neighbours };
enum class Norm { layer, rms };
enum class Activation { gelu, gelu_tanh, swiglu };

/// As it is: GPT-2's architecture.
struct LanguageOptions {
  std::int64_t vocabulary = 50257, context = 1024;
  std::int64_t dim = 768, depth = 12, heads = 12;
  std::int64_t kv_heads = 0;  ///< 0 = as many
  std::int64_t hidden = 0;    ///< of the MLP; 0 = 4 dim
  Positions positions = Positions::learned;
  Pairs pairs = Pairs::halves;
  double rotary_base = 10000;
  Norm norm = Norm::layer;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu_tanh;
  bool biases = true;        ///< of the blocks' products
  bool tied = true;          ///< the head is the embedding
  double dropout = 0;        ///< of the embedding and of what each branch adds
  double head_dropout = 0;   ///< of what the head reads
  Mechanism mechanism = {};  ///< causal whether it says so or not
};

/// Weights of a plain model from a safetensors file, all or nothing: the parameters that every
/// mechanism has, by name. What a mechanism adds of its own keeps what it has, so a pretrained
/// plain checkpoint goes into a model of any metric; a file without `head.` leaves the model its
/// own head, for other classes. Positions of a Vit for images of another size are resampled as
/// timm does it, with a warning that says so. Throws InvalidArgument.
FOCI_API void load_plain(torch::nn::Module& module, const std::string& path);
/// The parameters of a module that a plain checkpoint has, by name.
FOCI_API std::map<std::string, at::Tensor> plain_weights(const torch::nn::Module& module);

/// A model that `foci models` lists; it has the options of its kind.
struct Listed {
  std::string_view name, task, about;
  VitOptions vit = {};
  std::optional<SegmenterOptions> segmenter = {};
  std::optional<SequenceOptions> sequence = {};
  std::optional<LanguageOptions> language = {};
};
FOCI_API const std::vector<Listed>& listed();
/// Throws InvalidArgument with the nearest name.
FOCI_API const Listed& find(std::string_view name);

/// Numbers that are trained, and multiply-adds of one sample forward, attention's included.
struct Size {
  std::int64_t parameters = 0;
  double multiply_adds = 0;
};
FOCI_API Size size_of(const VitOptions& options);
FOCI_API Size size_of(const SegmenterOptions& options);
FOCI_API Size size_of(const SequenceOptions& options);  ///< of a sequence as long as it may be
FOCI_API Size size_of(const LanguageOptions& options);  ///< of a context full of tokens
FOCI_API Size size_of(const Listed& model);

}  // namespace foci::models
