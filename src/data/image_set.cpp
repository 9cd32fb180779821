// SPDX-License-Identifier: Apache-2.0
// Handing out one image of a set: a slice of memory or a decoded file, and its mask.
#include "data/image_set.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

namespace foci::data {

Image::Image(int height, int width, int channels)
    : height(height), width(width), channels(channels) {
  if (height < 1 || width < 1 || channels < 1) {
    throw InvalidArgument(fmt::format("an image of {} x {} x {}; it needs sizes of at least 1",
                                      height, width, channels));
  }
  pixels.resize(std::size_t(height) * std::size_t(width) * std::size_t(channels));
}

std::string_view name_of(Split split) {
  return split == Split::train ? "train" : split == Split::valid ? "valid" : "test";
}

std::vector<std::string> numbered_classes(int count) {
  std::vector<std::string> names;
  names.reserve(std::size_t(std::max(count, 0)));
  for (int i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

ImageSet set_of(ImageSet::Contents contents) {
  return ImageSet(std::make_shared<const ImageSet::Contents>(std::move(contents)));
}

std::int64_t ImageSet::size() const { return contents_->size(); }
const std::vector<std::string>& ImageSet::classes() const { return contents_->classes; }
bool ImageSet::has_masks() const { return !contents_->masks.empty(); }
View ImageSet::pixels() const { return contents_->pixels ? contents_->pixels->view() : View(); }

const ImageSet::Contents& ImageSet::at(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    throw InvalidArgument(fmt::format("image {} of a set of {}", index, size()));
  }
  return *contents_;
}

int ImageSet::label(std::int64_t index) const {
  const Contents& all = at(index);
  return all.labels.empty() ? -1 : all.labels[std::size_t(index)];
}

Image ImageSet::image(std::int64_t index) const {
  const Contents& all = at(index);
  if (!all.pixels) return read_image(all.files[std::size_t(index)]);
  const View& view = all.pixels->view();
  Image image(int(view.shape[1]), int(view.shape[2]), int(view.shape[3]));
  std::memcpy(image.pixels.data(), view.at<std::uint8_t>({index, 0, 0, 0}), image.pixels.size());
  return image;
}

Image ImageSet::mask(std::int64_t index) const {
  const Contents& all = at(index);
  if (all.masks.empty()) throw InvalidArgument("this set has classes and no masks");
  const std::string& path = all.masks[std::size_t(index)];
  Image mask = read_mask(path);
  apply_rule(mask, all.rule, path);
  return mask;
}

std::string ImageSet::name(std::int64_t index) const {
  const Contents& all = at(index);
  if (!all.pixels) return all.files[std::size_t(index)];
  const auto part = std::upper_bound(all.ends.begin(), all.ends.end(), index) - all.ends.begin();
  const std::int64_t first = part == 0 ? 0 : all.ends[std::size_t(part) - 1];
  return fmt::format("{} #{}", all.parts[std::size_t(part)], index - first);
}

}  // namespace foci::data
