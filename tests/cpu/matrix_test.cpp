// SPDX-License-Identifier: Apache-2.0
// Products, scatters and factors of every instruction set against plain loops, to the bit where the
// order of the sums is promised; rows lie apart with NaN between them, which nothing may touch.
#include "cpu/choose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

namespace foci::cpu {
namespace {

constexpr std::int64_t awkward[] = {1, 5, 31, 33, 64, 65, 100};

/// (rows,cols) random numbers, `gap` NaN after every row but the last.
template <class T>
struct Matrix {
  std::int64_t rows, cols, step;
  std::vector<T> at;

  Matrix(std::int64_t r, std::int64_t c, std::int64_t gap, unsigned seed = 1)
      : rows(r), cols(c), step(c + gap), at(std::size_t(r - 1) * step + c, std::nan("")) {
    std::mt19937 random(seed);
    std::normal_distribution<double> draw;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) (*this)(i, j) = T(draw(random));
    }
  }
  T& operator()(std::int64_t i, std::int64_t j) { return at[i * step + j]; }
  const T& operator()(std::int64_t i, std::int64_t j) const { return at[i * step + j]; }
  bool gaps_untouched() const {
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (std::int64_t(i) % step >= cols && !std::isnan(at[i])) return false;
    }
    return true;
  }
};

using Square = Matrix<double>;

class EveryIsa : public testing::TestWithParam<const Kernels*> {
 protected:
  const MatrixKernels& matrix = *GetParam()->matrix;
  bool fused = std::string_view(GetParam()->name) != "portable";

  template <class T>
  T chain(T start, const Matrix<T>& a, const Matrix<T>& b, std::int64_t i, std::int64_t j) const {
    for (std::int64_t k = 0; k < b.rows; ++k)
      start = fused ? std::fma(a(i, k), b(k, j), start) : a(i, k) * b(k, j) + start;
    return start;
  }

  void call(const Product& of) const { matrix.product(of); }
  void call(const WideProduct& of) const { matrix.product_wide(of); }

  template <class T>
  void check_product(std::int64_t rows, std::int64_t cols, std::int64_t K, bool add) const {
    const Matrix<T> a(rows, K, 3), b(K, cols, 2, 2), before(rows, cols, 5, 3);
    Matrix<T> turned(K, rows, 1);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t k = 0; k < K; ++k) turned(k, i) = a(i, k);
    }
    Matrix<T> c = before, again = before;
    call({c.at.data(), a.at.data(), b.at.data(), rows, cols, K, c.step, a.step, 1, b.step, add});
    call({again.at.data(), turned.at.data(), b.at.data(), rows, cols, K, c.step, 1, turned.step,
          b.step, add});
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        const T expected = chain(add ? before(i, j) : T(0), a, b, i, j);
        ASSERT_EQ(c(i, j), expected) << i << ' ' << j;
        ASSERT_EQ(again(i, j), expected) << i << ' ' << j << " transposed";
      }
    }
    EXPECT_TRUE(c.gaps_untouched() && again.gaps_untouched());
  }

  Square scattered(const Matrix<float>& x, const std::vector<double>& centre) const {
    Square sum(x.cols, x.cols, 0);
    std::fill(sum.at.begin(), sum.at.end(), 0.0);
    std::vector<double> room(matrix.scatter_room(x.cols), std::nan(""));
    matrix.scatter(sum.at.data(), x.at.data(), centre.data(), x.rows, x.cols, room.data());
    return sum;
  }

  /// A positive definite matrix.
  Square covariance(std::int64_t D) const {
    Square sum = scattered(Matrix<float>(D + 7, D, 0), std::vector<double>(D, 0.25));
    for (std::int64_t d = 0; d < D; ++d) sum(d, d) += 1e-3;
    return sum;
  }
};

TEST_P(EveryIsa, a_product_is_one_chain_in_order) {
  for (const std::int64_t rows : awkward) {
    for (const std::int64_t cols : awkward) {
      for (const std::int64_t K : {1, 5, 64}) {
        SCOPED_TRACE(testing::Message() << rows << 'x' << cols << 'x' << K);
        check_product<float>(rows, cols, K, (rows + cols) % 2 == 0);
        check_product<double>(rows, cols, K, (rows + cols) % 2 == 1);
      }
    }
  }
}

