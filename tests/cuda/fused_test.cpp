// SPDX-License-Identifier: Apache-2.0
// The fused passes of a transformer block against the formulas in double: rows and columns that
// end anywhere, every type, outputs poisoned; and every message.
#include <foci/fused.hpp>

#include "cuda/gpu.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace foci {
namespace {

using Numbers = std::vector<double>;

/// A matrix on the device, and its numbers as they lie there.
struct Given {
  DeviceTensor there;
  Numbers numbers;
};
Given given(Shape shape, DType type, double size, unsigned seed, double mean = 0) {
  std::mt19937 draw(seed);
  std::normal_distribution<float> normal{float(mean), float(size)};
  Tensor wide(DType::f32, shape);
  for (std::int64_t i = 0; i < wide.view().count(); ++i) wide.data<float>()[i] = normal(draw);
  const Tensor rounded = Tensor::copy(wide, type);
  return {DeviceTensor::copy(rounded), rounded.values()};
}
DeviceTensor poisoned(Shape shape, DType type) {
  Tensor nan(type, shape);
  std::memset(nan.view().data, 0xff, std::size_t(nan.view().count()) * size_of(type));
  return DeviceTensor::copy(nan);
}

double epsilon_of(DType type) {
  return type == DType::bf16 ? 0x1p-7 : type == DType::f16 ? 0x1p-10 : 0x1p-23;
}

/// Each number to its own rounding, and to a float's of the largest one.
void expect_near(const DeviceTensor& ours, const Numbers& exact, const std::string& what,
                 double floats = 8) {
  const Numbers found = ours.host().values();
  ASSERT_EQ(found.size(), exact.size()) << what;
  double most = 0;
  for (const double x : exact) most = std::max(most, std::abs(x));
  // Below a f16's normal numbers the steps do not shrink.
  const double least = ours.view().dtype == DType::f16 ? 0x1p-25 : 0;
  const double own = 0.51 * epsilon_of(ours.view().dtype);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double may = own * std::abs(exact[i]) + floats * 0x1p-23 * most + least;
    if (std::abs(found[i] - exact[i]) <= may) continue;
    ADD_FAILURE() << what << " " << i << ": " << found[i] << ", exactly " << exact[i];
    return;
  }
}

struct Workspace {
  explicit Workspace(std::int64_t columns)
      : memory(DType::u8, Shape{std::int64_t(fused::workspace(columns))}) {}
  Call call() const {
    return {.workspace = {static_cast<std::byte*>(memory.view().data),
                          std::size_t(memory.view().count())}};
  }
  DeviceTensor memory;
};

struct NormCase {
  std::int64_t rows, columns;
  DType branch = DType::bf16, y = DType::bf16;
  bool has_branch = true, from_x = true;
  std::int64_t scales = 0;
  double mean = 0;
};

/// Both ways against the formulas.
class Norm {
 public:
  explicit Norm(const NormCase& of)
      : of_(of),
        all_{of.rows, of.columns},
        x_(given(all_, DType::f32, 2, 1, of.mean)),
        branch_(given(all_, of.branch, 1, 2)),
        scale_(given({std::max<std::int64_t>(of.scales, 1)}, DType::f32, 1, 3, 1)),
        weight_(given({of.columns}, DType::f32, 0.5, 4, 1)),
        bias_(given({of.columns}, DType::f32, 0.5, 5)),
        dy_(given(all_, of.y, 1, 6)),
        from_x_(given(all_, DType::f32, 1, 7)) {}

  void check() {
    run();
    const std::string what = std::to_string(of_.rows) + " x " + std::to_string(of_.columns);
    follow();
    // Where rows have a mean far from 0, a float's rounding of x is one of their difference.
    const double size = 1 + std::abs(of_.mean);
    if (of_.has_branch) expect_near(sum_, sums_, what + " sum", 1);
    expect_near(y_, exact_y_, what + " y", 8 * size);
    expect_near(dx_, exact_dx_, what + " dx", 8 * size);
    if (of_.has_branch) expect_near(dbranch_, exact_dbranch_, what + " dbranch", 8 * size);
    expect_near(dweight_, exact_dweight_, what + " dweight", 16 * size);
    expect_near(dbias_, exact_dbias_, what + " dbias", 16);
  }

 private:
  void run() {
    fused::Residual from{.x = x_.there, .weight = weight_.there, .bias = bias_.there};
    if (of_.has_branch) from.branch = branch_.there;
    if (of_.scales > 0) from.scale = scale_.there;
    const Shape rows{of_.rows}, columns{of_.columns};
    y_ = poisoned(all_, of_.y);
    const DeviceTensor mean = poisoned(rows, DType::f32), rstd = poisoned(rows, DType::f32);
    fused::Normed made{.y = y_, .mean = mean, .rstd = rstd};
    if (of_.has_branch) made.x = sum_ = poisoned(all_, DType::f32);
    const Workspace room(of_.columns);
    fused::add_norm(made, from, room.call());
    dx_ = poisoned(all_, DType::f32);
    dweight_ = poisoned(columns, DType::f32), dbias_ = poisoned(columns, DType::f32);
    fused::NormGradients to{.dy = dy_.there, .dx = dx_, .dweight = dweight_, .dbias = dbias_};
    if (of_.from_x) to.from_x = from_x_.there;
    if (of_.has_branch) to.dbranch = dbranch_ = poisoned(all_, of_.branch);
    fused::add_norm_backward(to, from, made, room.call());
    synchronize();
  }

