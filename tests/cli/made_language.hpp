// SPDX-License-Identifier: Apache-2.0
// Small language models as others store them: llama2.c's file with its tokenizer, and a folder of
// Hugging Face's GPT-2.
#pragma once

#include "cli/command.hpp"

#include <foci/safetensors.hpp>

#include <cstring>
#include <fstream>

namespace cli_test {

template <class T>
std::string raw(T number) {
  std::string bytes(sizeof number, 0);
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

/// dim 4, hidden 2, 2 heads, 1 key head, 263 tokens, context 8: embeddings tell tokens apart, the
/// rest is small.
inline std::string made_model(int layers = 1) {
  const std::string path = folder().file("model.bin");
  std::ofstream file(path, std::ios::binary);
  for (const int number : {4, 2, layers, 2, 1, 263, 8}) file << raw(std::int32_t(number));
  const int layer = 4 + 16 + 8 + 8 + 16 + 4 + 8 + 8 + 8;
  const int floats = 263 * 4 + layers * layer + 4 + 2 * 8;
  for (int i = 0; i < floats; ++i) file << raw(float((i * 37 % 101) - 50) * 0.02f);
  return path;
}

inline std::string made_tokenizer() {
  const std::string path = folder().file("tok263.bin");
  std::ofstream file(path, std::ios::binary);
  const auto piece = [&](const std::string& text) {
    file << raw(0.f) << raw(std::int32_t(text.size())) << text;
  };
  file << raw(std::int32_t(6));
  for (const char* special : {"<unk>", "<s>", "</s>"}) piece(special);
  constexpr char digits[] = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) piece(std::string("<0x") + digits[b / 16] + digits[b % 16] + ">");
  for (const char* text : {" ", "a", "b", " a"}) piece(text);
  return path;
}

/// tests/models/gpt2.safetensors as a folder of Hugging Face's: its 61 tokens are too few for
/// bytes.
inline std::string made_gpt2(const std::string& name = "gpt2") {
  const std::string path = folder().file(name);
  fs::create_directories(path);
  const foci::Safetensors stored(FOCI_SOURCE_DIR "/tests/models/gpt2.safetensors");
  std::map<std::string, foci::View> tensors;
  for (const std::string& name : stored.names()) {
    if (name != "tokens" && name != "logits") tensors[name] = stored.find(name);
  }
  const std::vector<float> embedding(257 * 16, 0.1f);
  tensors["wte.weight"] = foci::View(embedding.data(), {257, 16});
  foci::write_safetensors(path + "/model.safetensors", tensors);
  std::ofstream(path + "/config.json") << R"({"n_head":2})";
  return path;
}

/// Every byte in the characters of GPT-2's files, and <|endoftext|>.
inline void add_pairs(const std::string& path) {
  nlohmann::json tokens;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    const int code = plain ? b : next++;
    const std::string text = code < 0x80
                                 ? std::string(1, char(code))
                                 : std::string{char(0xc0 | code >> 6), char(0x80 | (code & 0x3f))};
    tokens[text] = b;
  }
  tokens["<|endoftext|>"] = 256;
  std::ofstream(path + "/encoder.json") << tokens.dump();
  std::ofstream(path + "/vocab.bpe") << "#version: 0.2\n";
}

}  // namespace cli_test
