// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE from GPT-2's files. A byte is written there as a printable character; the pairs
// of vocab.bpe are merged in the order of its lines, leftmost first, with a heap, so that a piece
// of any length takes n log n.
#include "data/bytes.hpp"
#include "data/unicode.hpp"

#include <foci/error.hpp>
#include <foci/text.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <array>
#include <functional>
#include <queue>
#include <tuple>
#include <unordered_map>

namespace foci::data {
namespace {

std::uint64_t pair_key(std::int32_t a, std::int32_t b) {
  return std::uint64_t(std::uint32_t(a)) << 32 | std::uint32_t(b);
}

/// The character by which the files write a byte: itself when it is printable in Latin-1, else one
/// from U+0100 on, in order.
std::array<char32_t, 256> characters_of_bytes() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (char32_t b = 0; b < 256; ++b) {
    const bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae);
    characters[b] = plain ? b : next++;
  }
  return characters;
}

/// The bytes that a token of the files stands for; false when it has another character.
bool to_bytes(std::string_view token, std::string& bytes) {
  static const auto table = [] {
    std::unordered_map<char32_t, char> bytes_of;
    const auto characters = characters_of_bytes();
    for (std::size_t b = 0; b < 256; ++b) bytes_of[characters[b]] = char(b);
    return bytes_of;
  }();
  bytes.clear();
  while (!token.empty()) {
    const Character c = next_character(token);
    const auto found = table.find(c.code);
    if (found == table.end()) return false;
    bytes += found->second;
    token.remove_prefix(c.bytes);
  }
  return true;
}

}  // namespace

struct BytePairs::Contents {
  struct Merge {
    std::int32_t rank = 0, merged = 0;
  };

  std::vector<std::string> bytes;  // of each token
  std::unordered_map<std::uint64_t, Merge> merges;
  std::array<std::int32_t, 256> of_byte{};

  void read_encoder(const Files& files, std::unordered_map<std::string, std::int32_t>& ids);
  void read_merges(const Files& files, const std::unordered_map<std::string, std::int32_t>& ids);
  void encode_piece(Tokens& to, std::string_view piece) const;
};

void BytePairs::Contents::read_encoder(const Files& files,
                                       std::unordered_map<std::string, std::int32_t>& ids) {
  const std::string& name = files.encoder_name;
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(files.encoder);
  } catch (const nlohmann::json::parse_error& error) {
    refuse(name, fmt::format("is not valid JSON at byte {}", error.byte));
  }
  if (!json.is_object()) refuse(name, "is no JSON object; it needs token: number");
  bytes.resize(json.size());
  std::vector<bool> seen(json.size());
  for (const auto& [token, value] : json.items()) {
    const bool whole = value.is_number_unsigned();
    const std::uint64_t id = whole ? value.get<std::uint64_t>() : 0;
    if (!whole || id >= json.size() || seen[id]) {
      refuse(name,
             fmt::format("token {} has {}; it needs a number below {} of its own", in_quotes(token),
                         in_quotes(value.dump(-1, ' ', true)), json.size()));
    }
    seen[id] = true;
    // <|endoftext|> and its like stand for themselves.
    if (!to_bytes(token, bytes[id])) bytes[id] = token;
    ids[token] = std::int32_t(id);
  }
}

void BytePairs::Contents::read_merges(const Files& files,
                                      const std::unordered_map<std::string, std::int32_t>& ids) {
  std::string_view rest = files.merges;
  std::int32_t rank = 0;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      refuse(files.merges_name, fmt::format("line {}: {}; it needs two tokens and a space between",
                                            number, in_quotes(line)));
    }
    const std::string a(line.substr(0, space)), b(line.substr(space + 1));
    for (const std::string& token : {a, b, a + b}) {
      if (ids.contains(token)) continue;
      refuse(files.merges_name, fmt::format("line {}: token {} is not in {}", number,
                                            in_quotes(token), files.encoder_name));
    }
    merges.try_emplace(pair_key(ids.at(a), ids.at(b)), Merge{rank++, ids.at(a + b)});
  }
}

void BytePairs::Contents::encode_piece(Tokens& to, std::string_view piece) const {
  struct Node {
    std::int32_t token, before, after;  // -1: merged away, or none
  };
  std::vector<Node> nodes;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    nodes.push_back({of_byte[static_cast<unsigned char>(piece[i])], std::int32_t(i) - 1,
                     i + 1 < piece.size() ? std::int32_t(i) + 1 : -1});
  }
  using Offer =
      std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>;  // rank, at, a, b
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
  const auto offer = [&](std::int32_t at) {
    if (at < 0 || nodes[std::size_t(at)].after < 0) return;
    const std::int32_t a = nodes[std::size_t(at)].token;
    const std::int32_t b = nodes[std::size_t(nodes[std::size_t(at)].after)].token;
    const auto found = merges.find(pair_key(a, b));
    if (found != merges.end()) offers.emplace(found->second.rank, at, a, b);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) offer(std::int32_t(i));
  while (!offers.empty()) {
    const auto [rank, at, a, b] = offers.top();
    offers.pop();
    Node& left = nodes[std::size_t(at)];
    if (left.token != a || left.after < 0 || nodes[std::size_t(left.after)].token != b) continue;
    Node& right = nodes[std::size_t(left.after)];
    left.token = merges.at(pair_key(a, b)).merged;
    left.after = right.after;
    right.token = -1;
    if (left.after >= 0) nodes[std::size_t(left.after)].before = at;
    offer(left.before);
    offer(at);
  }
  for (const Node& node : nodes) {
    if (node.token >= 0) to.push_back(node.token);
  }
}

BytePairs::BytePairs(const Files& files) {
  auto all = std::make_shared<Contents>();
  std::unordered_map<std::string, std::int32_t> ids;
  all->read_encoder(files, ids);
  all->read_merges(files, ids);
  std::array<bool, 256> known{};
  for (std::size_t id = 0; id < all->bytes.size(); ++id) {
    if (all->bytes[id].size() != 1) continue;
    const auto byte = static_cast<unsigned char>(all->bytes[id][0]);
    all->of_byte[byte] = std::int32_t(id);
    known[byte] = true;
  }
  for (std::size_t b = 0; b < 256; ++b) {
    if (!known[b]) refuse(files.encoder_name, fmt::format("has no token for byte {}", b));
  }
  contents_ = std::move(all);
}

BytePairs::BytePairs(const std::string& encoder, const std::string& merges)
    : BytePairs([&] {
        const Bytes a = read_maybe_gzip(encoder), b = read_maybe_gzip(merges);
        return BytePairs(Files{text_of(a), text_of(b), encoder, merges});
      }()) {}

std::int64_t BytePairs::size() const { return std::int64_t(contents_->bytes.size()); }

Tokens BytePairs::encode(std::string_view text) const {
  std::unordered_map<std::string_view, Tokens> known;
  Tokens tokens;
  for (const std::string_view piece : gpt2_pieces(text)) {
    const auto [at, fresh] = known.try_emplace(piece);
    if (fresh) contents_->encode_piece(at->second, piece);
    tokens.insert(tokens.end(), at->second.begin(), at->second.end());
  }
  return tokens;
}

std::string BytePairs::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= size()) {
      throw InvalidArgument(fmt::format("token {} of {} byte pairs", token, size()));
    }
    text += contents_->bytes[std::size_t(token)];
  }
  return text;
}

}  // namespace foci::data
