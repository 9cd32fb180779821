// SPDX-License-Identifier: Apache-2.0
// A part of a set of images, as a set of its own.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace foci::data {

/// The images of these numbers, in this order, with all classes. Pixels in memory are copied.
/// Throws InvalidArgument for a number that the set does not have.
FOCI_API ImageSet some_of(const ImageSet& set, std::span<const std::int64_t> numbers);

/// `count` images, evenly over the set: number i * size / count; all where it has no more, or for
/// 0.
FOCI_API ImageSet evenly(const ImageSet& set, std::int64_t count);

/// The same images with these classes, their labels by the names of classes. Where the classes of
/// either are numbers alone and those of the other are not, labels stay. Throws FileError for a
/// class of the set that is none of these.
FOCI_API ImageSet with_classes(const ImageSet& set, const std::vector<std::string>& classes);

/// Whether a folder has a folder for each class and no splits: open_images then takes a fifth of
/// every class, chosen by the names of its files, for the test split.
FOCI_API bool splits_itself(const std::string& folder);

}  // namespace foci::data
