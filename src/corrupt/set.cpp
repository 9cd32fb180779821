// SPDX-License-Identifier: Apache-2.0
// Whole sets of images: corrupted into memory, written in the formats that are read, and a sheet to
// look at.
#include <foci/corrupt.hpp>

#include "data/bytes.hpp"
#include "data/folder.hpp"
#include "data/image_set.hpp"

#include <foci/error.hpp>
#include <foci/executor.hpp>
#include <foci/image.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

namespace foci::corrupt {
namespace {

using data::Image;
using data::ImageSet;

/// As a model sees it.
Image seen(const ImageSet& set, std::int64_t index, const SetPlan& plan) {
  Image image = set.image(index);
  if (plan.side == 0) return image;
  const int shorter = int(plan.side / plan.crop_share);
  return data::center_crop(data::resize_shorter(image, shorter, data::Filter::bicubic), plan.side,
                           plan.side);
}

void make_folder(const std::string& folder) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  if (fault) data::refuse(folder, fault.message());
}

void write_idx(const std::string& folder, const ImageSet& set) {
  const View pixels = set.pixels();
  data::IdxWriter images, labels;
  images.begin({set.size(), pixels.shape[1], pixels.shape[2]});
  labels.begin({set.size()});
  for (std::int64_t i = 0; i < set.size(); ++i) {
    images.add(set.image(i).pixels);
    labels.add(std::vector<std::uint8_t>{std::uint8_t(set.label(i))});
  }
  data::write_file(data::joined(folder, "t10k-images-idx3-ubyte"), images.bytes);
  data::write_file(data::joined(folder, "t10k-labels-idx1-ubyte"), labels.bytes);
}

/// A label, then the red, green and blue plane of each image.
void write_cifar(const std::string& folder, const ImageSet& set) {
  data::Bytes bytes;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    bytes.push_back(std::byte(set.label(i)));
    const Image image = set.image(i);
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t at = c; at < image.pixels.size(); at += 3)
        bytes.push_back(std::byte(image.pixels[at]));
    }
  }
  data::write_file(data::joined(folder, "test_batch.bin"), bytes);
}

/// Folders are numbered, so that their order is that of the classes.
void write_pngs(const std::string& folder, const ImageSet& set) {
  const auto place = [&](int label) {
    return data::joined(folder, fmt::format("test/{:04}", label));
  };
  for (int label = 0; label < int(set.classes().size()); ++label) make_folder(place(label));
  for (std::int64_t i = 0; i < set.size(); ++i)
    data::write_png(data::joined(place(set.label(i)), fmt::format("{:06}.png", i)), set.image(i));
}

}  // namespace

std::vector<Image> read_frost(const std::string& folder) {
  if (!data::is_folder(folder)) data::refuse(folder, "is no folder; --frost needs one of pictures");
  std::vector<Image> pictures;
  for (const std::string& path : data::images_below(folder))
    pictures.push_back(data::read_image(path));
  if (pictures.empty()) data::refuse(folder, "holds no JPEG or PNG; --frost needs pictures of it");
  return pictures;
}

ImageSet corrupted(const ImageSet& set, const SetPlan& plan) {
  if (set.has_masks()) throw InvalidArgument("a set with masks is not corrupted; classes are");
  const std::int64_t rest = set.size() - plan.first;
  const std::int64_t count = plan.count < 0 ? rest : std::min(plan.count, rest);
  if (plan.first < 0 || count < 1) throw InvalidArgument("there is no image to corrupt");
  const Image first = seen(set, plan.first, plan);
  Tensor pixels(DType::u8, {count, first.height, first.width, first.channels});
  ImageSet::Contents contents;
  contents.classes = set.classes();
  for (std::int64_t i = 0; i < count; ++i) contents.labels.push_back(set.label(plan.first + i));
  Executor(plan.threads).run(count, [&](std::int64_t i, int) {
    const Image image = seen(set, plan.first + i, plan);
    if (image.height != first.height || image.width != first.width) {
      throw InvalidArgument(fmt::format(
          "{}: is {} x {}, the first image {} x {}; a common side is "
          "needed (--side)",
          set.name(plan.first + i), image.height, image.width, first.height, first.width));
    }
    How how = plan.how;
    how.index += std::uint64_t(plan.first + i);
    const Image harmed = corrupt(image, plan.corruption, how);
    auto* to = static_cast<std::uint8_t*>(pixels.view().data);
    std::copy(harmed.pixels.begin(), harmed.pixels.end(),
              to + i * std::int64_t(harmed.pixels.size()));
  });
  contents.pixels = std::make_shared<const Tensor>(std::move(pixels));
  contents.parts = {fmt::format("{} {}", name_of(plan.corruption), plan.how.severity)};
  contents.ends = {count};
  return data::set_of(std::move(contents));
}

void write_set(const std::string& folder, const ImageSet& set) {
  make_folder(folder);
  const View pixels = set.pixels();
  const bool cifar = pixels.shape[1] == 32 && pixels.shape[2] == 32 && set.classes().size() == 10;
  if (pixels.shape[3] == 1) {
    write_idx(folder, set);
  } else if (cifar) {
    write_cifar(folder, set);
  } else {
    write_pngs(folder, set);
  }
  std::string names;
  for (const std::string& name : set.classes()) names += name + "\n";
  data::write_file(data::joined(folder, "classes.txt"), std::as_bytes(std::span(names)));
}

Image contact_sheet(const Image& image, std::span<const Corruption> corruptions, const How& how) {
  constexpr int gap = 2;
  const int down = image.height + gap, across = image.width + gap;
  Image sheet(int(corruptions.size()) * down, (1 + most_severity) * across, image.channels);
  for (int row = 0; row < int(corruptions.size()); ++row) {
    for (int severity = 0; severity <= most_severity; ++severity) {
      How own = how;
      own.severity = severity;
      const Image cell = severity == 0 ? image : corrupt(image, corruptions[std::size_t(row)], own);
      for (int y = 0; y < image.height; ++y) {
        std::copy_n(cell.at(y, 0), image.width * image.channels,
                    sheet.at(row * down + y, severity * across));
      }
    }
  }
  return sheet;
}

}  // namespace foci::corrupt
