// SPDX-License-Identifier: Apache-2.0
// Finds out by its first bytes which picture a file is and hands it to that decoder.
#include "data/decode.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace foci::data {
namespace {

enum class Format { jpeg, png, other };

Format format_of(ByteView bytes) {
  const auto begins = [&](std::string_view with) { return text_of(bytes).starts_with(with); };
  if (begins("\xff\xd8\xff")) return Format::jpeg;
  if (begins("\x89PNG\r\n\x1a\n")) return Format::png;
  return Format::other;
}

[[noreturn]] void refuse_format(ByteView bytes, const std::string& name) {
  if (bytes.empty()) refuse(name, "is empty; it needs a JPEG or PNG image");
  std::string first;
  for (std::size_t i = 0; i < std::min<std::size_t>(bytes.size(), 4); ++i) {
    first += fmt::format(" {:02x}", unsigned(bytes[i]));
  }
  refuse(name, fmt::format("begins with{}; it needs a JPEG or PNG image", first));
}

}  // namespace

void check_size(const std::string& name, std::int64_t height, std::int64_t width,
                std::int64_t most) {
  if (height < 1 || width < 1 || height > most / width) {
    refuse(name, fmt::format("is {} x {} pixels; it needs 1 to {} of them", height, width, most));
  }
}

std::vector<std::string> image_formats() {
  std::vector<std::string> formats;
  if (has_jpeg()) formats.emplace_back("jpeg");
  if (has_png()) formats.emplace_back("png");
  return formats;
}

Image decode_image(std::span<const std::byte> bytes, const std::string& name) {
  switch (format_of(bytes)) {
    case Format::jpeg:
      return decode_jpeg(bytes, name);
    case Format::png:
      return decode_png(bytes, name, Wanted::rgb);
    case Format::other:
      break;
  }
  refuse_format(bytes, name);
}

Image decode_mask(std::span<const std::byte> bytes, const std::string& name) {
  if (format_of(bytes) == Format::jpeg) {
    refuse(name, "is a JPEG, which does not keep classes; a mask needs to be a PNG");
  }
  if (format_of(bytes) == Format::other) refuse_format(bytes, name);
  return decode_png(bytes, name, Wanted::index);
}

Image read_image(const std::string& path) { return decode_image(read_file(path), path); }
Image read_mask(const std::string& path) { return decode_mask(read_file(path), path); }

void write_png(const std::string& path, const Image& image) {
  if (image.channels != 1 && image.channels != 3) {
    throw InvalidArgument(fmt::format("an image of {} channels; PNG needs 1 or 3", image.channels));
  }
  write_file(path, encode_png(image, path));
}

}  // namespace foci::data
