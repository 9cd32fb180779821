// SPDX-License-Identifier: Apache-2.0
// Which kind of checkpoint a file is, and the names of its tensors.
#include <foci/convert.hpp>

#include "data/rename.hpp"
#include "data/torch_file.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace foci::data {
namespace {

Checkpoint read_safetensors(const std::string& path, const std::string& take) {
  if (!take.empty()) refuse(path, "is a safetensors file, which has one set of weights alone");
  auto file = std::make_shared<Safetensors>(path);
  Checkpoint checkpoint{.format = "safetensors",
                        .taken = {},
                        .left = {},
                        .tensors = {},
                        .metadata = file->metadata(),
                        .memory = {}};
  for (const std::string& name : file->names()) checkpoint.tensors[name] = file->find(name);
  checkpoint.memory = std::move(file);
  return checkpoint;
}

}  // namespace

Checkpoint read_checkpoint(const std::string& path, const std::string& take) {
  if (path.ends_with(".safetensors")) return read_safetensors(path, take);
  auto bytes = std::make_shared<const Bytes>(read_file(path));
  if (!is_zip(*bytes) && !is_early_torch(*bytes)) {
    if (path.ends_with(".bin") && take.empty()) return read_llama2c_checkpoint(path);
    refuse(path, fmt::format("begins with {}: it is no file of torch.save, and safetensors end in "
                             ".safetensors",
                             in_quotes(text_of(*bytes).substr(0, 4))));
  }
  Checkpoint checkpoint = parse_torch(*bytes, path, take);
  using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<const Bytes>>;
  checkpoint.memory = std::make_shared<Both>(checkpoint.memory, bytes);
  return checkpoint;
}

std::string strip_wrappers(Checkpoint& checkpoint) {
  constexpr std::string_view wrappers[] = {"module.", "model.", "_orig_mod."};
  std::string stripped;
  for (bool again = !checkpoint.tensors.empty(); again;) {
    again = false;
    for (const std::string_view prefix : wrappers) {
      const auto has = [&](const auto& item) {
        return item.first.starts_with(prefix) && item.first.size() > prefix.size();
      };
      if (!std::all_of(checkpoint.tensors.begin(), checkpoint.tensors.end(), has)) continue;
      std::map<std::string, View> bare;
      for (const auto& [name, view] : checkpoint.tensors) bare[name.substr(prefix.size())] = view;
      checkpoint.tensors = std::move(bare);
      stripped += prefix;
      again = true;
    }
  }
  return stripped;
}

std::int64_t drop(Checkpoint& checkpoint, const std::string& prefix) {
  return std::int64_t(std::erase_if(
      checkpoint.tensors, [&](const auto& item) { return item.first.starts_with(prefix); }));
}

}  // namespace foci::data
