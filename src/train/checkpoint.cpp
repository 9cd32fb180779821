// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a run: written so that a kill at any moment leaves the one before whole.
#include "train/checkpoint.hpp"

#include <foci/train.hpp>

#include "train/tensors.hpp"

#include <foci/error.hpp>
#include <foci/nn.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

namespace foci::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view last_written = "training.safetensors";

void write(const fs::path& path, const Tensors& tensors) {
  std::map<std::string, View> views;
  std::vector<at::Tensor> held;  // until they are written
  for (const auto& [name, tensor] : tensors) {
    held.push_back(tensor.detach().to(at::kCPU).contiguous());
    views[name] = view_of(name, held.back());
  }
  write_safetensors(path.string(), views, {{"format", "pt"}});
}

Tensors read(const fs::path& path) {
  const Safetensors file(path.string());
  Tensors tensors;
  for (const std::string& name : file.names())
    tensors[name] = tensor_of(file.find(name), [](void*) {}).clone();
  return tensors;
}

std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  std::int64_t step = 0;
  if (!name.starts_with("step-")) return {};
  const auto [end, fault] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (fault != std::errc() || end != name.data() + name.size()) return {};
  return step;
}

using Checkpoints = std::vector<std::pair<std::int64_t, fs::path>>;

/// Oldest first.
Checkpoints all_of(const std::string& run) {
  Checkpoints all;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(fs::path(run) / "checkpoints", none)) {
    if (const auto step = step_of(entry.path())) all.emplace_back(*step, entry.path());
  }
  std::sort(all.begin(), all.end());
  return all;
}

/// One without the file that is written last is half of one.
bool is_whole(const fs::path& folder) { return fs::exists(folder / last_written); }

Checkpoints whole_ones(const std::string& run) {
  Checkpoints all = all_of(run);
  std::erase_if(all, [](const auto& one) { return !is_whole(one.second); });
  return all;
}

/// What makes it a checkpoint goes first, so that half of one never looks whole.
void discard(const fs::path& folder) {
  std::error_code ignored;
  fs::remove(folder / last_written, ignored);
  fs::remove_all(folder, ignored);
}

/// The average under the names of the model, buffers beside it, so that it loads as one.
Tensors model_of(const Average& average, const torch::nn::Module& module) {
  Tensors all = average.tensors();
  for (const auto& item : module.named_buffers()) all[item.key()] = item.value();
  return all;
}

void write_all(const fs::path& folder, const State& state) {
  nn::save_weights(*state.module, (folder / "model.safetensors").string());
  if (state.average) write(folder / "ema.safetensors", model_of(*state.average, *state.module));
  write(folder / last_written, state.optimizer->state());
}

}  // namespace

std::string checkpoint_of(const std::string& run, std::int64_t step) {
  return (fs::path(run) / "checkpoints" / fmt::format("step-{}", step)).string();
}

void clear_halves(const std::string& run) {
  std::error_code ignored;
  for (const auto& [step, folder] : all_of(run)) {
    if (!is_whole(folder)) {
      discard(folder);
      continue;
    }
    std::vector<fs::path> written;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      const std::string name = entry.path().filename().string();
      const bool ours = name.starts_with(".foci-") && name.ends_with(".tmp");
      if (ours || name.ends_with(".part")) written.push_back(entry.path());
    }
    for (const fs::path& file : written) fs::remove(file, ignored);
  }
}

void save_checkpoint(const std::string& run, std::int64_t step, const State& state, int keep) {
  const fs::path folder = checkpoint_of(run, step);
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault) throw FileError(fmt::format("{}: {}", folder.string(), fault.message()));
  fs::remove(folder / last_written, fault);
  try {
    write_all(folder, state);
  } catch (...) {
    discard(folder);
    throw;
  }
  const auto all = whole_ones(run);
  for (std::size_t i = 0; i + std::size_t(std::max(keep, 1)) < all.size(); ++i)
    discard(all[i].second);
}

std::string last_checkpoint(const std::string& run) {
  const auto all = whole_ones(run);
  return all.empty() ? "" : all.back().second.string();
}

std::int64_t load_checkpoint(const std::string& run, const State& state) {
  const fs::path folder = last_checkpoint(run);
  if (folder.empty()) return -1;
  const Tensors training = read(folder / last_written);
  nn::load_weights(*state.module, (folder / "model.safetensors").string());
  state.optimizer->load(training);
  if (state.average) state.average->load(read(folder / "ema.safetensors"));
  return *step_of(folder);
}

}  // namespace foci::train
