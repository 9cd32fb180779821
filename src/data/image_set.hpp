// SPDX-License-Identifier: Apache-2.0
// What an ImageSet holds: pixels in memory or paths of files, and classes. The readers fill it.
#pragma once

#include "data/bytes.hpp"

#include <foci/data.hpp>

#include <memory>
#include <string>
#include <vector>

namespace foci::data {

struct ImageSet::Contents {
  std::vector<std::string> classes;
  std::vector<int> labels;               // empty with masks
  std::shared_ptr<const Tensor> pixels;  // (N, H, W, C) u8, or none
  std::vector<std::string> files;        // images, when not in memory
  std::vector<std::string> masks;        // beside them
  MaskRule rule;                         // of the masks
  std::vector<std::string> parts;        // of a set in memory: its files,
  std::vector<std::int64_t> ends;        // and the first index after each

  std::int64_t size() const {
    return pixels ? pixels->view().shape[0] : std::int64_t(files.size());
  }
};

/// What the readers end with.
ImageSet set_of(ImageSet::Contents contents);

/// Names for classes that have none: "0", "1", ...
std::vector<std::string> numbered_classes(int count);

/// The first two of a set's reading, from memory, so that a fuzzer can hold them.
struct IdxImages {
  std::int64_t count = 0, height = 0, width = 0;
  ByteView pixels;
};
IdxImages parse_idx_images(ByteView bytes, const std::string& name);
ByteView parse_idx_labels(ByteView bytes, const std::string& name);
/// How many records; the labels are checked.
std::int64_t check_cifar(ByteView bytes, const std::string& name, Cifar cifar);

/// A folder for each of these classes, or for some of them.
/// Why a folder whose files are of no known layout may be none: pictures that lie loose, or in
/// formats that are not read; empty where nothing tells.
std::string reason_for_no_set(const std::string& folder);
ImageSet read_class_folders(const std::string& folder, const std::vector<std::string>& classes);

/// Of a folder for each class without splits: a fifth of every class, at least one image, is its
/// test split. Which ones hangs on the files' names alone.
ImageSet read_fifths(const std::string& folder, Split split);

/// Images of a flat folder whose classes stand in a list: file name, tab, class, a line each.
/// `classes` is sorted.
ImageSet read_image_list(const std::string& folder, const std::string& list,
                         const std::vector<std::string>& classes);

/// The same set with the class names of a file: a name a line, in order; or a class, a tab and what
/// it is called.
ImageSet with_class_names(const ImageSet& set, const std::string& path);

/// Turns the values of a mask into classes in place.
void apply_rule(Image& mask, const MaskRule& rule, const std::string& name);

}  // namespace foci::data
