// SPDX-License-Identifier: Apache-2.0
// The mean corruption error of ImageNet-C: each corruption's error in units of a baseline's, so
// that hard and easy ones count alike.
#include <foci/corrupt.hpp>

#include <foci/error.hpp>

#include <fmt/core.h>

#include <numeric>

namespace foci::corrupt {
namespace {

using Means = std::map<Corruption, double>;

double mean_of(const Means& means, Corruption corruption, std::string_view whose) {
  const auto found = means.find(corruption);
  if (found != means.end()) return found->second;
  throw InvalidArgument(
      fmt::format("the mean corruption error needs {} error under {}", whose, name_of(corruption)));
}

double ratio_of(const Means& errors, const Means& baseline, const Against& against) {
  double sum = 0;
  for (int i = 0; i < benchmark_count; ++i) {
    const auto corruption = Corruption(i);
    const double ours = mean_of(errors, corruption, "an") - against.clean;
    const double theirs = mean_of(baseline, corruption, "the baseline's") - against.baseline_clean;
    if (theirs == 0) {
      throw InvalidArgument(
          fmt::format("the baseline's error under {} is 0 or its clean one; another baseline is "
                      "needed",
                      name_of(corruption)));
    }
    sum += ours / theirs;
  }
  return 100 * sum / benchmark_count;
}

}  // namespace

const std::map<Corruption, double>& alexnet_errors() {
  using enum Corruption;
  static const Means errors = {{gaussian_noise, .886428},
                               {shot_noise, .894468},
                               {impulse_noise, .922640},
                               {defocus_blur, .819880},
                               {glass_blur, .826268},
                               {motion_blur, .785948},
                               {zoom_blur, .798360},
                               {snow, .866816},
                               {frost, .826572},
                               {fog, .819324},
                               {brightness, .564592},
                               {contrast, .853204},
                               {elastic_transform, .646056},
                               {pixelate, .717840},
                               {jpeg_compression, .606500}};
  return errors;
}

std::map<Corruption, double> means_of(const ErrorTable& table) {
  Means means;
  for (const auto& [corruption, errors] : table)
    means[corruption] = std::accumulate(errors.begin(), errors.end(), 0.0) / most_severity;
  return means;
}

double mean_corruption_error(const Means& errors, const Means& baseline) {
  return ratio_of(errors, baseline, {});
}

double relative_corruption_error(const Means& errors, const Means& baseline,
                                 const Against& against) {
  return ratio_of(errors, baseline, against);
}

}  // namespace foci::corrupt
