// SPDX-License-Identifier: Apache-2.0
// The directory of a zip file, every place in it checked against the file's size. Entries may not
// overlap, so what they hold together is no more than the file. Checksums are compared; one that
// differs is a warning, because torch can be told to write none.
#include "data/torch_file.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace foci::data {
namespace {

constexpr std::uint32_t local_mark = 0x04034b50, entry_mark = 0x02014b50, end_mark = 0x06054b50,
                        wide_end_mark = 0x06064b50, locator_mark = 0x07064b50;
constexpr std::size_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, wide_end_bytes = 56,
                      locator_bytes = 20;
constexpr std::uint32_t wide32 = 0xffffffff;  // the number stands in the zip64 field

template <class T>
T number_at(ByteView bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

struct Directory {
  std::uint64_t begin = 0, bytes = 0, count = 0;
};

struct Entry {
  std::string name;
  std::uint64_t local = 0, size = 0;
  std::uint32_t checksum = 0;
};

std::uint32_t crc32_of(ByteView bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xedb88320u ^ (c >> 1) : c >> 1;
      made[i] = c;
    }
    return made;
  }();
  std::uint32_t c = ~0u;
  for (const std::byte byte : bytes) c = table[(c ^ std::uint32_t(byte)) & 0xff] ^ (c >> 8);
  return ~c;
}

class Zip {
 public:
  Zip(ByteView file, const std::string& name) : file_(file), name_(name) {}
  std::map<std::string, ByteView, std::less<>> entries();

 private:
  bool marked(std::uint64_t at, std::uint64_t bytes, std::uint32_t mark) const {
    return at <= file_.size() && bytes <= file_.size() - at &&
           number_at<std::uint32_t>(file_, at) == mark;
  }
  std::size_t find_end() const;
  Directory directory() const;
  Entry entry_at(std::uint64_t at, std::uint64_t end, std::uint64_t& next) const;
  void widen(Entry& entry, std::uint64_t& packed, ByteView extra) const;
  ByteView data_of(const Entry& entry) const;

  const ByteView file_;
  const std::string& name_;
};

/// The end record is the last thing in a file but for a comment of at most 65535 bytes.
std::size_t Zip::find_end() const {
  constexpr std::size_t longest_comment = 0xffff;
  if (file_.size() >= end_bytes) {
    const std::size_t last = file_.size() - end_bytes;
    const std::size_t first = last - std::min(last, longest_comment);
    for (std::size_t at = last + 1; at-- > first;) {
      if (marked(at, end_bytes, end_mark)) return at;
    }
  }
  refuse(name_, fmt::format("is a zip file that ends early, at byte {}: it has no directory",
                            file_.size()));
}

Directory Zip::directory() const {
  const std::size_t end = find_end();
  Directory found{.begin = number_at<std::uint32_t>(file_, end + 16),
                  .bytes = number_at<std::uint32_t>(file_, end + 12),
                  .count = number_at<std::uint16_t>(file_, end + 10)};
  if (end >= locator_bytes && marked(end - locator_bytes, locator_bytes, locator_mark)) {
    const auto at = number_at<std::uint64_t>(file_, end - locator_bytes + 8);
    if (!marked(at, wide_end_bytes, wide_end_mark)) refuse(name_, "its zip64 directory is missing");
    found = {.begin = number_at<std::uint64_t>(file_, at + 48),
             .bytes = number_at<std::uint64_t>(file_, at + 40),
             .count = number_at<std::uint64_t>(file_, at + 32)};
  }
  if (found.begin > file_.size() || found.bytes > file_.size() - found.begin ||
      found.count > found.bytes / entry_bytes) {
    refuse(name_, fmt::format("its zip directory of {} entries at byte {} does not fit into {} "
                              "bytes",
                              found.count, found.begin, file_.size()));
  }
  return found;
}

/// Sizes and places that need more than 32 bits stand in the field 1 of the extras, in this order.
void Zip::widen(Entry& entry, std::uint64_t& packed, ByteView extra) const {
  const auto needs = [](std::uint64_t number) { return number == wide32; };
  if (!needs(entry.size) && !needs(packed) && !needs(entry.local)) return;
  while (extra.size() >= 4) {
    const auto kind = number_at<std::uint16_t>(extra, 0);
    const std::size_t bytes = number_at<std::uint16_t>(extra, 2);
    extra = extra.subspan(4);
    if (bytes > extra.size()) break;
    if (kind == 1) {
      std::size_t at = 0;
      for (std::uint64_t* number : {&entry.size, &packed, &entry.local}) {
        if (!needs(*number) || at + 8 > bytes) continue;
        *number = number_at<std::uint64_t>(extra, at);
        at += 8;
      }
      return;
    }
    extra = extra.subspan(bytes);
  }
}

