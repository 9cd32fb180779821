// SPDX-License-Identifier: Apache-2.0
// Weights of language models from others' files: GPT-2 as Hugging Face names it, llama2.c's models,
// as they are or converted. All or nothing; what a file lacks, has too much or has in another shape
// is named.
#include "models/gpt2_config.hpp"
#include "nn/views.hpp"

#include <foci/error.hpp>
#include <foci/language.hpp>
#include <foci/safetensors.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <fmt/core.h>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace foci::models {
namespace {

at::Tensor tensor_of(const View& view) {
  return at::from_blob(view.data, at::IntArrayRef(view.shape.data(), std::size_t(view.rank)),
                       at::TensorOptions().dtype(nn::scalar_type(view.dtype)));
}

/// A file of GPT-2's tensors, by their names without `transformer.`; remembers which were taken.
class Gpt2File {
 public:
  explicit Gpt2File(const std::string& path) : path_(path), file_(path) {
    if (file_.contains("transformer.wte.weight")) prefix_ = "transformer.";
  }

  View find(const std::string& name, int rank) {
    const std::string whole = prefix_ + name;
    if (!file_.contains(whole))
      throw FileError(fmt::format("{}: has no tensor {}, which GPT-2 has", path_, whole));
    taken_.insert(whole);
    const View view = file_.find(whole);
    if (view.rank != rank || !is_floating(view.dtype)) {
      throw FileError(fmt::format("{}: {} has shape {} of {}; GPT-2's has {} extents of floats",
                                  path_, whole, to_string(view.sizes()), name_of(view.dtype),
                                  rank));
    }
    return view;
  }
  bool contains(const std::string& name) const { return file_.contains(prefix_ + name); }

