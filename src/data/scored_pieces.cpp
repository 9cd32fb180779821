// SPDX-License-Identifier: Apache-2.0
// llama2.c's tokenizer: a text is cut into characters (bytes where a character is no piece), then
// neighbours are merged, the pair with the highest score first, of equals the leftmost.
#include "data/bytes.hpp"
#include "data/unicode.hpp"

#include <foci/error.hpp>
#include <foci/llama2c.hpp>

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <queue>
#include <tuple>
#include <unordered_map>

namespace foci::data {
namespace {

constexpr std::int32_t first_byte = 3, first_text = first_byte + 256;
constexpr std::size_t longest_piece = 1 << 16;

/// Reads a number and steps over it.
template <class T>
bool take(ByteView& bytes, T& to) {
  if (bytes.size() < sizeof to) return false;
  std::memcpy(&to, bytes.data(), sizeof to);
  bytes = bytes.subspan(sizeof to);
  return true;
}

}  // namespace

struct ScoredPieces::Contents {
  std::vector<std::string> pieces;
  std::vector<float> scores;
  std::unordered_map<std::string_view, std::int32_t> ids;  // of text; into `pieces`
  std::size_t longest = 0;

  void read(ByteView bytes, const std::string& name);
  std::int32_t id_of(const std::string& text) const {  // -1: no piece
    const auto found = text.size() > longest ? ids.end() : ids.find(text);
    return found == ids.end() ? -1 : found->second;
  }
};

void ScoredPieces::Contents::read(ByteView bytes, const std::string& name) {
  std::int32_t most = 0;
  if (!take(bytes, most)) refuse(name, "ends within its first number");
  while (!bytes.empty()) {
    float score = 0;
    std::int32_t length = 0;
    const std::size_t id = pieces.size();
    if (!take(bytes, score) || !take(bytes, length))
      refuse(name, fmt::format("ends within piece {}", id));
    if (length < 0 || std::size_t(length) > longest_piece || std::size_t(length) > bytes.size())
      refuse(name,
             fmt::format("piece {} has length {}; {} bytes are left", id, length, bytes.size()));
    if (!std::isfinite(score)) refuse(name, fmt::format("piece {} has the score {}", id, score));
    pieces.emplace_back(text_of(bytes.first(std::size_t(length))));
    scores.push_back(score);
    bytes = bytes.subspan(std::size_t(length));
  }
  for (std::int32_t b = 0; b < 256; ++b) {
    const std::string byte = fmt::format("<0x{:02X}>", b);
    const std::size_t id = std::size_t(first_byte) + std::size_t(b);
    if (id >= pieces.size())
      refuse(name, fmt::format("has {} pieces; none is {}", pieces.size(), byte));
    if (pieces[id] != byte)
      refuse(name, fmt::format("piece {} is {}; it must be {}", id, in_quotes(pieces[id]), byte));
  }
  for (std::size_t id = first_text; id < pieces.size(); ++id) {
    ids.try_emplace(pieces[id], std::int32_t(id));
    longest = std::max(longest, pieces[id].size());
  }
}

ScoredPieces::ScoredPieces(ByteView bytes, const std::string& name) {
  auto contents = std::make_shared<Contents>();
  contents->read(bytes, name);
  contents_ = std::move(contents);
}

ScoredPieces::ScoredPieces(const std::string& path) : ScoredPieces(read_file(path), path) {}

std::int64_t ScoredPieces::size() const { return std::int64_t(contents_->pieces.size()); }

Tokens ScoredPieces::encode(std::string_view text) const {
  struct Node {
    std::int32_t token, before, after;  // token -1: merged away; before, after -1: none
    std::string text;
  };
  std::vector<Node> nodes;
  const auto add = [&](std::int32_t token, std::string_view part) {
    const auto here = std::int32_t(nodes.size());
    if (here > 0) nodes.back().after = here;
    nodes.push_back({token, here - 1, -1, std::string(part)});
  };
  std::string spaced(text.empty() ? 0 : 1, ' ');
  spaced += text;
  for (std::string_view rest = spaced; !rest.empty();) {
    const std::string character(rest.substr(0, next_character(rest).bytes));
    const std::int32_t id = contents_->id_of(character);
    if (id >= 0) add(id, character);
    for (std::size_t i = 0; id < 0 && i < character.size(); ++i)
      add(first_byte + static_cast<unsigned char>(character[i]), character.substr(i, 1));
    rest.remove_prefix(character.size());
  }
  // Score, -position, the two tokens: the top is the highest score, leftmost.
  using Offer = std::tuple<float, std::int32_t, std::int32_t, std::int32_t>;
  std::priority_queue<Offer> offers;
  const auto offer = [&](std::int32_t at) {
    if (at < 0 || nodes[std::size_t(at)].after < 0) return;
    const Node& left = nodes[std::size_t(at)];
    const Node& right = nodes[std::size_t(left.after)];
    const std::int32_t id = contents_->id_of(left.text + right.text);
    if (id >= 0) offers.emplace(contents_->scores[std::size_t(id)], -at, left.token, right.token);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) offer(std::int32_t(i));
  while (!offers.empty()) {
    const auto [score, minus, a, b] = offers.top();
    offers.pop();
    Node& left = nodes[std::size_t(-minus)];
    if (left.token != a || left.after < 0 || nodes[std::size_t(left.after)].token != b) continue;
    Node& right = nodes[std::size_t(left.after)];
    left.text += right.text;
    left.token = contents_->id_of(left.text);
    left.after = right.after;
    right.token = -1;
    if (left.after >= 0) nodes[std::size_t(left.after)].before = -minus;
    offer(left.before);
    offer(-minus);
  }
  Tokens tokens = {begin};
  for (const Node& node : nodes) {
    if (node.token >= 0) tokens.push_back(node.token);
  }
  return tokens;
}

std::string ScoredPieces::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= size())
      throw InvalidArgument(fmt::format("token {} of {} pieces", token, size()));
    if (token == begin || token == end) continue;
    if (token >= first_byte && token < first_text) {
      text += char(token - first_byte);
    } else {
      text += contents_->pieces[std::size_t(token)];
    }
  }
  const bool from_begin = !tokens.empty() && tokens[0] == begin;
  if (from_begin && text.starts_with(' ')) text.erase(0, 1);  // what encode put there
  return text;
}

}  // namespace foci::data
