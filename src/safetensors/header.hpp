// SPDX-License-Identifier: Apache-2.0
// What a safetensors header says, once every check has passed, and the names of the types in it.
// Knows neither files nor the tensors' bytes.
#pragma once

#include <foci/tensor.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace foci::safetensors {

/// N, the eight bytes that open a file, may not say more.
inline constexpr std::uint64_t max_header_bytes = 100'000'000;
inline constexpr std::string_view metadata_key = "__metadata__";

/// A type by the format's own name; `dtype` where a View can hold it.
struct Kind {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

/// nullptr when the format knows no such type.
const Kind* find_kind(std::string_view name);
const Kind& kind_of(DType dtype);

struct Entry {
  const Kind* kind = nullptr;
  std::int64_t rank = 0;
  std::array<std::int64_t, max_rank> shape{};  // the first max_rank sizes
  std::uint64_t begin = 0, end = 0;            // bytes from where the data begin
};

struct Header {
  std::map<std::string, Entry, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
};

/// `text` is the header as it lies in the file, `data_bytes` all that follows it. Throws FileError.
Header read_header(std::string_view text, std::uint64_t data_bytes, const std::string& path);

/// Where the first byte stands that is not UTF-8; npos when there is none.
std::size_t find_invalid_utf8(std::string_view text);

/// Fit for one line of a message: control characters and stray bytes as \xNN.
std::string printable(std::string_view text);
/// The same in double quotes, cut when long.
std::string in_quotes(std::string_view text);

}  // namespace foci::safetensors
