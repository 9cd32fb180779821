// SPDX-License-Identifier: Apache-2.0
// Hostile JPEG and PNG files, as images and as masks with CamVid's rule: the first byte picks the
// decoder, the rest is the file.
#include "data/decode.hpp"
#include "data/image_set.hpp"
#include "fuzz/refusals.hpp"

using namespace foci::data;

namespace {

constexpr std::int64_t most = 1 << 18;

Image decode(std::size_t decoder, ByteView file) {
  if (decoder == 0) return decode_jpeg(file, "fuzz", most);
  Image image = decode_png(file, "fuzz", decoder == 1 ? Wanted::rgb : Wanted::index, most);
  if (decoder < 3) return image;
  static const MaskRule rule = camvid_rule();
  apply_rule(image, rule, "fuzz");
  for (const std::uint8_t value : image.pixels)
    require(value == ignored || value < rule.classes.size(), "a mask holds classes");
  return image;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static Readers readers({"JPEG", "PNG", "PNG as it is stored", "mask"});
  const std::size_t decoder = readers.picked_by(data[0]);
  refusals_are_told([&] {
    const Image image = decode(decoder, std::as_bytes(std::span(data + 1, size - 1)));
    require(image.channels == (decoder >= 2 ? 1 : 3), "the channels are those asked for");
    touch(std::as_bytes(std::span(image.pixels)));
  });
  return 0;
}
