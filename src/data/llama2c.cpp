// SPDX-License-Identifier: Apache-2.0
// llama2.c's .bin: seven 32-bit numbers, then every weight as f32, one after another, all layers of
// a kind together. Little-endian, as the machines that this library runs on.
#include "data/llama2c.hpp"

#include <fmt/core.h>

#include <cstring>
#include <utility>

namespace foci::data {
namespace {

constexpr std::size_t header_bytes = 7 * sizeof(std::int32_t);
constexpr std::int64_t most = 1 << 20;  // of any number: products of three stay far from overflow

struct Header {
  Llama2c sizes;
  bool own_head = false;  // a negative vocabulary says so
};

Header read_header(ByteView bytes, const std::string& name) {
  if (bytes.size() < header_bytes)
    refuse(name, fmt::format("has {} bytes; its header alone has {}", bytes.size(), header_bytes));
  std::int32_t numbers[7];
  std::memcpy(numbers, bytes.data(), header_bytes);
  Header header;
  header.own_head = numbers[5] < 0;
  Llama2c& to = header.sizes;
  const std::pair<const char*, std::int64_t&> places[7] = {
      {"dim", to.dim},         {"hidden", to.hidden},      {"layers", to.layers},
      {"heads", to.heads},     {"key heads", to.kv_heads}, {"vocabulary", to.vocabulary},
      {"context", to.context},
  };
  for (int i = 0; i < 7; ++i) {
    const std::int64_t number = i == 5 && header.own_head ? -std::int64_t(numbers[i]) : numbers[i];
    if (number < 1 || number > most) {
      refuse(name, fmt::format("{} is {}; it must lie between 1 and {}: is this a llama2.c model?",
                               places[i].first, number, most));
    }
    places[i].second = number;
  }
  if (to.dim % to.heads != 0 || to.dim / to.heads % 2 != 0)
    refuse(name, fmt::format("dim {} over {} heads; each needs an even size", to.dim, to.heads));
  if (to.heads % to.kv_heads != 0)
    refuse(name, fmt::format("{} heads is no multiple of {} key heads", to.heads, to.kv_heads));
  return header;
}

}  // namespace

Llama2c parse_llama2c(ByteView bytes, const std::string& name) {
  auto [model, own_head] = read_header(bytes, name);
  const std::int64_t L = model.layers, dim = model.dim, hidden = model.hidden;
  const std::int64_t V = model.vocabulary, half = dim / model.heads / 2;
  const std::int64_t keys = model.kv_heads * half * 2;
  const std::pair<const char*, Shape> kinds[] = {
      {"embed", {V, dim}},
      {"norm1", {L, dim}},
      {"q", {L, dim, dim}},
      {"k", {L, keys, dim}},
      {"v", {L, keys, dim}},
      {"proj", {L, dim, dim}},
      {"norm2", {L, dim}},
      {"gate", {L, hidden, dim}},
      {"down", {L, dim, hidden}},
      {"up", {L, hidden, dim}},
      {"norm", {dim}},
      {"", {model.context, half}},  // cosines and sines of the positions, which are computed
      {"", {model.context, half}},
      {"head", {V, dim}},
  };
  const std::byte* at = bytes.data() + header_bytes;
  std::uint64_t needed = header_bytes;
  for (const auto& [kind, shape] : kinds) {
    if (kind == std::string_view("head") && !own_head) continue;
    std::uint64_t size = sizeof(float);
    for (const std::int64_t extent : shape) size *= std::uint64_t(extent);
    needed += size;
    if (needed > bytes.size()) continue;
    if (*kind != 0) model.weights[kind] = View(at, DType::f32, shape);
    at += size;
  }
  if (needed != bytes.size()) {
    refuse(name, fmt::format("has {} bytes; {} layers of dim {}, vocabulary {} need {}",
                             bytes.size(), L, dim, V, needed));
  }
  return std::move(model);
}

Llama2c read_llama2c(const std::string& path) {
  auto bytes = std::make_shared<const Bytes>(read_file(path));
  Llama2c model = parse_llama2c(*bytes, path);
  model.memory = std::move(bytes);
  return model;
}

}  // namespace foci::data