  /// lm_head.weight where it is not the embedding once more; it never has the prefix.
  View own_head(const View& embedding) {
    const View head = file_.find("lm_head.weight");
    if (head) taken_.insert("lm_head.weight");
    const bool same = head && tensor_of(head).equal(tensor_of(embedding));
    return same ? View() : head;
  }
  /// Masks that older files store are no weights.
  void refuse_others() const {
    for (const std::string& name : file_.names()) {
      const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
      if (!mask && !taken_.contains(name))
        throw FileError(fmt::format("{}: holds {}, which GPT-2 does not have", path_, name));
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_, prefix_;
  Safetensors file_;
  std::set<std::string> taken_;
};

/// The weights that go into a model, judged before any is copied.
class Copies {
 public:
  explicit Copies(std::string path) : path_(std::move(path)) {}
  void add(const std::string& name, const at::Tensor& to, const at::Tensor& from) {
    if (to.sizes() != from.sizes()) {
      throw FileError(fmt::format("{}: {} has shape {}; this model needs {}", path_, name,
                                  to_string(std::span(from.sizes())),
                                  to_string(std::span(to.sizes()))));
    }
    all_.emplace_back(to, from);
  }
  void run() const {
    const at::NoGradGuard without;
    for (const auto& [to, from] : all_) at::Tensor(to).copy_(from);
  }

 private:
  std::string path_;
  std::vector<std::pair<at::Tensor, at::Tensor>> all_;
};

/// Of the file beside the tensors; what holds where there is none.
Gpt2Config config_beside(const std::string& path) {
  const std::string config = (std::filesystem::path(path).parent_path() / "config.json").string();
  std::ifstream file(config, std::ios::binary);
  if (!file) return {};
  std::ostringstream text;
  text << file.rdbuf();
  return parse_gpt2_config(text.str(), config);
}

/// Sizes are the tensors'; what they do not tell is config.json's.
LanguageOptions gpt2_options(Gpt2File& file, const Mechanism& mechanism) {
  const Gpt2Config config = config_beside(file.path());
  const View embedding = file.find("wte.weight", 2), places = file.find("wpe.weight", 2);
  LanguageOptions o;
  o.vocabulary = embedding.shape[0];
  o.dim = embedding.shape[1];
  o.context = places.shape[0];
  o.depth = 0;
  while (file.contains(fmt::format("h.{}.ln_1.weight", o.depth))) ++o.depth;
  if (o.depth > 0) o.hidden = file.find("h.0.mlp.c_fc.weight", 2).shape[1];
  o.heads = config.heads > 0 ? config.heads : o.dim / 64;
  if (o.heads < 1 || o.dim % o.heads != 0) {
    throw FileError(fmt::format("{}: {} heads over dim {}; config.json must say n_head",
                                file.path(), o.heads, o.dim));
  }
  o.norm_eps = config.norm_eps;
  if (config.activation == "gelu") o.activation = Activation::gelu;
  o.tied = !file.own_head(embedding);
  o.mechanism = mechanism;
  return o;
}

/// A whole number that `foci convert` writes beside llama2.c's weights.
std::int64_t number_in(const Safetensors& file, const std::string& path, const char* name) {
  constexpr std::int64_t most = 1 << 20;
  const auto found = file.metadata().find(name);
  if (found == file.metadata().end()) {
    throw FileError(
        fmt::format("{}: does not say its {}; foci convert writes it for llama2.c's "
                    "models, and a run's own weights go by the run",
                    path, name));
  }
  std::int64_t number = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [at, fault] = std::from_chars(found->second.data(), end, number);
  if (fault == std::errc{} && at == end && number >= 1 && number <= most) return number;
  throw FileError(fmt::format("{}: its metadata's {} is no number from 1 to {}", path, name, most));
}

std::int64_t extent(const Safetensors& file, const std::string& path, const char* name, int axis) {
  const View view = file.find(name);
  if (view && view.rank == 2) return view.shape[std::size_t(axis)];
  throw FileError(fmt::format("{}: has no matrix {}, which a model of llama2.c has", path, name));
}

/// llama2.c's, whichever file they come from.
LanguageOptions llama2c_options() {
  return {.positions = Positions::rotary,
          .pairs = Pairs::neighbours,
          .norm = Norm::rms,
          .activation = Activation::swiglu,
          .biases = false};
}

Language read_converted(const std::string& path, const Mechanism& mechanism) {
  const Safetensors file(path);
  LanguageOptions o = llama2c_options();
  o.vocabulary = extent(file, path, "embed.weight", 0);
  o.dim = extent(file, path, "embed.weight", 1);
  o.heads = number_in(file, path, "heads");
  o.kv_heads = number_in(file, path, "kv_heads");
  o.context = number_in(file, path, "context");
  o.hidden = extent(file, path, "blocks.0.mlp.fc1.weight", 0);
  o.depth = 0;
  while (file.contains(fmt::format("blocks.{}.norm1.weight", o.depth))) ++o.depth;
  o.tied = !file.contains("head.weight");
  o.mechanism = mechanism;
  if (o.depth < 1 || o.dim % o.heads != 0 || o.dim / o.heads % 2 != 0 || o.heads % o.kv_heads != 0)
    throw FileError(
        fmt::format("{}: {} layers of dim {} with {} heads and {} key heads; is this a "
                    "llama2.c model?",
                    path, o.depth, o.dim, o.heads, o.kv_heads));
  Language model(o);
  load_plain(*model, path);
  return model;
}

}  // namespace

Language read_language(const std::string& path, const Mechanism& mechanism) {
  const bool folder = std::filesystem::is_directory(path);
  const bool converted = !folder && Safetensors(path).contains("embed.weight");
  return converted ? read_converted(path, mechanism) : read_gpt2(path, mechanism);
}

Language read_gpt2(const std::string& path, const Mechanism& mechanism) {
  const bool folder = std::filesystem::is_directory(path);
  Gpt2File file(folder ? (std::filesystem::path(path) / "model.safetensors").string() : path);
  Language model(gpt2_options(file, mechanism));
  Copies copies(file.path());
  const auto vector = [&](const std::string& name, const at::Tensor& to) {
    copies.add(name, to, tensor_of(file.find(name, 1)));
  };
  const auto norm = [&](const std::string& name, const LanguageNorm& to) {
    vector(name + ".weight", to->weight);
    vector(name + ".bias", to->bias);
  };
  // HF's Conv1D keeps (in,out).
  const auto linear = [&](const std::string& name, const torch::nn::Linear& to) {
    copies.add(name + ".weight", to->weight, tensor_of(file.find(name + ".weight", 2)).t());
    vector(name + ".bias", to->bias);
  };
  const View embedding = file.find("wte.weight", 2);
  copies.add("wte.weight", model->embed->weight, tensor_of(embedding));
  copies.add("wpe.weight", model->positions, tensor_of(file.find("wpe.weight", 2)));
  for (std::size_t i = 0; i < model->blocks.size(); ++i) {
    const LanguageBlockImpl& block = *model->blocks[i];
    const std::string h = fmt::format("h.{}.", i);
    norm(h + "ln_1", block.norm1);
    linear(h + "attn.c_attn", block.attn->qkv);
    linear(h + "attn.c_proj", block.attn->proj);
    norm(h + "ln_2", block.norm2);
    linear(h + "mlp.c_fc", block.fc1);
    linear(h + "mlp.c_proj", block.fc2);
  }
  norm("ln_f", model->norm);
  if (const View head = file.own_head(embedding))
    copies.add("lm_head.weight", model->head->weight, tensor_of(head));
  file.refuse_others();
  copies.run();
  return model;
}

Language language_of(const data::Llama2c& file, const Mechanism& mechanism) {
  LanguageOptions o = llama2c_options();
  o.vocabulary = file.vocabulary;
  o.context = file.context;
  o.dim = file.dim;
  o.depth = file.layers;
  o.heads = file.heads;
  o.kv_heads = file.kv_heads;
  o.hidden = file.hidden;
  o.tied = !file.weights.contains("head");
  o.mechanism = mechanism;
  Language model(o);
  const at::NoGradGuard without;
  const auto weight = [&](const char* name) { return tensor_of(file.weights.at(name)); };
  model->embed->weight.copy_(weight("embed"));
  for (std::size_t l = 0; l < model->blocks.size(); ++l) {
    LanguageBlockImpl& block = *model->blocks[l];
    const auto of = [&](const char* name) { return weight(name)[std::int64_t(l)]; };
    block.norm1->weight.copy_(of("norm1"));
    block.attn->qkv->weight.copy_(at::cat({of("q"), of("k"), of("v")}));
    block.attn->proj->weight.copy_(of("proj"));
    block.norm2->weight.copy_(of("norm2"));
    block.gate->weight.copy_(of("gate"));
    block.fc1->weight.copy_(of("up"));
    block.fc2->weight.copy_(of("down"));
  }
  model->norm->weight.copy_(weight("norm"));
  if (!o.tied) model->head->weight.copy_(weight("head"));
  return model;
}

}  // namespace foci::models
