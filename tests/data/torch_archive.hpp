// SPDX-License-Identifier: Apache-2.0
// Torch files in the making, good ones and others: a zip writer that packs nothing, and the pickle
// of a state dict with one tensor.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foci::data {

using namespace std::string_literals;
using ZipEntries = std::vector<std::pair<std::string, std::string>>;

inline std::string little(std::uint32_t number, int bytes = 4) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += char(number >> (8 * i) & 0xff);
  return text;
}

inline std::uint32_t checksum(std::string_view text) {
  std::uint32_t c = ~0u;
  for (const char byte : text) {
    c ^= std::uint8_t(byte);
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
  }
  return ~c;
}

inline std::string zipped(const ZipEntries& entries) {
  std::string file, directory;
  for (const auto& [name, data] : entries) {
    const auto size = std::uint32_t(data.size());
    const std::string facts = little(0, 2) + little(0, 2) + little(0) + little(checksum(data)) +
                              little(size) + little(size) + little(std::uint32_t(name.size()), 2) +
                              little(0, 2);
    directory += "PK\1\2" + little(0, 2) + little(0, 2) + facts + little(0, 2) + little(0, 4) +
                 little(0, 4) + little(std::uint32_t(file.size())) + name;
    file += "PK\3\4" + little(0, 2) + facts + name + data;
  }
  const auto count = std::uint32_t(entries.size());
  const std::string end = "PK\5\6" + little(0) + little(count, 2) + little(count, 2) +
                          little(std::uint32_t(directory.size())) +
                          little(std::uint32_t(file.size())) + little(0, 2);
  return file + directory + end;
}

/// As torch.save names its entries.
inline std::string archive(const std::string& pickle, const ZipEntries& others = {}) {
  ZipEntries entries = {{"a/data.pkl", pickle}};
  for (const auto& [name, data] : others) entries.emplace_back("a/" + name, data);
  return zipped(entries);
}

struct TensorAt {
  std::string key = "0";
  int count = 2;
  int offset = 0;
  std::vector<int> sizes = {}, strides = {};
};

inline std::string pickled(const std::string& text) {
  return "X" + little(std::uint32_t(text.size())) + text;
}
inline std::string pickled(int number) { return "J" + little(std::uint32_t(number)); }
inline std::string pickled(const std::vector<int>& numbers) {
  std::string text = "(";
  for (const int number : numbers) text += pickled(number);
  return text + "t";
}

/// {"w": a tensor of f32}
inline std::string state_dict(const TensorAt& tensor) {
  return "\x80\2}" + pickled("w") + "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") +
         "ctorch\nFloatStorage\n" + pickled(tensor.key) + pickled("cpu") + pickled(tensor.count) +
         "tQ" + pickled(tensor.offset) + pickled(tensor.sizes) + pickled(tensor.strides) +
         "\x89}tRs.";
}

}  // namespace foci::data
