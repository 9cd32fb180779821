// SPDX-License-Identifier: Apache-2.0
// An image through libjpeg and back, as PIL saves one: the colours at half the size, the standard
// tables at a quality.
#include "corrupt/operations.hpp"

#include <foci/error.hpp>

#ifdef FOCI_HAS_JPEG
// jpeglib.h needs FILE declared before it.
#include <cstdio>

#include <jpeglib.h>

#include <csetjmp>
#include <cstdlib>
#include <memory>
#endif

namespace foci::corrupt {

#ifdef FOCI_HAS_JPEG

namespace {

/// Plain data, so that longjmp may pass over it.
struct Encoder {
  jpeg_error_mgr errors;  // first: libjpeg's errors come with its address alone
  std::jmp_buf back;
  jpeg_compress_struct jpeg;
  unsigned char* bytes;
  unsigned long size;
};

[[noreturn]] void give_up(j_common_ptr jpeg) {
  std::longjmp(reinterpret_cast<Encoder*>(jpeg->err)->back, 1);  // NOLINT
}

bool encode(Encoder& e, const data::Image& image, int quality) {
  if (setjmp(e.back) != 0) return false;  // NOLINT
  jpeg_create_compress(&e.jpeg);
  jpeg_mem_dest(&e.jpeg, &e.bytes, &e.size);
  e.jpeg.image_width = JDIMENSION(image.width);
  e.jpeg.image_height = JDIMENSION(image.height);
  e.jpeg.input_components = image.channels;
  e.jpeg.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&e.jpeg);
  jpeg_set_quality(&e.jpeg, quality, TRUE);
  jpeg_start_compress(&e.jpeg, TRUE);
  while (e.jpeg.next_scanline < e.jpeg.image_height) {
    JSAMPROW rows[1] = {const_cast<JSAMPROW>(image.at(int(e.jpeg.next_scanline), 0))};
    jpeg_write_scanlines(&e.jpeg, rows, 1);
  }
  jpeg_finish_compress(&e.jpeg);
  return true;
}

}  // namespace

data::Image through_jpeg(const data::Image& image, int quality) {
  Encoder e{};
  e.jpeg.err = jpeg_std_error(&e.errors);
  e.errors.error_exit = give_up;
  const bool done = encode(e, image, quality);
  jpeg_destroy_compress(&e.jpeg);
  const std::unique_ptr<unsigned char, void (*)(void*)> bytes(e.bytes, std::free);
  if (!done) throw Error("libjpeg could not encode an image");
  data::Image back =
      data::decode_image({reinterpret_cast<const std::byte*>(bytes.get()), e.size}, "JPEG");
  if (image.channels == 3) return back;
  data::Image grey(image.height, image.width, 1);
  for (std::size_t i = 0; i < grey.pixels.size(); ++i) grey.pixels[i] = back.pixels[3 * i];
  return grey;
}

#else

data::Image through_jpeg(const data::Image&, int) {
  throw Unsupported("jpeg_compression needs libjpeg, which this build lacks");
}

#endif

}  // namespace foci::corrupt
