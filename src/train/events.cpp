// SPDX-License-Identifier: Apache-2.0
// Records of TensorBoard, byte by byte; all numbers little-endian.
#include "train/events.hpp"

#include <array>
#include <cstring>

namespace foci::train {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0x82f63b78u : 0);
    table[i] = rest;
  }
  return table;
}

template <class Number>
std::string plain(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

std::string varint(std::uint64_t number) {
  std::string bytes;
  for (; number > 0x7f; number >>= 7) bytes += char(number | 0x80);
  return bytes += char(number);
}

/// A field of the wire type "length, then bytes".
std::string field(int number, std::string_view bytes) {
  return varint(std::uint64_t(number) << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}
std::string count_field(int number, std::uint64_t value) {
  return varint(std::uint64_t(number) << 3) + varint(value);
}
std::string double_field(int number, double value) {
  return varint(std::uint64_t(number) << 3 | 1) + plain(value);
}

/// The checksum turned, so that a sum over bytes that hold sums stays strong.
std::string masked_sum(std::string_view bytes) {
  const std::uint32_t sum = crc32c(bytes);
  return plain((sum >> 15 | sum << 17) + 0xa282ead8u);
}

std::string record(std::string_view bytes) {
  const std::string length = plain(std::uint64_t(bytes.size()));
  return length + masked_sum(length) + std::string(bytes) + masked_sum(bytes);
}

/// A value of the text plugin: a tensor (1) of strings.
std::string text_value(std::string_view name, std::string_view text) {
  constexpr std::uint64_t string_type = 7;
  const std::string shape = field(2, count_field(1, 1));
  const std::string tensor = count_field(1, string_type) + field(2, shape) + field(8, text);
  const std::string plugin = field(1, field(1, "text"));
  return field(1, std::string(name)) + field(8, tensor) + field(9, plugin);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = crc_table();
  std::uint32_t sum = ~0u;
  for (const char byte : bytes) sum = sum >> 8 ^ table[(sum ^ std::uint8_t(byte)) & 0xff];
  return ~sum;
}

std::string first_event(double time) {
  return record(double_field(1, time) + field(3, "brain.Event:2"));
}

std::string event_of(double time, std::int64_t step, const Scores& values,
                     std::string_view sample) {
  std::string summary;
  for (const auto& [name, value] : values) {
    const std::string simple = varint(2 << 3 | 5) + plain(float(value));
    summary += field(1, field(1, name) + simple);
  }
  if (!sample.empty()) summary += field(1, text_value("sample/text_summary", sample));
  return record(double_field(1, time) + count_field(2, std::uint64_t(step)) + field(5, summary));
}

}  // namespace foci::train
