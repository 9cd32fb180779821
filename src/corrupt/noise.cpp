// SPDX-License-Identifier: Apache-2.0
// Noise, every value for itself: Gaussian, of counted photons, of dead pixels, and in proportion.
#include "corrupt/operations.hpp"
#include "corrupt/planes.hpp"

#include <algorithm>
#include <cmath>

namespace foci::corrupt {
namespace {

/// By inversion, in parts whose exp(-mean) is far from underflow.
double poisson(double mean, data::Random& random) {
  constexpr double most = 50;
  double count = 0;
  for (; mean > 0; mean -= most) {
    const double part = std::min(mean, most);
    const double u = random.uniform();
    double p = std::exp(-part), sum = p;
    for (int k = 1; u >= sum && p > 0; ++k) {
      p *= part / k;
      sum += p;
      count += 1;
    }
  }
  return count;
}

template <class Change>
data::Image changed(const data::Image& image, Change&& change) {
  Planes planes = planes_of(image);
  for (float& value : planes.values) value = float(change(double(value)));
  return image_of(planes);
}

}  // namespace

data::Image gaussian_noise(const data::Image& image, const Job& job) {
  static constexpr double deviations[3][5] = {
      {.04, .06, .08, .09, .10}, {.04, .08, .12, .15, .18}, {.08, .12, .18, .26, .38}};
  const double deviation = deviations[job.set][job.level];
  return changed(image, [&](double x) { return x + deviation * job.random.normal(); });
}

data::Image shot_noise(const data::Image& image, const Job& job) {
  static constexpr double photons[3][5] = {
      {500, 250, 100, 75, 50}, {250, 100, 50, 30, 15}, {60, 25, 12, 5, 3}};
  const double count = photons[job.set][job.level];
  return changed(image, [&](double x) { return poisson(x * count, job.random) / count; });
}

data::Image impulse_noise(const data::Image& image, const Job& job) {
  static constexpr double shares[3][5] = {
      {.01, .02, .03, .05, .07}, {.01, .02, .05, .08, .14}, {.03, .06, .09, .17, .27}};
  const double share = shares[job.set][job.level];
  return changed(image, [&](double x) {
    const bool hit = job.random.chance(share), white = job.random.chance(0.5);
    return hit ? double(white) : x;
  });
}

data::Image speckle_noise(const data::Image& image, const Job& job) {
  static constexpr double deviations[3][5] = {
      {.06, .1, .12, .16, .2}, {.15, .2, .25, .3, .35}, {.15, .2, .35, .45, .6}};
  const double deviation = deviations[job.set][job.level];
  return changed(image, [&](double x) { return x + x * deviation * job.random.normal(); });
}

}  // namespace foci::corrupt
