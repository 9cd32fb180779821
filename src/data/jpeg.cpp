// SPDX-License-Identifier: Apache-2.0
// JPEG through libjpeg-turbo. The library's own errors leave through longjmp, over plain structs
// alone; a warning that means lost pixels is an error here, which the library would paint grey.
#include "data/decode.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#ifdef FOCI_HAS_JPEG
// jpeglib.h needs FILE declared before it.
#include <cstdio>

#include <jerror.h>
#include <jpeglib.h>

#include <csetjmp>
#endif

namespace foci::data {

#ifdef FOCI_HAS_JPEG

namespace {

struct Fault {
  jpeg_error_mgr base;  // first: libjpeg knows no more of it
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

/// The decoder and what it fills; plain data, so that longjmp may pass over it.
struct Decoder {
  jpeg_decompress_struct jpeg;
  Fault fault;
  const unsigned char* begin;
};

[[noreturn]] void leave(j_common_ptr jpeg) {
  auto* fault = reinterpret_cast<Fault*>(jpeg->err);
  jpeg->err->format_message(jpeg, fault->text);
  std::longjmp(fault->back, 1);  // NOLINT
}

void hear(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  const int code = jpeg->err->msg_code;
  if (code == JWRN_HIT_MARKER || code == JWRN_JPEG_EOF || code == JWRN_HUFF_BAD_CODE) leave(jpeg);
}

/// What Adobe's inverted CMYK looks like in RGB, as PIL computes it.
void cmyk_to_rgb(std::uint8_t* to, const std::uint8_t* from, std::size_t count, bool inverted) {
  for (std::size_t i = 0; i < count; ++i, to += 3, from += 4) {
    int ink[4];
    for (int c = 0; c < 4; ++c) ink[c] = inverted ? 255 - from[c] : from[c];
    const int light = 255 - ink[3];
    for (int c = 0; c < 3; ++c) {
      const int product = ink[c] * light + 128;
      to[c] = std::uint8_t(std::max(0, light - (((product >> 8) + product) >> 8)));
    }
  }
}

bool start(Decoder& d, ByteView bytes) {
  if (setjmp(d.fault.back) != 0) return false;  // NOLINT
  jpeg_create_decompress(&d.jpeg);
  jpeg_mem_src(&d.jpeg, d.begin, static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(&d.jpeg, TRUE);
  const bool inks = d.jpeg.jpeg_color_space == JCS_CMYK || d.jpeg.jpeg_color_space == JCS_YCCK;
  d.jpeg.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  return true;
}

/// `line` holds one row of the decoder's own channels.
bool read_rows(Decoder& d, std::uint8_t* to, std::uint8_t* line) {
  if (setjmp(d.fault.back) != 0) return false;  // NOLINT
  jpeg_start_decompress(&d.jpeg);
  const std::size_t width = d.jpeg.output_width;
  while (d.jpeg.output_scanline < d.jpeg.output_height) {
    std::uint8_t* row = to + std::size_t(d.jpeg.output_scanline) * width * 3;
    const bool inks = d.jpeg.out_color_components == 4;
    JSAMPROW rows[1] = {inks ? line : row};
    jpeg_read_scanlines(&d.jpeg, rows, 1);
    if (inks) cmyk_to_rgb(row, line, width, d.jpeg.saw_Adobe_marker != 0);
  }
  jpeg_finish_decompress(&d.jpeg);
  return true;
}

}  // namespace

bool has_jpeg() { return true; }

Image decode_jpeg(ByteView bytes, const std::string& name, std::int64_t most) {
  Decoder d{};
  d.begin = reinterpret_cast<const unsigned char*>(bytes.data());
  d.jpeg.err = jpeg_std_error(&d.fault.base);
  d.fault.base.error_exit = leave;
  d.fault.base.emit_message = hear;
  struct Destroy {
    jpeg_decompress_struct& jpeg;
    ~Destroy() { jpeg_destroy_decompress(&jpeg); }
  } const destroy{d.jpeg};
  const auto complain = [&] {
    std::size_t at = bytes.size();
    if (d.jpeg.src != nullptr && d.jpeg.src->bytes_in_buffer <= bytes.size()) {
      at -= d.jpeg.src->bytes_in_buffer;
    }
    refuse(name, fmt::format("is corrupt near byte {} of {}: {}", at, bytes.size(), d.fault.text));
  };
  if (!start(d, bytes)) complain();
  check_size(name, d.jpeg.image_height, d.jpeg.image_width, most);
  Image image(int(d.jpeg.image_height), int(d.jpeg.image_width), 3);
  std::vector<std::uint8_t> line(std::size_t(image.width) * 4);
  if (!read_rows(d, image.pixels.data(), line.data())) complain();
  return image;
}

#else

bool has_jpeg() { return false; }

Image decode_jpeg(ByteView, const std::string& name, std::int64_t) {
  throw Unsupported(name + ": is a JPEG, and this build has no libjpeg; convert it to PNG");
}

#endif

}  // namespace foci::data
