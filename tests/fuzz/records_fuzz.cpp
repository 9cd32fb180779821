// SPDX-License-Identifier: Apache-2.0
// Hostile IDX, gzip and CIFAR files, llama2.c's models and tokenizers: the first byte picks the
// reader, the rest is the file. It is either refused in one line that names it, or every byte it
// promises may be read.
#include "data/image_set.hpp"
#include "data/llama2c.hpp"
#include "fuzz/refusals.hpp"

#include <algorithm>

using namespace foci::data;

namespace {

void read(std::size_t reader, ByteView file) {
  switch (reader) {
    case 0: {
      const IdxImages images = parse_idx_images(file, "fuzz");
      require(std::uint64_t(images.count * images.height * images.width) == images.pixels.size(),
              "there are as many pixels as the sizes say");
      touch(images.pixels);
      break;
    }
    case 1:
      touch(parse_idx_labels(file, "fuzz"));
      break;
    case 2:
      touch(unpack_gzip(file, "fuzz", 1 << 24));
      break;
    case 5: {
      const Bytes aligned(file.begin(), file.end());
      for (const auto& [name, view] : parse_llama2c(aligned, "fuzz").weights)
        touch({static_cast<const std::byte*>(view.data), std::size_t(view.count()) * 4});
      break;
    }
    case 6: {
      const ScoredPieces pieces(file, "fuzz");
      const std::string_view text = text_of(file.last(std::min<std::size_t>(file.size(), 200)));
      require(pieces.decode(pieces.encode(text)) == text, "text comes back");
      break;
    }
    default:
      require(check_cifar(file, "fuzz", reader == 3 ? Cifar::ten : Cifar::hundred) > 0,
              "a good file holds a record");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static Readers readers({"IDX images", "IDX labels", "gzip", "CIFAR-10", "CIFAR-100",
                          "llama2.c model (.bin)", "llama2.c tokenizer"});
  const std::size_t reader = readers.picked_by(data[0]);
  refusals_are_told([&] { read(reader, std::as_bytes(std::span(data + 1, size - 1))); });
  return 0;
}
