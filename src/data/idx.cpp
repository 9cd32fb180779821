// SPDX-License-Identifier: Apache-2.0
// IDX, the format of MNIST: a magic number that says type and rank, big-endian sizes, then the
// values. Only unsigned bytes of rank 3 (images) and 1 (labels) are read.
#include "data/image_set.hpp"
#include "error/listed.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace foci::data {
namespace {

constexpr std::uint32_t images_magic = 0x803, labels_magic = 0x801;
constexpr std::uint32_t largest_side = 1 << 15;

std::uint32_t number_at(ByteView bytes, std::size_t at) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 4; ++i) number = number << 8 | std::uint32_t(bytes[at + i]);
  return number;
}

/// The header's sizes, after checking that the file is as long as they say.
std::vector<std::uint32_t> sizes_of(ByteView bytes, const std::string& name, std::uint32_t magic) {
  const std::size_t rank = magic & 0xff, head = 4 + 4 * rank;
  if (bytes.size() < head) {
    refuse(name, fmt::format("ends at byte {}; the header of IDX needs {}", bytes.size(), head));
  }
  if (number_at(bytes, 0) != magic) {
    refuse(name, fmt::format("has magic 0x{:08x} at byte 0; it needs 0x{:08x}, bytes of rank {}",
                             number_at(bytes, 0), magic, rank));
  }
  std::vector<std::uint32_t> sizes;
  std::uint64_t values = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    sizes.push_back(number_at(bytes, 4 + 4 * i));
    if (i > 0 && (sizes[i] < 1 || sizes[i] > largest_side)) {
      refuse(name, fmt::format("has {} as size {} at byte {}; it needs 1 to {}", sizes[i], i,
                               4 + 4 * i, largest_side));
    }
    values *= sizes[i];
  }
  if (sizes[0] == 0) refuse(name, "holds nothing: its first size, at byte 4, is 0");
  if (bytes.size() - head != values) {
    refuse(name, fmt::format("has {} bytes after its header of {}; its sizes ({}) need {}",
                             bytes.size() - head, head, listed(sizes), values));
  }
  return sizes;
}

}  // namespace

IdxImages parse_idx_images(ByteView bytes, const std::string& name) {
  const auto sizes = sizes_of(bytes, name, images_magic);
  return {sizes[0], sizes[1], sizes[2], bytes.subspan(16)};
}

ByteView parse_idx_labels(ByteView bytes, const std::string& name) {
  sizes_of(bytes, name, labels_magic);
  return bytes.subspan(8);
}

ImageSet read_idx(const std::string& images, const std::string& labels) {
  const Bytes image_bytes = read_maybe_gzip(images), label_bytes = read_maybe_gzip(labels);
  const IdxImages parsed = parse_idx_images(image_bytes, images);
  const ByteView classes = parse_idx_labels(label_bytes, labels);
  if (std::int64_t(classes.size()) != parsed.count) {
    refuse(labels,
           fmt::format("has {} labels; {} has {} images", classes.size(), images, parsed.count));
  }
  ImageSet::Contents all;
  Tensor pixels(DType::u8, {parsed.count, parsed.height, parsed.width, 1});
  std::memcpy(pixels.data<std::uint8_t>(), parsed.pixels.data(), parsed.pixels.size());
  all.pixels = std::make_shared<const Tensor>(std::move(pixels));
  for (const std::byte label : classes) all.labels.push_back(int(label));
  all.classes = numbered_classes(*std::max_element(all.labels.begin(), all.labels.end()) + 1);
  all.parts = {images};
  all.ends = {parsed.count};
  return set_of(std::move(all));
}

}  // namespace foci::data
