// SPDX-License-Identifier: Apache-2.0
// A part of a set of images, in memory or in files.
#include <foci/subset.hpp>

#include "data/image_set.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace foci::data {

ImageSet some_of(const ImageSet& set, std::span<const std::int64_t> numbers) {
  const ImageSet::Contents& all = set.contents();
  ImageSet::Contents some;
  some.classes = all.classes;
  some.rule = all.rule;
  for (const std::int64_t number : numbers) {
    if (number < 0 || number >= set.size())
      throw InvalidArgument(fmt::format("image {} of a set of {}", number, set.size()));
    const auto at = std::size_t(number);
    if (!all.labels.empty()) some.labels.push_back(all.labels[at]);
    if (!all.files.empty()) some.files.push_back(all.files[at]);
    if (!all.masks.empty()) some.masks.push_back(all.masks[at]);
    if (!all.pixels) continue;
    some.parts.push_back(set.name(number));
    some.ends.push_back(std::int64_t(some.parts.size()));
  }
  if (!all.pixels) return set_of(std::move(some));
  const View& from = all.pixels->view();
  const std::size_t bytes = std::size_t(from.shape[1] * from.shape[2] * from.shape[3]);
  Tensor pixels(DType::u8,
                {std::int64_t(numbers.size()), from.shape[1], from.shape[2], from.shape[3]});
  for (std::size_t i = 0; i < numbers.size(); ++i)
    std::memcpy(pixels.data<std::uint8_t>() + i * bytes,
                from.at<std::uint8_t>({numbers[i], 0, 0, 0}), bytes);
  some.pixels = std::make_shared<const Tensor>(std::move(pixels));
  return set_of(std::move(some));
}

namespace {

bool is_number(const std::string& word) {
  return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
}

/// Whether the classes have no names of their own.
bool are_numbers(const std::vector<std::string>& classes) {
  return std::all_of(classes.begin(), classes.end(), is_number);
}

}  // namespace

ImageSet with_classes(const ImageSet& set, const std::vector<std::string>& classes) {
  const ImageSet::Contents& all = set.contents();
  if (all.classes == classes) return set;
  ImageSet::Contents named = all;
  named.classes = classes;
  if (are_numbers(all.classes) != are_numbers(classes)) {
    for (std::size_t i = 0; i < all.labels.size(); ++i) {
      if (all.labels[i] < int(classes.size())) continue;
      throw FileError(fmt::format("{}: has label {}; the training set has {} classes",
                                  set.name(std::int64_t(i)), all.labels[i], classes.size()));
    }
    return set_of(std::move(named));
  }
  for (std::size_t i = 0; i < all.labels.size(); ++i) {
    const std::string& name = all.classes[std::size_t(all.labels[i])];
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end()) {
      throw FileError(fmt::format("{}: class {} is none of the {} of the training set",
                                  set.name(std::int64_t(i)), in_quotes(name), classes.size()));
    }
    named.labels[i] = int(found - classes.begin());
  }
  return set_of(std::move(named));
}

ImageSet evenly(const ImageSet& set, std::int64_t count) {
  const std::int64_t size = set.size();
  if (count <= 0 || count >= size) return set;
  std::vector<std::int64_t> numbers;
  numbers.reserve(std::size_t(count));
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(i * size / count);
  return some_of(set, numbers);
}

}  // namespace foci::data
