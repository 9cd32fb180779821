// SPDX-License-Identifier: Apache-2.0
// foci data show: what a set holds: splits, classes, counts, sizes; a sheet of samples as PNG; and
// with --check every sample read once.
#include "cli/data.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>
#include <foci/executor.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace foci::cli {
namespace {

using data::Image;
using data::ImageSet;
using data::Split;

constexpr std::int64_t standard_samples = 24, most_samples = 10000;

struct Part {
  Split split;
  ImageSet set;
};

using Lines = std::vector<std::string>;

/// The splits that are there; the error of the one asked for, or of the first, when there is none.
/// With --check one that cannot be opened adds to `faults`, and the others are checked all the
/// same.
std::vector<Part> parts_of(const Data& verb, Lines& faults) {
  std::vector<Part> parts;
  std::optional<FileError> fault;
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    if (verb.split && *verb.split != split) continue;
    try {
      parts.push_back({split, data::open_images(verb.name, split)});
    } catch (const FileError& error) {
      const bool absent =
          std::string(error.what()).find("split that is known") != std::string::npos;
      if (!absent && !verb.check) throw;
      if (!absent && std::find(faults.begin(), faults.end(), error.what()) == faults.end())
        faults.emplace_back(error.what());
      if (!fault) fault = error;
    }
  }
  if (parts.empty() && faults.empty()) throw FileError(*fault);
  return parts;
}

std::vector<std::int64_t> counts_of(const ImageSet& set) {
  std::vector<std::int64_t> counts(set.classes().size());
  for (std::int64_t i = 0; i < set.size() && !set.has_masks(); ++i) {
    ++counts.at(std::size_t(set.label(i)));
  }
  return counts;
}

/// Samples spread evenly over the set.
std::vector<std::int64_t> samples_of(const ImageSet& set, std::int64_t count) {
  count = std::min(count, set.size());
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i) indices.push_back(i * set.size() / count);
  return indices;
}

/// "28 x 28 x 1", or the smallest and the largest of the samples; those that cannot be read add to
/// `faults`.
std::string sizes_text(const ImageSet& set, std::int64_t count, std::vector<std::string>& faults) {
  int low[2] = {1 << 30, 1 << 30}, high[2] = {0, 0}, channels = 0;
  for (const std::int64_t i : samples_of(set, set.pixels() ? 1 : count)) {
    Image image;
    try {
      image = set.image(i);
    } catch (const FileError& fault) {
      faults.emplace_back(fault.what());
      continue;
    }
    const int sizes[2] = {image.height, image.width};
    for (int axis = 0; axis < 2; ++axis) {
      low[axis] = std::min(low[axis], sizes[axis]);
      high[axis] = std::max(high[axis], sizes[axis]);
    }
    channels = image.channels;
  }
  if (channels == 0) return "of no size that is known";
  const bool same = low[0] == high[0] && low[1] == high[1];
  return same ? fmt::format("{} x {} x {}", low[0], low[1], channels)
              : fmt::format("{}-{} x {}-{} x {}", low[0], high[0], low[1], high[1], channels);
}

void check_one(const ImageSet& set, std::int64_t i) {
  const Image image = set.image(i);
  if (!set.has_masks()) return;
  const Image mask = set.mask(i);
  if (mask.height == image.height && mask.width == image.width) return;
  throw FileError(fmt::format("{}: is {} x {}, its mask {} x {}", set.name(i), image.height,
                              image.width, mask.height, mask.width));
}

/// Reads every sample; what cannot be read, by its number in the set.
std::map<std::int64_t, std::string> faults_of(const ImageSet& set, const Data& verb) {
  std::map<std::int64_t, std::string> faults;
  std::mutex guard;
  Executor threads(verb.common.threads);
  threads.run(set.size(), [&](std::int64_t i, int) {
    try {
      check_one(set, i);
    } catch (const FileError& fault) {
      const std::lock_guard lock(guard);
      faults.emplace(i, fault.what());
    }
  });
  return faults;
}

/// Of every image below the folder, for a set that cannot be opened.
void add_faults_below(const std::string& folder, Lines& lines) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  std::error_code fault;
  for (fs::recursive_directory_iterator it(folder, fault), end; !fault && it != end;
       it.increment(fault)) {
    std::string ending = it->path().extension().string();
    std::transform(ending.begin(), ending.end(), ending.begin(),
                   [](unsigned char c) { return char(std::tolower(c)); });
    if (ending == ".png" || ending == ".jpg" || ending == ".jpeg")
      paths.push_back(it->path().string());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    try {
      data::read_image(path);
    } catch (const FileError& error) {
      lines.emplace_back(error.what());
    }
  }
}

