// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a run: written so that a kill at any moment leaves the one before whole.
#include "train/checkpoint.hpp"

#include <foci/train.hpp>

#include "train/tensors.hpp"

#include <foci/error.hpp>
#include <foci/nn.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <filesystem>

namespace foci::train {
namespace {

namespace fs = std::filesystem;

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

void save_checkpoint(const std::string& run, std::int64_t step, const State& state, int keep) {
  const fs::path folder = checkpoint_of(run, step);
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault) throw FileError(fmt::format("{}: {}", folder.string(), fault.message()));
  fs::remove(folder / last_written, fault);
  try {
    write_all(folder, state);
  } catch (...) {
    discard_checkpoint(folder.string());
    throw;
  }
  keep_last(run, keep);
}

std::int64_t load_checkpoint(const std::string& run, const State& state) {
  const fs::path folder = last_checkpoint(run);
  if (folder.empty()) return -1;
  const Tensors training = read(folder / last_written);
  nn::load_weights(*state.module, (folder / "model.safetensors").string());
  state.optimizer->load(training);
  if (state.average) state.average->load(read(folder / "ema.safetensors"));
  return step_of_checkpoint(folder.string());
}

}  // namespace foci::train
