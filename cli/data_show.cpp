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

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>

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

/// The splits that are there; the error of the one asked for, or of the first, when there is none.
std::vector<Part> parts_of(const Data& verb) {
  std::vector<Part> parts;
  std::optional<FileError> fault;
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    if (verb.split && *verb.split != split) continue;
    try {
      parts.push_back({split, data::open_images(verb.name, split)});
    } catch (const FileError& error) {
      const bool absent =
          std::string(error.what()).find("split that is known") != std::string::npos;
      if (!absent) throw;
      if (!fault) fault = error;
    }
  }
  if (parts.empty()) throw FileError(*fault);
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

/// "28 x 28 x 1", or the smallest and the largest of the samples.
std::string sizes_text(const ImageSet& set, std::int64_t count) {
  int low[2] = {1 << 30, 1 << 30}, high[2] = {0, 0}, channels = 0;
  for (const std::int64_t i : samples_of(set, set.pixels() ? 1 : count)) {
    const Image image = set.image(i);
    const int sizes[2] = {image.height, image.width};
    for (int axis = 0; axis < 2; ++axis) {
      low[axis] = std::min(low[axis], sizes[axis]);
      high[axis] = std::max(high[axis], sizes[axis]);
    }
    channels = image.channels;
  }
  const bool same = low[0] == high[0] && low[1] == high[1];
  return same ? fmt::format("{} x {} x {}", low[0], low[1], channels)
              : fmt::format("{}-{} x {}-{} x {}", low[0], high[0], low[1], high[1], channels);
}

/// Reads every sample; the first fault is thrown.
void check_all(const ImageSet& set, const Data& verb) {
  Executor threads(verb.common.threads);
  threads.run(set.size(), [&](std::int64_t i, int) {
    const Image image = set.image(i);
    if (!set.has_masks()) return;
    const Image mask = set.mask(i);
    if (mask.height == image.height && mask.width == image.width) return;
    throw FileError(fmt::format("{}: is {} x {}, its mask {} x {}", set.name(i), image.height,
                                image.width, mask.height, mask.width));
  });
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

Json json_of(const Part& part, std::int64_t samples) {
  Json classes = Json::object();
  const auto counts = counts_of(part.set);
  for (std::size_t c = 0; c < counts.size(); ++c) classes[part.set.classes()[c]] = counts[c];
  Json some = Json::array();
  for (const std::int64_t i : samples_of(part.set, samples)) {
    some.push_back({{"index", i}, {"name", part.set.name(i)}, {"label", part.set.label(i)}});
  }
  return {{"count", part.set.size()},
          {"masks", part.set.has_masks()},
          {"sizes", sizes_text(part.set, samples)},
          {"classes", classes},
          {"samples", some}};
}

void print_part(const Part& part, std::int64_t samples) {
  fmt::print("{:<6}{} images, {}, {} classes{}\n", data::name_of(part.split), part.set.size(),
             sizes_text(part.set, samples), part.set.classes().size(),
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

}  // namespace

int show_data(const Data& verb) {
  const std::int64_t samples = verb.count.value_or(standard_samples);
  if (samples < 1 || samples > most_samples) {
    throw Misuse(fmt::format("--count {}; it needs 1 to {}", samples, most_samples));
  }
  if (const std::optional<int> status = show_lines(verb)) return *status;
  const std::vector<Part> parts = parts_of(verb);
  if (verb.check) {
    for (const Part& part : parts) check_all(part.set, verb);
  }
  if (!verb.sheet.empty()) data::write_png(verb.sheet, sheet_of(parts[0].set, samples));
  if (verb.common.json) {
    Json splits = Json::object();
    for (const Part& part : parts) {
      splits[std::string(data::name_of(part.split))] = json_of(part, samples);
    }
    print_json({{"path", verb.name},
                {"kind", "images"},
                {"splits", splits},
                {"checked", verb.check},
                {"threads", Executor(verb.common.threads).threads()}});
    return 0;
  }
  for (const Part& part : parts) print_part(part, samples);
  if (!verb.common.quiet) print_classes(parts[0].set);
  if (verb.check && !verb.common.quiet) fmt::print("every sample was read\n");
  return 0;
}

}  // namespace foci::cli
