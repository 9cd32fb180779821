// SPDX-License-Identifier: Apache-2.0
// The folders of a run's checkpoints: found, kept and cleared without reading what is in them.
#include "train/checkpoint.hpp"

#include <foci/run.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

namespace foci::train {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

std::string checkpoint_of(const std::string& run, std::int64_t step) {
  return (fs::path(run) / "checkpoints" / fmt::format("step-{}", step)).string();
}

void clear_halves(const std::string& run) {
  std::error_code ignored;
  for (const auto& [step, folder] : all_of(run)) {
    if (!is_whole(folder)) {
      discard_checkpoint(folder.string());
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

std::int64_t step_of_checkpoint(const std::string& folder) { return step_of(folder).value_or(-1); }

void discard_checkpoint(const std::string& folder) {
  std::error_code ignored;
  fs::remove(fs::path(folder) / last_written, ignored);
  fs::remove_all(folder, ignored);
}

void keep_last(const std::string& run, int keep) {
  const auto all = whole_ones(run);
  for (std::size_t i = 0; i + std::size_t(std::max(keep, 1)) < all.size(); ++i)
    discard_checkpoint(all[i].second.string());
}

std::string last_checkpoint(const std::string& run) {
  const auto all = whole_ones(run);
  return all.empty() ? "" : all.back().second.string();
}

}  // namespace foci::train