  void follow() {
    const auto count = std::size_t(of_.rows * of_.columns), C = std::size_t(of_.columns);
    sums_ = x_.numbers;
    exact_y_ = exact_dx_ = exact_dbranch_ = Numbers(count);
    exact_dweight_ = exact_dbias_ = Numbers(C);
    for (std::size_t row = 0; row < std::size_t(of_.rows); ++row) {
      const double scale =
          of_.scales > 0 ? scale_.numbers[row / std::size_t(of_.rows / of_.scales)] : 1;
      follow_row(row * C, C, scale);
    }
  }

  void follow_row(std::size_t begin, std::size_t C, double scale) {
    double mean = 0, variance = 0, sum = 0, along = 0;
    for (std::size_t c = 0; c < C; ++c) {
      double& x = sums_[begin + c];
      if (of_.has_branch) x += scale * branch_.numbers[begin + c];
      mean += x / double(C);
    }
    for (std::size_t c = 0; c < C; ++c)
      variance += std::pow(sums_[begin + c] - mean, 2) / double(C);
    const double rstd = 1 / std::sqrt(variance + 1e-6);
    const auto h = [&](std::size_t c) { return (sums_[begin + c] - mean) * rstd; };
    for (std::size_t c = 0; c < C; ++c) {
      exact_y_[begin + c] = h(c) * weight_.numbers[c] + bias_.numbers[c];
      const double dy = dy_.numbers[begin + c];
      exact_dweight_[c] += dy * h(c), exact_dbias_[c] += dy;
      sum += dy * weight_.numbers[c] / double(C);
      along += dy * weight_.numbers[c] * h(c) / double(C);
    }
    for (std::size_t c = 0; c < C; ++c) {
      const double g = dy_.numbers[begin + c] * weight_.numbers[c];
      double& dx = exact_dx_[begin + c];
      dx = rstd * (g - sum - h(c) * along);
      if (of_.from_x) dx += from_x_.numbers[begin + c];
      exact_dbranch_[begin + c] = scale * dx;
    }
  }

  NormCase of_;
  Shape all_;
  Given x_, branch_, scale_, weight_, bias_, dy_, from_x_;
  DeviceTensor sum_, y_, dx_, dbranch_, dweight_, dbias_;
  Numbers sums_, exact_y_, exact_dx_, exact_dbranch_, exact_dweight_, exact_dbias_;
};

TEST(CudaFused, NormFollowsTheFormula) {
  FOCI_WANT_GPU();
  for (const std::int64_t columns : {8, 192, 200, 384, 520, 768, 1024, 1032, 3072, 4096})
    Norm({.rows = 11, .columns = columns}).check();
  Norm({.rows = 1, .columns = 192}).check();
  Norm({.rows = 5000, .columns = 8}).check();  // more rows than blocks take at once
  Norm({.rows = 12, .columns = 192, .mean = 100}).check();
}

TEST(CudaFused, NormTakesWhatABlockOfAModelHas) {
  FOCI_WANT_GPU();
  Norm({.rows = 10, .columns = 192, .has_branch = false, .from_x = false}).check();
  Norm({.rows = 10, .columns = 192, .has_branch = false}).check();
  Norm({.rows = 12, .columns = 384, .from_x = false, .scales = 3}).check();
  for (const DType branch : {DType::f32, DType::f16}) {
    for (const DType y : {DType::f32, DType::f16})
      Norm({.rows = 10, .columns = 264, .branch = branch, .y = y}).check();
  }
  Norm({.rows = 7, .columns = 2048, .branch = DType::f32, .y = DType::bf16, .scales = 7}).check();
}

TEST(CudaFused, SumsOfColumnsFollowTheirDefinition) {
  FOCI_WANT_GPU();
  for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 8},
                                        {700, 192},
                                        {77, 576},
                                        {130, 264},
                                        {65, 3072},
                                        {9000, 16}}) {
      const Given from = given({rows, columns}, type, 1, 8, 0.1);
      const DeviceTensor to = poisoned({columns}, DType::f32);
      const Workspace room(columns);
      fused::column_sums(to, from.there, room.call());
      Numbers exact(std::size_t(columns), 0.0);
      for (std::size_t i = 0; i < from.numbers.size(); ++i)
        exact[i % std::size_t(columns)] += from.numbers[i];
      expect_near(to, exact, std::to_string(rows) + " x " + std::to_string(columns), 16);
    }
  }
}

double bell(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }

