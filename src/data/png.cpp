// SPDX-License-Identifier: Apache-2.0
// PNG through libpng, both ways. The library's errors leave through longjmp, over plain structs
// alone. Sixteen bits become eight, alpha is dropped, interlaced files are put together.
#include "data/decode.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <cstring>

#ifdef FOCI_HAS_PNG
#include <png.h>

#include <csetjmp>
#endif

namespace foci::data {

#ifdef FOCI_HAS_PNG

namespace {

constexpr png_uint_32 largest_side = 1 << 20;
constexpr int chunk_limit = 8 << 20;  // bytes of one ancillary chunk

/// Plain data, so that longjmp may pass over it.
struct Reader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::byte* bytes = nullptr;
  std::size_t size = 0, at = 0;
  char text[96] = {};
};

struct Header {
  png_uint_32 width = 0, height = 0;
  int depth = 0, colour = 0, channels = 0;
};

[[noreturn]] void leave(png_structp png, png_const_charp text) {
  auto* reader = static_cast<Reader*>(png_get_error_ptr(png));
  std::strncpy(reader->text, text, sizeof reader->text - 1);
  png_longjmp(png, 1);
}

void drop(png_structp, png_const_charp) {}

void take(png_structp png, png_bytep to, std::size_t count) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader->size - reader->at) {
    reader->at = reader->size;
    png_error(png, "the file ends early");
  }
  std::memcpy(to, reader->bytes + reader->at, count);
  reader->at += count;
}

bool read_header(Reader& reader, Header& header, Wanted wanted) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;  // NOLINT
  png_structp png = reader.png;
  png_set_read_fn(png, &reader, take);
  png_set_user_limits(png, largest_side, largest_side);
  png_set_chunk_malloc_max(png, chunk_limit);
  png_read_info(png, reader.info);
  png_get_IHDR(png, reader.info, &header.width, &header.height, &header.depth, &header.colour,
               nullptr, nullptr, nullptr);
  const bool palette = header.colour == PNG_COLOR_TYPE_PALETTE;
  const bool grey = (header.colour & PNG_COLOR_MASK_COLOR) == 0;
  png_set_strip_16(png);
  if (header.depth < 8) png_set_packing(png);
  if ((header.colour & PNG_COLOR_MASK_ALPHA) != 0) png_set_strip_alpha(png);
  if (wanted == Wanted::rgb) {
    if (palette) png_set_palette_to_rgb(png);
    if (grey && header.depth < 8) png_set_expand_gray_1_2_4_to_8(png);
    if (grey) png_set_gray_to_rgb(png);
  }
  png_set_interlace_handling(png);
  png_read_update_info(png, reader.info);
  header.channels = png_get_channels(png, reader.info);
  return true;
}

bool read_rows(Reader& reader, std::uint8_t** rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;  // NOLINT
  png_read_image(reader.png, rows);
  png_read_end(reader.png, nullptr);
  return true;
}

struct Writer {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Bytes* out = nullptr;
};

void put(png_structp png, png_bytep from, std::size_t count) {
  Bytes& out = *static_cast<Writer*>(png_get_io_ptr(png))->out;
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  out.insert(out.end(), bytes, bytes + count);
}

bool write_rows(Writer& writer, const Image& image, std::uint8_t** rows) {
  if (setjmp(png_jmpbuf(writer.png)) != 0) return false;  // NOLINT
  png_set_write_fn(writer.png, &writer, put, nullptr);
  png_set_IHDR(writer.png, writer.info, png_uint_32(image.width), png_uint_32(image.height), 8,
               image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(writer.png, writer.info);
  png_write_image(writer.png, rows);
  png_write_end(writer.png, nullptr);
  return true;
}

std::vector<std::uint8_t*> rows_of(const Image& image) {
  std::vector<std::uint8_t*> rows;
  rows.reserve(std::size_t(image.height));
  for (int y = 0; y < image.height; ++y) rows.push_back(const_cast<std::uint8_t*>(image.at(y, 0)));
  return rows;
}

}  // namespace

bool has_png() { return true; }

Image decode_png(ByteView bytes, const std::string& name, Wanted wanted, std::int64_t most) {
  Reader reader;
  reader.bytes = bytes.data();
  reader.size = bytes.size();
  struct Destroy {
    Reader& reader;
    ~Destroy() { png_destroy_read_struct(&reader.png, &reader.info, nullptr); }
  } const destroy{reader};
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, leave, drop);
  if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) refuse(name, "libpng has no memory");
  const auto complain = [&] {
    refuse(name,
           fmt::format("is corrupt near byte {} of {}: {}", reader.at, reader.size, reader.text));
  };
  Header header;
  if (!read_header(reader, header, wanted)) complain();
  check_size(name, header.height, header.width, most);
  if (wanted == Wanted::index && header.depth == 16) {
    refuse(name, "has 16 bits a pixel; a mask needs at most 8");
  }
  if (wanted == Wanted::index && header.channels != 1) {
    refuse(name,
           fmt::format("has {} channels; a mask needs 1, a class per pixel", header.channels));
  }
  Image image(int(header.height), int(header.width), header.channels);
  std::vector<std::uint8_t*> rows = rows_of(image);
  if (!read_rows(reader, rows.data())) complain();
  return image;
}

Bytes encode_png(const Image& image, const std::string& name) {
  Writer writer;
  Bytes out;
  writer.out = &out;
  struct Destroy {
    Writer& writer;
    ~Destroy() { png_destroy_write_struct(&writer.png, &writer.info); }
  } const destroy{writer};
  writer.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, drop);
  if (writer.png != nullptr) writer.info = png_create_info_struct(writer.png);
  std::vector<std::uint8_t*> rows = rows_of(image);
  if (writer.info == nullptr || !write_rows(writer, image, rows.data())) {
    refuse(name, "libpng cannot make a PNG of this image");
  }
  return out;
}

#else

bool has_png() { return false; }

Image decode_png(ByteView, const std::string& name, Wanted, std::int64_t) {
  throw Unsupported(name + ": is a PNG, and this build has no libpng; convert it to JPEG");
}

Bytes encode_png(const Image&, const std::string& name) {
  throw Unsupported(name + ": is to be a PNG, and this build has no libpng");
}

#endif

}  // namespace foci::data
