// SPDX-License-Identifier: Apache-2.0
// Whole files as bytes, unpacked when they are gzip, and words for messages. No format lives here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci::data {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

/// More than this is not read into memory at once.
inline constexpr std::uint64_t most_bytes = std::uint64_t{1} << 34;

/// Throws FileError; a folder is not a file.
Bytes read_file(const std::string& path);
/// As it is, or unpacked when it begins like gzip. `most` bounds what unpacking may give.
Bytes read_maybe_gzip(const std::string& path);
Bytes unpack_gzip(ByteView packed, const std::string& name, std::uint64_t most);
bool is_gzip(ByteView bytes);

/// The file beside `path` first, then renamed: the old file or the whole new one.
void write_file(const std::string& path, ByteView bytes);

/// IDX of unsigned bytes in the making.
struct IdxWriter {
  void begin(const std::vector<std::int64_t>& sizes);
  void add(std::span<const std::uint8_t> values);
  Bytes bytes;
};

/// A file's text as it may stand in a message: control characters spelled out, bounded.
std::string in_quotes(std::string_view text);

[[noreturn]] void refuse(const std::string& name, const std::string& fault);

inline std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace foci::data