TEST(CudaFused, GeluFollowsTheExactForm) {
  FOCI_WANT_GPU();
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const std::int64_t rows : {1, 301}) {
      const std::int64_t columns = 264;
      const Given x = given({rows, columns}, type, 2, 9), dy = given({rows, columns}, type, 1, 10);
      const DeviceTensor y = poisoned({rows, columns}, type), dx = poisoned({rows, columns}, type),
                         sums = poisoned({columns}, DType::f32);
      const Workspace room(columns);
      fused::gelu(y, x.there, {});
      fused::gelu_backward({.dy = dy.there, .dx = dx, .dx_sum = sums}, x.there, room.call());
      Numbers exact_y, exact_dx, exact_sums(std::size_t(columns), 0.0);
      for (std::size_t i = 0; i < x.numbers.size(); ++i) {
        const double at = x.numbers[i];
        exact_y.push_back(at * bell(at));
        exact_dx.push_back(dy.numbers[i] * (bell(at) + at * density(at)));
        exact_sums[i % std::size_t(columns)] += exact_dx.back();
      }
      expect_near(y, exact_y, "y");
      expect_near(dx, exact_dx, "dx");
      expect_near(sums, exact_sums, "sums", 32);
    }
  }
}

/// Numbers where a difference from 1 would have no digits left, and the largest there are.
TEST(CudaFused, GeluKeepsItsTails) {
  FOCI_WANT_GPU();
  Tensor x(DType::bf16, {1, 8});
  const float values[] = {-9, -5, -3.5, -0.0f, 0.0f, 1e-20f, 9, 3e38f};
  for (int i = 0; i < 8; ++i) x.data<Bf16>()[i] = Bf16(values[i]);
  const DeviceTensor there = DeviceTensor::copy(x), y = poisoned({1, 8}, DType::bf16);
  fused::gelu(y, there, {});
  const Numbers found = y.host().values();
  for (std::size_t i = 0; i < 8; ++i) {
    const double at = x.values()[i], exact = at * bell(at);
    EXPECT_NEAR(found[i], exact, 0.02 * std::abs(exact)) << at;
  }
}

TEST(CudaFused, SaysWhatItDoesNotTake) {
  FOCI_WANT_GPU();
  const DeviceTensor x(DType::f32, Shape{6, 16}), narrow(DType::bf16, Shape{6, 16}),
      half(DType::f16, Shape{6, 16}), columns(DType::f32, Shape{16}), rows(DType::f32, Shape{6}),
      odd(DType::f32, Shape{6, 12}), other(DType::f32, Shape{4}), tall(DType::f32, Shape{8, 16}),
      room(DType::u8, Shape{std::int64_t(fused::workspace(16))});
  const fused::Residual from{.x = x, .branch = narrow, .weight = columns, .bias = columns};
  const fused::Normed to{.x = x, .y = narrow, .mean = rows, .rstd = rows};
  const auto says = [&](const std::string& words, auto&& change) {
    fused::Residual in = from;
    fused::Normed out = to;
    change(in, out);
    EXPECT_EQ(thrown<InvalidArgument>([&] { fused::add_norm(out, in, {}); }), words);
  };
  says("x is missing", [](auto& in, auto&) { in.x = {}; });
  says("x has 1 axes; it must have 2: (rows, columns)", [&](auto& in, auto&) { in.x = columns; });
  says("x has 12 columns; they must be a multiple of 8 up to 4096",
       [&](auto& in, auto&) { in.x = odd; });
  says("x has type bf16; it must be f32", [&](auto& in, auto&) { in.x = narrow; });
  says("weight has shape (6); it must be (16)", [&](auto& in, auto&) { in.weight = rows; });
  says("branch must be row-major and begin at a multiple of 16 bytes",
       [&](auto& in, auto&) { in.branch = tall.view().sliced(0, 0, 6), in.branch.strides[0] = 8; });
  says("scale has 4 numbers; they must divide 6 rows", [&](auto& in, auto&) { in.scale = other; });
  says("scale came without the branch that it belongs to",
       [&](auto& in, auto&) { in.branch = {}, in.scale = rows; });
  says("branch has type bf16 and y has type f16; 16-bit numbers must be of one type",
       [&](auto&, auto& out) { out.y = half; });
  const Call call{.workspace = {static_cast<std::byte*>(room.view().data), 16}};
  const std::string small = thrown<InvalidArgument>([&] { fused::column_sums(columns, x, call); });
  EXPECT_EQ(small,
            "the workspace has 16 bytes; 16 columns need " + std::to_string(fused::workspace(16)));
  EXPECT_EQ(thrown<InvalidArgument>([&] { fused::gelu(narrow, x, call); }),
            "x has type f32; it must be bf16 or f16");
  fused::Residual alone = from;
  alone.branch = {};
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              fused::add_norm_backward(
                  {.dy = narrow, .dx = x, .dbranch = narrow, .dweight = columns, .dbias = columns},
                  alone, to, call);
            }),
            "dbranch came without a branch");
}

}  // namespace
}  // namespace foci
