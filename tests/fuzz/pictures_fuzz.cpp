// SPDX-License-Identifier: Apache-2.0
// Hostile JPEG and PNG files: the first byte picks the decoder, the rest is the file.
#include "data/decode.hpp"
#include "fuzz/refusals.hpp"

using namespace foci::data;

namespace {

constexpr std::int64_t most = 1 << 18;

Image decode(unsigned decoder, ByteView file) {
  if (decoder % 3 == 0) return decode_jpeg(file, "fuzz", most);
  return decode_png(file, "fuzz", decoder % 3 == 1 ? Wanted::rgb : Wanted::index, most);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  refusals_are_told([&] {
    const Image image = decode(data[0], std::as_bytes(std::span(data + 1, size - 1)));
    require(image.channels == (data[0] % 3 == 2 ? 1 : 3), "the channels are those asked for");
    touch(std::as_bytes(std::span(image.pixels)));
  });
  return 0;
}
