// SPDX-License-Identifier: Apache-2.0
// foci convert: reads a checkpoint, says what it took and what it left, writes safetensors.
#include <foci/convert.hpp>

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

namespace foci::cli {
namespace {

struct Written {
  std::int64_t numbers = 0;
  std::uint64_t bytes = 0;
};

Written counted(const data::Checkpoint& checkpoint) {
  Written written;
  for (const auto& [name, view] : checkpoint.tensors) {
    written.numbers += view.count();
    written.bytes += std::uint64_t(view.count()) * size_of(view.dtype);
  }
  return written;
}

std::string beside(const data::Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const std::string& name : checkpoint.left) names.push_back(shown(name));
  constexpr std::size_t most = 8;
  const std::size_t more = names.size() > most ? names.size() - most : 0;
  names.resize(names.size() - more);
  return listed(names) + (more > 0 ? fmt::format(" and {} more", more) : "");
}

void print_words(const Convert& verb, const data::Checkpoint& checkpoint,
                 const std::string& stripped, std::int64_t dropped) {
  const Written written = counted(checkpoint);
  fmt::print("{}: {} tensors, {} numbers, {} bytes, from a file of {}\n", verb.out,
             checkpoint.tensors.size(), written.numbers, written.bytes, checkpoint.format);
  if (verb.common.quiet) return;
  if (!checkpoint.taken.empty()) fmt::print("weights taken from '{}'\n", shown(checkpoint.taken));
  if (!checkpoint.left.empty()) fmt::print("left: {}\n", beside(checkpoint));
  if (!stripped.empty()) fmt::print("'{}' taken off every name\n", stripped);
  if (dropped > 0) fmt::print("{} tensors '{}...' left out\n", dropped, shown(verb.drop));
}

}  // namespace

int run(const Convert& verb) {
  data::Checkpoint checkpoint = data::read_checkpoint(verb.in, verb.take);
  const std::string stripped = verb.keep_names ? "" : data::strip_wrappers(checkpoint);
  if (verb.hf_vit) data::rename_hf_vit(checkpoint);
  const std::int64_t dropped = verb.drop.empty() ? 0 : data::drop(checkpoint, verb.drop);
  if (!verb.drop.empty() && dropped == 0) {
    throw Misuse(fmt::format("--drop {}: no name in {} begins so", shown(verb.drop), verb.in));
  }
  checkpoint.metadata["format"] = "pt";
  write_safetensors(verb.out, checkpoint.tensors, checkpoint.metadata);
  if (!verb.common.json) {
    print_words(verb, checkpoint, stripped, dropped);
    return 0;
  }
  const Written written = counted(checkpoint);
  Json left = Json::array();
  for (const std::string& name : checkpoint.left) left.push_back(shown(name));
  print_json({{"in", verb.in},
              {"out", verb.out},
              {"format", checkpoint.format},
              {"taken", shown(checkpoint.taken)},
              {"left", left},
              {"stripped", stripped},
              {"dropped", dropped},
              {"tensors", checkpoint.tensors.size()},
              {"numbers", written.numbers},
              {"bytes", written.bytes}});
  return 0;
}

}  // namespace foci::cli
