// SPDX-License-Identifier: Apache-2.0
// Names of other programs' models in timm's words. Queries, keys and values that lie apart become
// one tensor, their rows one after the other.
#include "data/rename.hpp"

#include "data/bytes.hpp"

#include <foci/error.hpp>
#include <foci/llama2c.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace foci::data {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

constexpr Pair hf_layers[] = {
    {"layernorm_before.", "norm1."},      {"attention.output.dense.", "attn.proj."},
    {"layernorm_after.", "norm2."},       {"intermediate.dense.", "mlp.fc1."},
    {"output.dense.", "mlp.fc2."},        {"attention.attention.query.", "attn.qkv."},
    {"attention.attention.key.", "skip"}, {"attention.attention.value.", "skip"},
};
constexpr Pair hf_others[] = {
    {"embeddings.cls_token", "cls_token"},
    {"embeddings.position_embeddings", "pos_embed"},
    {"embeddings.patch_embeddings.projection.", "patch_embed.proj."},
    {"layernorm.", "norm."},
    {"classifier.", "head."},
};

/// `name` with what it begins with exchanged; empty when no pair fits.
std::string exchanged(std::string_view name, std::span<const Pair> pairs) {
  for (const auto& [from, to] : pairs) {
    if (!name.starts_with(from)) continue;
    return to == "skip" ? std::string(to) : fmt::format("{}{}", to, name.substr(from.size()));
  }
  return {};
}

/// Of a name without `vit.`; empty when it is none of a ViT's.
std::string timm_name(std::string_view name) {
  constexpr std::string_view layers = "encoder.layer.";
  if (!name.starts_with(layers)) return exchanged(name, hf_others);
  name.remove_prefix(layers.size());
  const std::size_t dot = name.find('.');
  if (dot == name.npos) return {};
  std::string inside = exchanged(name.substr(dot + 1), hf_layers);
  if (inside.empty() || inside == "skip") return inside;
  return fmt::format("blocks.{}.{}", name.substr(0, dot), inside);
}

struct Owned {
  std::vector<Tensor> tensors;
  std::shared_ptr<const void> before;
};

/// Rows of tensors that differ in their first axis at most.
Tensor rows_of(const std::vector<View>& parts, const std::string& name) {
  Shape shape(parts[0].sizes().begin(), parts[0].sizes().end());
  shape[0] = 0;
  for (const View& part : parts) {
    const Shape sizes(part.sizes().begin(), part.sizes().end());
    if (part.dtype != parts[0].dtype || sizes.size() != shape.size() ||
        !std::equal(sizes.begin() + 1, sizes.end(), shape.begin() + 1)) {
      throw FileError(fmt::format("{} cannot be made of tensors of shape {} and {}", name,
                                  to_string(parts[0].sizes()), to_string(sizes)));
    }
    shape[0] += sizes[0];
  }
  Tensor whole(parts[0].dtype, shape);
  std::byte* to = whole.data<std::byte>();
  for (const View& part : parts) {
    const Tensor copy = Tensor::copy(part, part.dtype);
    const std::size_t bytes = std::size_t(part.count()) * size_of(part.dtype);
    if (bytes > 0) std::memcpy(to, copy.data<std::byte>(), bytes);
    to += bytes;
  }
  return whole;
}

}  // namespace

void rename_hf_vit(Checkpoint& checkpoint) {
  auto owned = std::make_shared<Owned>();
  owned->before = checkpoint.memory;
  std::map<std::string, View> renamed;
  for (const auto& [name, view] : checkpoint.tensors) {
    const std::string bare = name.starts_with("vit.") ? name.substr(4) : name;
    const std::string to = timm_name(bare);
    if (to == "skip") continue;  // taken with its query
    if (to.empty()) {
      throw FileError(fmt::format("{} is no name of Hugging Face's ViT", in_quotes(name)));
    }
    std::vector<View> parts = {view};
    if (const std::size_t at = name.find("query"); at != name.npos) {
      for (const std::string_view other : {"key", "value"}) {
        const auto found = checkpoint.tensors.find(std::string(name).replace(at, 5, other));
        if (found == checkpoint.tensors.end()) {
          throw FileError(fmt::format("{} has no {} beside it", in_quotes(name), other));
        }
        parts.push_back(found->second);
      }
      owned->tensors.push_back(rows_of(parts, to));
      parts = {owned->tensors.back().view()};
    }
    renamed[to] = parts[0];
  }
  checkpoint.tensors = std::move(renamed);
  checkpoint.memory = std::move(owned);
}

Checkpoint read_llama2c_checkpoint(const std::string& path) {
  auto file = std::make_shared<Llama2c>(read_llama2c(path));
  auto owned = std::make_shared<Owned>();
  owned->before = file;
  Checkpoint checkpoint{.format = "llama2.c",
                        .taken = {},
                        .left = {},
                        .tensors = {{"embed.weight", file->weights.at("embed")},
                                    {"norm.weight", file->weights.at("norm")}},
                        .metadata = {{"heads", std::to_string(file->heads)},
                                     {"kv_heads", std::to_string(file->kv_heads)},
                                     {"context", std::to_string(file->context)}},
                        .memory = owned};
  if (file->weights.contains("head")) {
    checkpoint.tensors["head.weight"] = file->weights.at("head");
  }
  constexpr Pair parts[] = {{"norm1", "norm1"},   {"proj", "attn.proj"}, {"norm2", "norm2"},
                            {"gate", "mlp.gate"}, {"up", "mlp.fc1"},     {"down", "mlp.fc2"}};
  for (std::int64_t i = 0; i < file->layers; ++i) {
    const auto layer = [&](std::string_view name) {  // without the axis of layers
      const View all = file->weights.find(name)->second;
      const auto count = all.count() / file->layers;
      return View(static_cast<const float*>(all.data) + i * count, all.dtype,
                  all.sizes().subspan(1));
    };
    const std::string block = fmt::format("blocks.{}.", i);
    for (const auto& [from, to] : parts) {
      checkpoint.tensors[fmt::format("{}{}.weight", block, to)] = layer(from);
    }
    const std::string qkv = block + "attn.qkv.weight";
    owned->tensors.push_back(rows_of({layer("q"), layer("k"), layer("v")}, qkv));
    checkpoint.tensors[qkv] = owned->tensors.back().view();
  }
  return checkpoint;
}

}  // namespace foci::data