TEST_P(EveryIsa, every_height_and_width_of_a_tile) {
  for (std::int64_t rows = 1; rows <= 26; ++rows) {
    for (std::int64_t cols = 1; cols <= 36; ++cols) {
      SCOPED_TRACE(testing::Message() << rows << 'x' << cols);
      check_product<float>(rows, cols, 3, true);
      check_product<double>(rows, cols, 3, false);
    }
  }
}

TEST_P(EveryIsa, a_long_sum_is_still_one_chain) {
  for (const std::int64_t K : {191, 192, 193, 1000}) {
    SCOPED_TRACE(K);
    check_product<float>(13, 33, K, false);
    check_product<double>(13, 33, K, true);
  }
}

TEST_P(EveryIsa, a_product_of_nothing) {
  Matrix<float> c(3, 5, 1);
  const Matrix<float> before = c;
  Product of{c.at.data(), nullptr, nullptr, 3, 5, 0, c.step, 1, 1, 5, true};
  matrix.product(of);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 5; ++j) EXPECT_EQ(c(i, j), before(i, j));
  }
  of.add = false;
  matrix.product(of);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 5; ++j) EXPECT_EQ(c(i, j), 0.0f);
  }
  of.rows = 0;
  matrix.product(of);
}

TEST_P(EveryIsa, nan_stays_in_its_row_and_column) {
  Matrix<float> a(17, 9, 0), b(9, 37, 0), c(17, 37, 0);
  a(4, 3) = std::nanf("");
  b(2, 36) = std::nanf("");
  matrix.product({c.at.data(), a.at.data(), b.at.data(), 17, 37, 9, 37, 9, 1, 37, false});
  for (int i = 0; i < 17; ++i) {
    for (int j = 0; j < 37; ++j) EXPECT_EQ(std::isnan(c(i, j)), i == 4 || j == 36);
  }
}

TEST_P(EveryIsa, transpose) {
  for (const std::int64_t rows : awkward) {
    for (const std::int64_t cols : awkward) {
      const Matrix<float> from(rows, cols, 3);
      Matrix<float> to(cols, rows, 2);
      matrix.transpose(to.at.data(), from.at.data(), rows, cols, to.step, from.step);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) ASSERT_EQ(to(j, i), from(i, j));
      }
      EXPECT_TRUE(to.gaps_untouched());
    }
  }
}

