// SPDX-License-Identifier: Apache-2.0
// A language model begins with the weights of another one of its shape: what must be the same, said
// number by number, and the copies.
#include <foci/error.hpp>
#include <foci/language.hpp>

#include <fmt/core.h>

#include <array>
#include <string_view>

namespace foci::models {
namespace {

struct Number {
  std::string_view name;
  std::int64_t read, mine;
};

std::int64_t kv_heads_of(const LanguageOptions& o) {
  return o.kv_heads == 0 ? o.heads : o.kv_heads;
}
std::int64_t hidden_of(const LanguageOptions& o) { return o.hidden == 0 ? 4 * o.dim : o.hidden; }

/// "learned positions, LayerNorm 1e-05, ...": what no number of a shape tells.
std::string parts_of(const LanguageOptions& o) {
  constexpr std::array<std::string_view, 3> mlps = {"GELU", "GELU by tanh", "SwiGLU"};
  const bool rotary = o.positions == Positions::rotary;
  return fmt::format("{}, {} with eps {:g}, {}, {}, {}",
                     !rotary ? "learned positions"
                     : o.pairs == Pairs::neighbours
                         ? fmt::format("rotary positions of neighbours, base {:g}", o.rotary_base)
                         : fmt::format("rotary positions of halves, base {:g}", o.rotary_base),
                     o.norm == Norm::rms ? "RMSNorm" : "LayerNorm", o.norm_eps,
                     mlps.at(std::size_t(o.activation)), o.biases ? "biases" : "no biases",
                     o.tied ? "the embedding as its head" : "a head of its own");
}

void check_same(const LanguageOptions& read, const LanguageOptions& mine, const std::string& path) {
  const Number numbers[] = {{"vocabulary", read.vocabulary, mine.vocabulary},
                            {"dim", read.dim, mine.dim},
                            {"depth", read.depth, mine.depth},
                            {"heads", read.heads, mine.heads},
                            {"kv-heads", kv_heads_of(read), kv_heads_of(mine)},
                            {"hidden size", hidden_of(read), hidden_of(mine)}};
  for (const Number& number : numbers) {
    if (number.read == number.mine) continue;
    throw FileError(fmt::format("{}: has {} {}; this model has {}", path, number.name, number.read,
                                number.mine));
  }
  if (mine.context > read.context) {
    throw FileError(fmt::format("{}: has context {}; this model has {}, which is longer", path,
                                read.context, mine.context));
  }
  const std::string has = parts_of(read), needs = parts_of(mine);
  if (has != needs) throw FileError(fmt::format("{}: has {}; this model has {}", path, has, needs));
}

}  // namespace

void begin_with(Language& model, Language& read, const std::string& path) {
  check_same(read->options(), model->options(), path);
  const at::NoGradGuard without;
  const auto from = plain_weights(*read);
  for (const auto& [name, to] : plain_weights(*model)) {
    const at::Tensor& found = from.at(name);
    const bool places = name == "positions";  // of a context that may be shorter
    at::Tensor(to).copy_(places ? found.slice(0, 0, to.size(0)) : found);
  }
}

}  // namespace foci::models