Entry Zip::entry_at(std::uint64_t at, std::uint64_t end, std::uint64_t& next) const {
  if (end - at < entry_bytes || !marked(at, entry_bytes, entry_mark)) {
    refuse(name_, fmt::format("its zip directory is corrupt at byte {}", at));
  }
  const std::size_t name_bytes = number_at<std::uint16_t>(file_, at + 28),
                    extra_bytes = number_at<std::uint16_t>(file_, at + 30),
                    comment_bytes = number_at<std::uint16_t>(file_, at + 32);
  if (name_bytes + extra_bytes + comment_bytes > end - at - entry_bytes) {
    refuse(name_, fmt::format("its zip directory is corrupt at byte {}", at));
  }
  Entry entry{.name = std::string(text_of(file_.subspan(at + entry_bytes, name_bytes))),
              .local = number_at<std::uint32_t>(file_, at + 42),
              .size = number_at<std::uint32_t>(file_, at + 24),
              .checksum = number_at<std::uint32_t>(file_, at + 16)};
  std::uint64_t packed = number_at<std::uint32_t>(file_, at + 20);
  widen(entry, packed, file_.subspan(at + entry_bytes + name_bytes, extra_bytes));
  const auto flags = number_at<std::uint16_t>(file_, at + 8);
  const auto method = number_at<std::uint16_t>(file_, at + 10);
  if ((flags & 1) != 0) refuse(name_, fmt::format("{} is encrypted", in_quotes(entry.name)));
  if (method != 0 || packed != entry.size) {
    refuse(name_, fmt::format("{} is compressed; torch compresses nothing: unpack the file and "
                              "pack it with zip -0",
                              in_quotes(entry.name)));
  }
  next = at + entry_bytes + name_bytes + extra_bytes + comment_bytes;
  return entry;
}

ByteView Zip::data_of(const Entry& entry) const {
  if (!marked(entry.local, local_bytes, local_mark)) {
    refuse(name_, fmt::format("{} should begin at byte {}, and does not", in_quotes(entry.name),
                              entry.local));
  }
  const std::uint64_t begin = entry.local + local_bytes +
                              number_at<std::uint16_t>(file_, entry.local + 26) +
                              number_at<std::uint16_t>(file_, entry.local + 28);
  if (begin > file_.size() || entry.size > file_.size() - begin) {
    refuse(name_, fmt::format("{} has {} bytes from byte {} on, and the file ends at {}",
                              in_quotes(entry.name), entry.size, begin, file_.size()));
  }
  const ByteView data = file_.subspan(begin, entry.size);
  if (crc32_of(data) != entry.checksum) {
    warn(
        fmt::format("{}: {} does not have its checksum: it is damaged, or torch was told to write "
                    "none",
                    name_, in_quotes(entry.name)));
  }
  return data;
}

std::map<std::string, ByteView, std::less<>> Zip::entries() {
  const Directory where = directory();
  std::vector<Entry> listed;
  std::uint64_t at = where.begin;
  for (std::uint64_t i = 0; i < where.count; ++i) {
    listed.push_back(entry_at(at, where.begin + where.bytes, at));
  }
  std::sort(listed.begin(), listed.end(),
            [](const Entry& a, const Entry& b) { return a.local < b.local; });
  std::map<std::string, ByteView, std::less<>> found;
  const std::byte* free = file_.data();  // nothing before it may be used again
  for (const Entry& entry : listed) {
    if (file_.data() + std::min<std::uint64_t>(entry.local, file_.size()) < free) {
      refuse(name_, fmt::format("{} overlaps another entry", in_quotes(entry.name)));
    }
    const ByteView data = data_of(entry);
    free = data.data() + data.size();
    if (!found.emplace(entry.name, data).second) {
      refuse(name_, fmt::format("has two entries {}", in_quotes(entry.name)));
    }
  }
  return found;
}

}  // namespace

bool is_zip(ByteView file) {
  return file.size() >= 4 && number_at<std::uint32_t>(file, 0) == local_mark;
}

std::map<std::string, ByteView, std::less<>> read_zip(ByteView file, const std::string& name) {
  return Zip(file, name).entries();
}

}  // namespace foci::data