TEST_P(EveryIsa, scatter_adds_both_triangles) {
  for (const std::int64_t D : awkward) {
    for (const std::int64_t n : {0, 1, 31, 200}) {
      Matrix<float> x(std::max<std::int64_t>(n, 1), D, 0);
      std::vector<double> centre(D);
      for (std::int64_t d = 0; d < D; ++d) centre[d] = 0.01 * double(d);
      x.rows = n;
      const Square sum = scattered(x, centre);
      for (std::int64_t i = 0; i < D; ++i) {
        for (std::int64_t j = 0; j < D; ++j) {
          double expected = 0, size = 0;
          for (std::int64_t r = 0; r < n; ++r) {
            const double term = (double(x(r, i)) - centre[i]) * (double(x(r, j)) - centre[j]);
            expected += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(sum(i, j), expected, 1e-15 * double(n) * size) << D << ' ' << n;
          ASSERT_EQ(sum(i, j), sum(j, i));
        }
      }
    }
  }
}

TEST_P(EveryIsa, scatter_adds_to_what_is_there) {
  const Matrix<float> x(40, 33, 0);
  const std::vector<double> centre(33, 0.5);
  Square sum = scattered(x, centre);
  const Square once = sum;
  std::vector<double> room(matrix.scatter_room(33));
  matrix.scatter(sum.at.data(), x.at.data(), centre.data(), 40, 33, room.data());
  for (std::size_t i = 0; i < sum.at.size(); ++i) EXPECT_EQ(sum.at[i], 2 * once.at[i]);
}

TEST_P(EveryIsa, scatter_keeps_nan_in_its_row_and_column) {
  Matrix<float> x(50, 33, 0);
  x(49, 32) = std::nanf("");
  const Square sum = scattered(x, std::vector<double>(33, 0.0));
  for (int i = 0; i < 33; ++i) {
    for (int j = 0; j < 33; ++j) EXPECT_EQ(std::isnan(sum(i, j)), i == 32 || j == 32);
  }
}

TEST_P(EveryIsa, rows_are_summed_in_order) {
  for (const std::int64_t D : awkward) {
    const Matrix<float> x(77, D, 0);
    std::vector<double> sum(D, 0.5), expected(D, 0.5);
    matrix.sum_rows(sum.data(), x.at.data(), 77, D);
    for (std::int64_t i = 0; i < 77 * D; ++i) expected[i % D] += x.at[i];
    EXPECT_EQ(sum, expected) << D;
  }
}

TEST_P(EveryIsa, join) {
  for (const std::int64_t D : awkward) {
    const Square other(D, D, 0), before(D, D, 0, 2), gap(1, D, 0, 3);
    Square sum = before;
    matrix.join(sum.at.data(), other.at.data(), gap.at.data(), 0.75, D);
    for (std::int64_t i = 0; i < D; ++i) {
      for (std::int64_t j = 0; j < D; ++j) {
        const double outer = 0.75 * gap(0, i) * gap(0, j);
        ASSERT_EQ(sum(i, j), before(i, j) + (other(i, j) + outer)) << D;
      }
    }
  }
}

TEST_P(EveryIsa, cholesky_gives_the_matrix_back) {
  for (const std::int64_t D : awkward) {
    const Square A = covariance(D);
    Square L(D, D, 0);
    ASSERT_TRUE(matrix.cholesky(L.at.data(), A.at.data(), D));
    for (std::int64_t i = 0; i < D; ++i) {
      for (std::int64_t j = 0; j < D; ++j) {
        double product = 0;
        for (std::int64_t l = 0; l <= std::min(i, j); ++l) product += L(i, l) * L(j, l);
        ASSERT_NEAR(product, A(i, j), 1e-14 * std::sqrt(A(i, i) * A(j, j))) << D;
        if (j > i) {
          ASSERT_EQ(L(i, j), 0.0);
        }
      }
    }
  }
}

TEST_P(EveryIsa, cholesky_refuses_what_is_not_positive_and_finite) {
  for (const std::int64_t D : awkward) {
    Square L(D, D, 0);
    for (const std::int64_t at : {std::int64_t(0), D / 2, D - 1}) {
      for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        Square A = covariance(D);
        A(at, at) = bad;
        EXPECT_FALSE(matrix.cholesky(L.at.data(), A.at.data(), D)) << D << ' ' << at << ' ' << bad;
      }
    }
    if (D == 1) continue;
    Square A = covariance(D);
    A(0, D - 1) = A(D - 1, 0) = std::nan("");
    EXPECT_FALSE(matrix.cholesky(L.at.data(), A.at.data(), D));
  }
}

TEST_P(EveryIsa, invert_lower_gives_the_identity) {
  for (const std::int64_t D : awkward) {
    Square L(D, D, 0), W(D, D, 0);
    const Square A = covariance(D);
    ASSERT_TRUE(matrix.cholesky(L.at.data(), A.at.data(), D));
    std::fill(W.at.begin(), W.at.end(), std::nan(""));
    matrix.invert_lower(W.at.data(), L.at.data(), D);
    for (std::int64_t i = 0; i < D; ++i) {
      for (std::int64_t j = 0; j < D; ++j) {
        double product = 0, size = 0;
        for (std::int64_t l = j; l <= i; ++l) {
          product += W(i, l) * L(l, j);
          size += std::abs(W(i, l) * L(l, j));
        }
        ASSERT_NEAR(product, i == j ? 1.0 : 0.0, 1e-15 * double(D) * size) << D;
        if (j > i) {
          ASSERT_EQ(W(i, j), 0.0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, EveryIsa,
                         testing::ValuesIn(available().begin(), available().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace foci::cpu