/// A line for every file at fault, so that all can be mended at once. `lines`: of splits that could
/// not be opened.
void check_all(const std::vector<Part>& parts, Lines lines, const Data& verb) {
  constexpr std::size_t most = 50;
  const bool opened = lines.empty();
  if (opened) {
    for (const Part& part : parts) {
      for (const auto& [i, line] : faults_of(part.set, verb)) lines.push_back(line);
    }
  } else {
    add_faults_below(verb.name, lines);
  }
  if (lines.empty()) return;
  if (lines.size() == 1) throw FileError(lines[0]);
  for (std::size_t i = 0; i < std::min(lines.size(), most); ++i) warn(lines[i]);
  throw FileError(fmt::format("{}: {} samples{} cannot be read", shown(verb.name), lines.size(),
                              opened ? "" : " and folders"));
}

/// Side by side in rows, each cut or padded to the size of the first.
Image sheet_of(const ImageSet& set, std::int64_t count) {
  const auto indices = samples_of(set, count);
  const Image first = set.image(indices.at(0));
  const int across = std::max(1, std::min(int(indices.size()), 8));
  const int down = (int(indices.size()) + across - 1) / across;
  Image sheet(down * (first.height + 2), across * (first.width + 2), first.channels);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const Image image = set.image(indices[i]);
    const int y0 = int(i) / across * (first.height + 2), x0 = int(i) % across * (first.width + 2);
    for (int y = 0; y < std::min(image.height, first.height); ++y) {
      for (int x = 0; x < std::min(image.width, first.width); ++x) {
        std::copy_n(image.at(y, x), first.channels, sheet.at(y0 + y, x0 + x));
      }
    }
  }
  return sheet;
}

Json json_of(const Part& part, std::int64_t samples, std::vector<std::string>& faults) {
  Json classes = Json::object();
  const auto counts = counts_of(part.set);
  for (std::size_t c = 0; c < counts.size(); ++c) classes[part.set.classes()[c]] = counts[c];
  Json some = Json::array();
  for (const std::int64_t i : samples_of(part.set, samples)) {
    some.push_back({{"index", i}, {"name", part.set.name(i)}, {"label", part.set.label(i)}});
  }
  return {{"count", part.set.size()},
          {"masks", part.set.has_masks()},
          {"sizes", sizes_text(part.set, samples, faults)},
          {"classes", classes},
          {"samples", some}};
}

void print_part(const Part& part, std::int64_t samples, std::vector<std::string>& faults) {
  fmt::print("{:<6}{} images, {}, {} classes{}\n", data::name_of(part.split), part.set.size(),
             sizes_text(part.set, samples, faults), part.set.classes().size(),
             part.set.has_masks() ? ", a mask each" : "");
}

void print_classes(const ImageSet& set) {
  constexpr std::size_t most = 20;
  const auto counts = counts_of(set);
  for (std::size_t c = 0; c < std::min(counts.size(), most); ++c) {
    fmt::print("  {:>4}  {:<24}{}\n", c, set.classes()[c],
               set.has_masks() ? "" : std::to_string(counts[c]));
  }
  if (counts.size() > most) fmt::print("  and {} more\n", counts.size() - most);
}

/// What was shown is shown; the first that could not be read is what the call ends with.
void end_with(const std::vector<std::string>& faults, const Data& verb) {
  if (faults.empty()) return;
  throw FileError(
      fmt::format("{}; foci data show {} --check names every one", faults[0], shown(verb.name)));
}

}  // namespace

int show_data(const Data& verb) {
  const std::int64_t samples = verb.count.value_or(standard_samples);
  if (samples < 1 || samples > most_samples) {
    throw Misuse(fmt::format("--count {}; it needs 1 to {}", samples, most_samples));
  }
  if (const std::optional<int> status = show_lines(verb)) return *status;
  std::vector<std::string> faults;
  const std::vector<Part> parts = parts_of(verb, faults);
  if (verb.check) check_all(parts, std::exchange(faults, {}), verb);
  if (!verb.sheet.empty()) data::write_png(verb.sheet, sheet_of(parts[0].set, samples));
  if (verb.common.json) {
    Json splits = Json::object();
    for (const Part& part : parts) {
      splits[std::string(data::name_of(part.split))] = json_of(part, samples, faults);
    }
    print_json({{"path", verb.name},
                {"kind", "images"},
                {"splits", splits},
                {"faults", faults},
                {"checked", verb.check},
                {"threads", Executor(verb.common.threads).threads()}});
    end_with(faults, verb);
    return 0;
  }
  for (const Part& part : parts) print_part(part, samples, faults);
  if (!verb.common.quiet && data::splits_itself(verb.name))
    fmt::print("test is a fifth of every class, chosen by the files' names\n");
  if (!verb.common.quiet) print_classes(parts[0].set);
  end_with(faults, verb);
  if (verb.check && !verb.common.quiet) fmt::print("every sample was read\n");
  return 0;
}

}  // namespace foci::cli
