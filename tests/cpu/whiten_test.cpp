// SPDX-License-Identifier: Apache-2.0
// Panels of keys whitened, taken back, and scattered by every instruction set against plain loops;
// behind the last key stands NaN, which nobody may feel.
#include "cpu/choose.hpp"
#include "cpu/tokens.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace foci::cpu {
namespace {

class WhitenOf : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& isa = *GetParam();
  std::mt19937 random{3};

  std::vector<float> drawn(std::int64_t count) {
    std::normal_distribution<float> draw;
    std::vector<float> made(count);
    for (float& x : made) x = draw(random);
    return made;
  }
};

/// A triangular (D,D) matrix and its transpose.
struct Triangle {
  std::vector<float> W, Wt;
  bool lower;

  Triangle(std::vector<float> of, std::int64_t D, bool low)
      : W(std::move(of)), Wt(W.size()), lower(low) {
    for (std::int64_t i = 0; i < D * D; ++i) {
      if (low ? i % D > i / D : i % D < i / D) W[i] = 0;
      Wt[i % D * D + i / D] = W[i];
    }
  }
};

TEST_P(WhitenOf, panels_go_there_and_back) {
  for (const std::int64_t D : {1, 5, 12, 33, 64, 100}) {
    for (const std::int64_t n : {1, 7, 32, 75}) {
      for (const bool lower : {false, true}) {
        const std::int64_t all = padded(n, isa.panel);
        const Triangle by(drawn(D * D), D, lower);
        std::vector<float> k = drawn(all * D), centre = drawn(D), weight = drawn(all);
        std::fill(k.begin() + n * D, k.end(), std::nanf(""));
        std::vector<float> raw(all * D), z(all * D), norms(all), room(isa.whitening_room(D));
        isa.pack_keys(raw.data(), k.data(), all, D);
        isa.whiten_panels({z.data(), norms.data(), raw.data(), by.Wt.data(), centre.data(), lower,
                           n, D, room.data()});
        const std::vector<float> before = drawn(all * D);
        std::vector<float> to = before;
        isa.unwhiten_panels(
            {to.data(), z.data(), weight.data(), by.W.data(), lower, n, D, room.data()});
        const auto place = [&](std::int64_t j, std::int64_t d) {
          return (j / isa.panel * D + d) * isa.panel + j % isa.panel;
        };
        for (std::int64_t j = 0; j < all; ++j) {
          std::vector<double> there(D), back(D);
          double norm = 0;
          for (std::int64_t e = 0; e < D && j < n; ++e) {
            for (std::int64_t d = 0; d < D; ++d)
              there[e] += double(by.W[e * D + d]) * (double(k[j * D + d]) - double(centre[d]));
            norm += there[e] * there[e];
            for (std::int64_t d = 0; d < D; ++d)
              back[d] += double(by.W[e * D + d]) * double(weight[j]) * there[e];
          }
          if (j < n) {
            EXPECT_NEAR(norms[j], norm, 1e-5 * (1 + norm)) << D << " " << n;
          }
          for (std::int64_t d = 0; d < D; ++d) {
            const std::int64_t at = place(j, d);
            if (j < n) {
              EXPECT_NEAR(z[at], there[d], 1e-5 * (1 + std::sqrt(norm))) << D << " " << n;
            }
            EXPECT_NEAR(to[at], before[at] + back[d], 1e-5 * (1 + norm)) << D << " " << n;
          }
        }
      }
    }
  }
}

TEST_P(WhitenOf, lines_are_scattered) {
  for (const std::int64_t D : {1, 5, 33, 64, 100}) {
    for (const std::int64_t n : {1, 31, 96}) {
      const std::int64_t wide = padded(D, isa.panel);
      const std::vector<float> k = drawn(n * D), by = drawn(n);
      std::vector<float> lines(gradient_keys * wide, std::nanf("")), room(gradient_keys * wide);
      isa.pack_columns(lines.data(), k.data(), n, gradient_keys, D);
      std::vector<double> sums(wide * wide, std::nan(""));
      for (const bool adds : {false, true}) {
        isa.scatter_lines(
            {sums.data(), lines.data(), by.data(), n, gradient_keys, D, adds, 32, room.data()});
      }
      for (std::int64_t d = 0; d < D; ++d) {
        for (std::int64_t e = d; e < D; ++e) {
          double sum = 0;
          for (std::int64_t j = 0; j < n; ++j)
            sum += double(by[j]) * double(k[j * D + d]) * double(k[j * D + e]);
          EXPECT_NEAR(sums[d * wide + e], 2 * sum, 1e-5 * double(n)) << D << " " << n;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, WhitenOf, testing::ValuesIn(available().begin(), available().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace foci::cpu
