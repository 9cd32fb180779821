// SPDX-License-Identifier: Apache-2.0
// The corruptions, one function each, and what they are given. Tables of numbers stand beside the
// function that reads them: [set][severity - 1], the sets for 32, 64 and 224 pixels.
#pragma once

#include <foci/data.hpp>
#include <foci/random.hpp>

#include <span>

namespace foci::corrupt {

struct Job {
  int set = 0, level = 0;  ///< of the tables
  data::Random& random;
  std::span<const data::Image> frost;
};

data::Image gaussian_noise(const data::Image& image, const Job& job);
data::Image shot_noise(const data::Image& image, const Job& job);
data::Image impulse_noise(const data::Image& image, const Job& job);
data::Image speckle_noise(const data::Image& image, const Job& job);

data::Image gaussian_blur(const data::Image& image, const Job& job);
data::Image defocus_blur(const data::Image& image, const Job& job);
data::Image glass_blur(const data::Image& image, const Job& job);
data::Image motion_blur(const data::Image& image, const Job& job);
data::Image zoom_blur(const data::Image& image, const Job& job);

data::Image snow(const data::Image& image, const Job& job);
data::Image frost(const data::Image& image, const Job& job);
data::Image fog(const data::Image& image, const Job& job);
data::Image spatter(const data::Image& image, const Job& job);

data::Image brightness(const data::Image& image, const Job& job);
data::Image contrast(const data::Image& image, const Job& job);
data::Image saturate(const data::Image& image, const Job& job);
data::Image elastic_transform(const data::Image& image, const Job& job);
data::Image pixelate(const data::Image& image, const Job& job);
data::Image jpeg_compression(const data::Image& image, const Job& job);

/// What is left of an image after libjpeg at this quality. Throws Unsupported without libjpeg.
data::Image through_jpeg(const data::Image& image, int quality);

}  // namespace foci::corrupt
