// SPDX-License-Identifier: Apache-2.0
// A linear model whose robust accuracy is known in closed form.
#pragma once

#include <foci/attack.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace attack_test {

using namespace foci::attack;

/// 200 images of 4 x 4 and 5 classes with known margins.
struct Linear {
  at::Tensor w = torch::zeros({5, 16}), images = torch::zeros({200, 1, 4, 4}), labels;
  Model model;

  Linear() {
    for (int i = 0; i < 5; ++i)
      for (int j = 0; j < 16; ++j) w[i][j] = std::sin(1.0 + 7 * i + 3 * j);
    for (int n = 0; n < 200; ++n)
      for (int j = 0; j < 16; ++j)
        images[n][0][j / 4][j % 4] = .5 + .25 * std::sin(1.3 * n + 2.1 * j + .05 * n * j);
    model = [w = w](const at::Tensor& x) { return x.flatten(1).matmul(w.t()); };
    labels = model(images).argmax(1);
  }
  /// Share whose nearest boundary is farther than eps. Under l1 the steepest pixels go first, each
  /// to the wall of the box at most; under linf and l2 no pixel gets that far.
  double exact(Norm norm, double eps) const {
    const Norm dual = norm == Norm::linf ? Norm::l1 : Norm::l2;
    const at::Tensor z = model(images);
    at::Tensor least = torch::full({200}, 1e9f);
    for (int k = 0; k < 5; ++k) {
      const at::Tensor gap = z.gather(1, labels.unsqueeze(1)).squeeze(1) - z.select(1, k);
      const at::Tensor slope = w[k] - w.index_select(0, labels);
      const at::Tensor far =
          norm == Norm::l1 ? pixel_by_pixel(slope, gap) : gap / length_of(slope, dual);
      least = torch::where(labels == k, least, torch::min(least, far));
    }
    return (least > eps).to(torch::kFloat).mean().item<double>();
  }

 private:
  at::Tensor pixel_by_pixel(const at::Tensor& slope, const at::Tensor& gap) const {
    at::Tensor far = torch::zeros({200});
    for (int n = 0; n < 200; ++n) {
      double left = gap[n].item<double>(), moved = 0;
      std::vector<std::pair<double, double>> pixels;  // steepness, room
      for (int j = 0; j < 16; ++j) {
        const double s = slope[n][j].item<double>(), x = images[n][0][j / 4][j % 4].item<double>();
        pixels.emplace_back(std::abs(s), s > 0 ? 1 - x : x);
      }
      std::sort(pixels.rbegin(), pixels.rend());
      for (const auto& [steep, room] : pixels) {
        const double by = std::min(room, left / std::max(steep, 1e-12));
        moved += std::max(by, 0.0);
        left -= steep * by;
      }
      far[n] = left > 1e-6 ? 1e9 : moved;
    }
    return far;
  }
};

inline const Linear& linear() {
  static const Linear made;
  return made;
}

inline Options within(Norm norm, double eps) {
  Options options;
  options.norm = norm;
  options.eps = eps;
  return options;
}

}  // namespace attack_test
