// SPDX-License-Identifier: Apache-2.0
// One decoder per picture format, from memory. A build without the format's library has a decoder
// that says so.
#pragma once

#include "data/bytes.hpp"

#include <foci/data.hpp>

namespace foci::data {

/// An image with more pixels is refused before anything is allocated for it.
inline constexpr std::int64_t most_pixels = std::int64_t{1} << 28;

/// rgb: three channels. index: one, as stored (PNG alone).
enum class Wanted { rgb, index };

Image decode_jpeg(ByteView bytes, const std::string& name, std::int64_t most = most_pixels);
Image decode_png(ByteView bytes, const std::string& name, Wanted wanted,
                 std::int64_t most = most_pixels);
Bytes encode_png(const Image& image, const std::string& name);

bool has_jpeg();
bool has_png();

/// Throws FileError when an image of this size is none or too large.
void check_size(const std::string& name, std::int64_t height, std::int64_t width,
                std::int64_t most);

}  // namespace foci::data
