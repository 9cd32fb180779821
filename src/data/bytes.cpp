// SPDX-License-Identifier: Apache-2.0
// Reading and writing whole files; gzip through zlib where the build has it.
#include "data/bytes.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#ifdef FOCI_HAS_ZLIB
#include <zlib.h>
#endif

namespace foci::data {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

}  // namespace

void refuse(const std::string& name, const std::string& fault) {
  throw FileError(name + ": " + fault);
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t most = 40;
  std::string out = "'";
  for (const char c : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return out + (text.size() > most ? "...'" : "'");
}

Bytes read_file(const std::string& path) {
  std::error_code fault;
  if (std::filesystem::is_directory(path, fault)) refuse(path, "is a folder; it needs a file");
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) refuse(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  Bytes bytes;
  const std::uint64_t size = std::filesystem::file_size(path, fault);
  if (!fault && size > most_bytes) refuse(path, fmt::format("has {} bytes; too many", size));
  if (!fault) bytes.reserve(size);
  std::byte piece[1 << 16];
  while (const std::size_t got = std::fread(piece, 1, sizeof piece, file.get())) {
    bytes.insert(bytes.end(), piece, piece + got);
  }
  if (std::ferror(file.get()) != 0) {
    refuse(path, fmt::format("cannot be read past byte {}", bytes.size()));
  }
  return bytes;
}

void write_file(const std::string& path, ByteView bytes) {
  const std::string beside = path + ".tmp";
  File file(std::fopen(beside.c_str(), "wb"));
  if (!file) refuse(path, fmt::format("cannot be written: {}", std::strerror(errno)));
  bool well = std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  int why = errno;
  well = std::fclose(file.release()) == 0 && well;
  if (well) {
    well = std::rename(beside.c_str(), path.c_str()) == 0;
    why = errno;
  }
  if (well) return;
  std::remove(beside.c_str());
  refuse(path, fmt::format("cannot be written: {}", std::strerror(why)));
}

void IdxWriter::begin(const std::vector<std::int64_t>& sizes) {
  const auto put = [&](std::uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(std::byte(number >> shift & 0xff));
  };
  put(0x800 | std::uint32_t(sizes.size()));
  for (const std::int64_t size : sizes) put(std::uint32_t(size));
}

void IdxWriter::add(std::span<const std::uint8_t> values) {
  const auto from = std::as_bytes(values);
  bytes.insert(bytes.end(), from.begin(), from.end());
}

bool is_gzip(ByteView bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

Bytes read_maybe_gzip(const std::string& path) {
  Bytes bytes = read_file(path);
  return is_gzip(bytes) ? unpack_gzip(bytes, path, most_bytes) : bytes;
}

#ifdef FOCI_HAS_ZLIB

bool reads_gzip() { return true; }

Bytes unpack_gzip(ByteView packed, const std::string& name, std::uint64_t most) {
  z_stream stream{};
  if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) refuse(name, "zlib has no memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, inflateEnd);
  Bytes out;
  std::byte piece[1 << 16];
  std::size_t taken = 0;
  int status = Z_OK;
  while (status == Z_OK || status == Z_BUF_ERROR) {
    if (stream.avail_in == 0) {
      const std::size_t part = std::min<std::size_t>(packed.size() - taken, 1u << 30);
      if (part == 0) refuse(name, fmt::format("gzip data end early, at byte {}", taken));
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + taken));
      stream.avail_in = uInt(part);
      taken += part;
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece);
    stream.avail_out = sizeof piece;
    status = inflate(&stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      refuse(name, fmt::format("gzip data are corrupt at byte {}", taken - stream.avail_in));
    }
    out.insert(out.end(), piece, piece + (sizeof piece - stream.avail_out));
    if (out.size() > most) refuse(name, fmt::format("unpacks to more than {} bytes", most));
  }
  return out;
}

#else

bool reads_gzip() { return false; }

Bytes unpack_gzip(ByteView, const std::string& name, std::uint64_t) {
  throw Unsupported(name + ": is gzip, and this build has no zlib; unpack it with gunzip");
}

#endif

}  // namespace foci::data
