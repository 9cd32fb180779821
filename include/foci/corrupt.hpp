// SPDX-License-Identifier: Apache-2.0
// Harm that is not aimed: the 15 + 4 corruptions of ImageNet-C at five severities, and the mean
// corruption error. Whatever is random follows from the seed and the image's number. No torch.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>
#include <foci/tensor.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci::corrupt {

/// The first 15 are the benchmark's, the other four its extra ones.
enum class Corruption {
  gaussian_noise,
  shot_noise,
  impulse_noise,
  defocus_blur,
  glass_blur,
  motion_blur,
  zoom_blur,
  snow,
  frost,
  fog,
  brightness,
  contrast,
  elastic_transform,
  pixelate,
  jpeg_compression,
  speckle_noise,
  gaussian_blur,
  spatter,
  saturate,
};
inline constexpr int corruption_count = 19, benchmark_count = 15, most_severity = 5;

FOCI_API std::string_view name_of(Corruption corruption);
/// Throws InvalidArgument that lists the names.
FOCI_API Corruption corruption_named(std::string_view name);
/// A name, or a group: noise, blur, weather, digital, all (the 15), extra (the other four).
FOCI_API std::vector<Corruption> corruptions_named(std::string_view name);
/// Whether it draws numbers; the others are the same for every seed.
FOCI_API bool is_random(Corruption corruption);

/// Whose numbers: CIFAR-10-C's, Tiny-ImageNet-C's or ImageNet-C's.
enum class Scale { px32, px64, px224 };
/// By the shorter side: 32 up to 47 pixels, 64 up to 127, then 224.
FOCI_API Scale scale_for(const data::Image& image);

struct FOCI_API How {
  int severity = 1;  ///< 1 to 5
  Scale scale = Scale::px224;
  std::uint64_t seed = 0;
  std::uint64_t index = 0;                  ///< of the image: each has its own noise
  std::span<const data::Image> frost = {};  ///< pictures of frost, RGB, larger than the image
};

/// Of one (grey) or three channels, at least 8 pixels a side. A grey image stays grey: it gets the
/// brightness of what has a colour, and saturate leaves it as it is.
FOCI_API data::Image corrupt(const data::Image& image, Corruption corruption, const How& how);
/// (B,C,H,W) f32 in [0,1], in place, through bytes as the benchmark's images are; the first is
/// number how.index. Throws InvalidArgument for values outside [0,1].
FOCI_API void corrupt_values(const Tensor& images, Corruption corruption, const How& how);

/// The pictures of a folder, by name. Throws FileError where there is none.
FOCI_API std::vector<data::Image> read_frost(const std::string& folder);

/// What a set becomes: every image as a model sees it, then corrupted.
struct FOCI_API SetPlan {
  Corruption corruption = Corruption::gaussian_noise;
  How how = {};  ///< its index is that of the first image in the set
  int side = 0;  ///< the shorter side becomes side / crop_share and the middle is taken;
                 ///< 0: images stay as large as they are
  double crop_share = 1;
  std::int64_t first = 0, count = -1;  ///< of the set; -1: to its end
  int threads = 0;                     ///< 0: one per core
};
/// In memory, with the classes of `set`. Throws InvalidArgument for a set with masks, or with
/// images of several sizes when side is 0.
FOCI_API data::ImageSet corrupted(const data::ImageSet& set, const SetPlan& plan);

/// A set in memory: IDX where images are grey, CIFAR's binary where they are 32 x 32 x 3 in ten
/// classes, else PNG files in a folder for each class; and classes.txt. data::open_images reads it
/// back as the test split.
FOCI_API void write_set(const std::string& folder, const data::ImageSet& set);

/// A row for each corruption: the image itself, then severities 1 to 5.
FOCI_API data::Image contact_sheet(const data::Image& image,
                                   std::span<const Corruption> corruptions, const How& how);

/// The share that is wrong, by severity.
using Errors = std::array<double, most_severity>;
using ErrorTable = std::map<Corruption, Errors>;
/// AlexNet's on ImageNet-C, the mean over severities: the benchmark's unit.
FOCI_API const std::map<Corruption, double>& alexnet_errors();
FOCI_API std::map<Corruption, double> means_of(const ErrorTable& table);
/// In percent: the mean over the 15 of error / error of the baseline. Throws InvalidArgument that
/// names what is missing.
FOCI_API double mean_corruption_error(const std::map<Corruption, double>& errors,
                                      const std::map<Corruption, double>& baseline);
/// The same of what a corruption adds to the error on clean images.
struct FOCI_API Against {
  double clean = 0, baseline_clean = 0;
};
FOCI_API double relative_corruption_error(const std::map<Corruption, double>& errors,
                                          const std::map<Corruption, double>& baseline,
                                          const Against& against);

}  // namespace foci::corrupt
