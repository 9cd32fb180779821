// SPDX-License-Identifier: Apache-2.0
// Models and tokenizers as llama2.c stores them (stories260K and its like): the weights as views
// into the file, the pieces of text with their scores. No torch.
#pragma once

#include <foci/export.h>
#include <foci/tensor.hpp>
#include <foci/text.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace foci::data {

/// L layers of H query and G key heads, D = dim / H. The weights, f32, by name: embed (V,dim);
/// norm1, norm2 (L,dim); q (L,dim,dim); k, v (L,GD,dim); proj (L,dim,dim); gate, up (L,hidden,dim);
/// down (L,dim,hidden); norm (dim); and head (V,dim) where it is not the embedding.
struct FOCI_API Llama2c {
  std::int64_t dim = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, vocabulary = 0;
  std::int64_t context = 0;
  std::map<std::string, View, std::less<>> weights;
  std::shared_ptr<const void> memory;  ///< what the views look at
};
/// Throws FileError that says which number is wrong, or how many bytes are missing.
FOCI_API Llama2c read_llama2c(const std::string& path);

/// tokenizer.bin: pieces with scores; <unk>, <s>, </s>, the 256 bytes, then text. Neighbours whose
/// union is a piece are merged, the highest score first. Any bytes encode, and decode to what they
/// were.
class FOCI_API ScoredPieces {
 public:
  static constexpr std::int32_t begin = 1, end = 2;  ///< <s> and </s>

  explicit ScoredPieces(const std::string& path);
  /// From memory; `name` stands for the path in messages.
  ScoredPieces(std::span<const std::byte> bytes, const std::string& name);

  std::int64_t size() const;
  Tokens encode(std::string_view text) const;                      ///< after <s>
  std::string decode(std::span<const std::int32_t> tokens) const;  ///< InvalidArgument: no such id

 private:
  struct Contents;
  std::shared_ptr<const Contents> contents_;
};

}  // namespace foci::data
