// SPDX-License-Identifier: Apache-2.0
// A part of a set of images, as a set of its own.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>

#include <cstdint>
#include <span>

namespace foci::data {

/// The images of these numbers, in this order, with all classes. Pixels in memory are copied.
/// Throws InvalidArgument for a number that the set does not have.
FOCI_API ImageSet some_of(const ImageSet& set, std::span<const std::int64_t> numbers);

/// `count` images, evenly over the set: number i * size / count; all where it has no more, or for
/// 0.
FOCI_API ImageSet evenly(const ImageSet& set, std::int64_t count);

}  // namespace foci::data
