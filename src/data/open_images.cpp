// SPDX-License-Identifier: Apache-2.0
// Finds out by the names of files which set of images a folder holds, and opens one split of it.
#include "data/folder.hpp"
#include "data/image_set.hpp"

#include <foci/error.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>

namespace foci::data {
namespace {

using Names = std::vector<std::string>;
using Maybe = std::optional<ImageSet>;

/// The first of these names that is in the folder; empty without one.
std::string first_file(const std::string& folder, const Names& names) {
  for (const std::string& name : names) {
    for (const char* ending : {"", ".gz"}) {
      if (is_file(joined(folder, name + ending))) return joined(folder, name + ending);
    }
  }
  return {};
}

std::string first_folder(const std::string& folder, const Names& names) {
  for (const std::string& name : names) {
    if (is_folder(joined(folder, name))) return joined(folder, name);
  }
  return {};
}

/// What folders call a split; the others of their sort stand in for one that is missing.
Names folder_names(Split split) {
  if (split == Split::train) return {"train", "training"};
  if (split == Split::valid) return {"val", "valid", "validation"};
  return {"test", "testing"};
}

Maybe open_idx(const std::string& folder, Split split) {
  if (split == Split::valid) return {};  // the format has train and test alone
  const std::string part = split == Split::train ? "train" : "t10k";
  const std::string images =
      first_file(folder, {part + "-images-idx3-ubyte", part + "-images.idx3-ubyte"});
  if (images.empty()) return {};
  const std::string labels =
      first_file(folder, {part + "-labels-idx1-ubyte", part + "-labels.idx1-ubyte"});
  if (labels.empty()) refuse(folder, fmt::format("has {}, but no labels beside it", images));
  return read_idx(images, labels);
}

Maybe open_cifar(const std::string& folder, Split split) {
  if (split == Split::valid) return {};
  const bool train = split == Split::train;
  const std::string hundred = first_file(folder, {train ? "train.bin" : "test.bin"});
  if (!hundred.empty()) return read_cifar({hundred}, Cifar::hundred);
  const std::string inner = first_folder(folder, {"cifar-10-batches-bin"});
  const std::string& place = inner.empty() ? folder : inner;
  Names files;
  if (!train) {
    files.push_back(first_file(place, {"test_batch.bin"}));
  } else {
    for (int i = 1; i <= 5; ++i)
      files.push_back(first_file(place, {fmt::format("data_batch_{}.bin", i)}));
  }
  if (std::all_of(files.begin(), files.end(), [](const auto& f) { return f.empty(); })) return {};
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].empty()) refuse(place, fmt::format("has no data_batch_{}.bin", i + 1));
  }
  return read_cifar(files, Cifar::ten);
}

Maybe open_masks(const std::string& folder, Split split) {
  for (const std::string& name : folder_names(split)) {
    const std::string images = joined(folder, name), masks = joined(folder, name + "annot");
    if (is_folder(images) && is_folder(masks)) {
      return read_mask_folder(images, masks, camvid_rule());
    }
  }
  const std::string all = joined(folder, "images"), annotations = joined(folder, "annotations");
  if (!is_folder(all) || !is_folder(annotations)) return {};
  const std::string names = joined(folder, "objectInfo150.csv");
  const MaskRule rule = ade20k_rule(is_file(names) ? names : "");
  const std::string images = first_folder(all, folder_names(split));
  if (!images.empty()) {
    return read_mask_folder(images, first_folder(annotations, folder_names(split)), rule);
  }
  if (!folders_in(all).empty()) return {};
  return read_mask_folder(all, annotations, rule);
}

/// Tiny-ImageNet's test split: its classes are not published.
bool has_images_alone(const std::string& place, const Names& classes) {
  return folders_in(place) == Names{"images"} &&
         std::find(classes.begin(), classes.end(), "images") == classes.end();
}

Maybe open_folders(const std::string& folder, Split split) {
  const std::string place = first_folder(folder, folder_names(split));
  if (place.empty()) {
    if (split == Split::valid || !splits_itself(folder)) return {};
    return read_fifths(folder, split);
  }
  const std::string tiny =
      joined(place, std::filesystem::path(place).filename().string() + "_annotations.txt");
  const std::string list = place + ".txt", train = first_folder(folder, folder_names(Split::train));
  const Names classes = train.empty() ? Names() : folders_in(train);
  if (is_file(tiny) && !train.empty()) {
    return read_image_list(joined(place, "images"), tiny, classes);
  }
  if (split != Split::train && !train.empty() && has_images_alone(place, classes)) {
    refuse(place,
           "images without their classes are no split that is known: judge by val/, --split valid");
  }
  if (!folders_in(place).empty()) {
    return classes.empty() ? read_image_folder(place) : read_class_folders(place, classes);
  }
  if (is_file(list) && !train.empty()) return read_image_list(place, list, classes);
  refuse(place, fmt::format("is neither folders of classes nor has a list {}", list));
}

}  // namespace

ImageSet with_class_names(const ImageSet& set, const std::string& path) {
  ImageSet::Contents all = set.contents();
  const std::vector<std::string> lines = read_lines(path);
  if (!lines.empty() && lines[0].find('\t') != std::string::npos) {
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string& line = lines[i];
      const std::size_t tab = line.find('\t');
      if (tab == std::string::npos) {
        refuse(path, fmt::format("line {}: {} has no tab; it needs a class, a tab and its name",
                                 i + 1, in_quotes(line)));
      }
      const auto found = std::find(all.classes.begin(), all.classes.end(), line.substr(0, tab));
      if (found != all.classes.end()) *found = line.substr(tab + 1);
    }
    return set_of(std::move(all));
  }
  for (std::size_t i = 0; i < all.labels.size(); ++i) {
    if (all.labels[i] < int(lines.size())) continue;
    refuse(set.name(std::int64_t(i)),
           fmt::format("has label {}; {} names {} classes", all.labels[i], path, lines.size()));
  }
  all.classes = lines;
  return set_of(std::move(all));
}

ImageSet open_images(const std::string& folder, Split split) {
  if (!is_folder(folder)) refuse(folder, "is no folder; it needs one that holds a set of images");
  for (const auto open : {open_idx, open_cifar, open_masks, open_folders}) {
    Maybe set = open(folder, split);
    if (!set) continue;
    const std::string names = joined(folder, "classes.txt");
    return is_file(names) ? with_class_names(*set, names) : *set;
  }
  const std::string reason = reason_for_no_set(folder);
  refuse(
      folder,
      fmt::format("{}has no {} split that is known; it needs IDX (train-images-idx3-ubyte),"
                  " CIFAR (data_batch_1.bin, train.bin), {}/CLASS/*.jpg, {}annot/, annotations/{}",
                  reason.empty() ? "" : reason + "; it ", name_of(split), folder_names(split)[0],
                  folder_names(split)[0],
                  split == Split::valid ? "" : " or a folder of images for each class"));
}

}  // namespace foci::data
