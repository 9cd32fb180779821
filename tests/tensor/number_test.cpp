// SPDX-License-Identifier: Apache-2.0
// The sixteen-bit floats: every pattern survives a round trip, and every rounding goes to the
// nearest of the two neighbours, ties to the even one, decided here by comparing in double.
#include <foci/tensor.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace foci {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

template <class S>
struct Format;
template <>
struct Format<Bf16> {
  static constexpr int fraction_bits = 7, bias = 127;
  static constexpr std::uint16_t infinity_bits = 0x7f80;
};
template <>
struct Format<F16> {
  static constexpr int fraction_bits = 10, bias = 15;
  static constexpr std::uint16_t infinity_bits = 0x7c00;
};

/// The value of a pattern from the definition of the format; one past the largest is where the
/// next would be, which is what rounding to infinity compares with.
template <class S>
double value_of(std::uint16_t magnitude) {
  const int fraction = magnitude & ((1 << Format<S>::fraction_bits) - 1);
  const int exponent = magnitude >> Format<S>::fraction_bits;
  const int hidden = exponent > 0 ? 1 << Format<S>::fraction_bits : 0;
  return std::ldexp(hidden + fraction,
                    std::max(exponent, 1) - Format<S>::bias - Format<S>::fraction_bits);
}

template <class S>
class Sixteen : public testing::Test {};
using Both = testing::Types<Bf16, F16>;
TYPED_TEST_SUITE(Sixteen, Both);

template <class S>
S from_bits(std::uint16_t bits) {
  S s;
  s.bits = bits;
  return s;
}

TYPED_TEST(Sixteen, EveryPatternMeansWhatTheFormatSays) {
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
    const float plus = float(from_bits<TypeParam>(std::uint16_t(bits)));
    const float minus = float(from_bits<TypeParam>(std::uint16_t(bits | 0x8000)));
    if (bits > Format<TypeParam>::infinity_bits) {
      ASSERT_TRUE(std::isnan(plus) && std::isnan(minus)) << bits;
      continue;
    }
    const double value =
        bits == Format<TypeParam>::infinity_bits ? infinity : value_of<TypeParam>(bits);
    ASSERT_EQ(double(plus), value) << bits;
    ASSERT_EQ(double(minus), -value) << bits;
    ASSERT_TRUE(std::signbit(minus)) << bits;
  }
}

TYPED_TEST(Sixteen, EveryPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float(from_bits<TypeParam>(std::uint16_t(bits)));
    const TypeParam back{double(value)};
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(float(back))) << bits;
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TYPED_TEST(Sixteen, RoundsToNearestEvenBetweenAllNeighbours) {
  for (std::uint16_t low = 0; low < Format<TypeParam>::infinity_bits; ++low) {
    const auto high = std::uint16_t(low + 1);
    const double middle = (value_of<TypeParam>(low) + value_of<TypeParam>(high)) / 2;
    const std::uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(TypeParam(middle).bits, even) << low;
    ASSERT_EQ(TypeParam(std::nextafter(middle, 0.0)).bits, low) << low;
    ASSERT_EQ(TypeParam(std::nextafter(middle, infinity)).bits, high) << low;
    ASSERT_EQ(TypeParam(-middle).bits, even | 0x8000) << low;
  }
}

TYPED_TEST(Sixteen, RandomDoublesGoToTheNearest) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::bit_cast<double>(random());
    const TypeParam got(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(float(got)));
      continue;
    }
    ASSERT_EQ(std::signbit(x), got.bits >> 15 != 0);
    const auto magnitude = std::uint16_t(got.bits & 0x7fff);
    ASSERT_LE(magnitude, Format<TypeParam>::infinity_bits);
    const double here = std::abs(value_of<TypeParam>(magnitude) - std::abs(x));
    if (magnitude > 0) {
      ASSERT_LE(here, std::abs(value_of<TypeParam>(magnitude - 1) - std::abs(x))) << x;
    }
    if (magnitude < Format<TypeParam>::infinity_bits) {
      ASSERT_LE(here, std::abs(value_of<TypeParam>(magnitude + 1) - std::abs(x))) << x;
    }
  }
}

TYPED_TEST(Sixteen, EndsOfTheRange) {
  EXPECT_EQ(TypeParam(infinity).bits, Format<TypeParam>::infinity_bits);
  EXPECT_EQ(TypeParam(-infinity).bits, Format<TypeParam>::infinity_bits | 0x8000);
  EXPECT_EQ(TypeParam(1e300).bits, Format<TypeParam>::infinity_bits);
  EXPECT_EQ(TypeParam(std::numeric_limits<double>::max()).bits, Format<TypeParam>::infinity_bits);
  EXPECT_EQ(TypeParam(std::numeric_limits<double>::denorm_min()).bits, 0);
  EXPECT_EQ(TypeParam(-std::numeric_limits<double>::denorm_min()).bits, 0x8000);
  EXPECT_EQ(TypeParam(0.0).bits, 0);
  EXPECT_EQ(TypeParam(-0.0).bits, 0x8000);
  EXPECT_TRUE(std::isnan(float(TypeParam(nan))));
  EXPECT_TRUE(std::isnan(float(TypeParam(-nan))));
  EXPECT_TRUE(std::isnan(float(TypeParam(std::bit_cast<double>(0x7ff0'0000'0000'0001)))));
  EXPECT_EQ(TypeParam().bits, 0);
}

TEST(F16, KnownValues) {
  EXPECT_EQ(F16(65504.0).bits, 0x7bff);
  EXPECT_EQ(F16(65519.9).bits, 0x7bff);
  EXPECT_EQ(F16(65520.0).bits, 0x7c00);
  EXPECT_EQ(F16(0x1p-24).bits, 1);
  EXPECT_EQ(F16(0x1p-25).bits, 0);
  EXPECT_EQ(F16(0x1.8p-25).bits, 1);
}

// A float between would round this tie upwards, and the second rounding would be wrong.
TEST(Bf16, RoundsOnceStraightFromDouble) {
  EXPECT_EQ(Bf16(1.0 + 0x1p-8 + 0x1p-40).bits, 0x3f81);
  EXPECT_EQ(Bf16(1.0 + 0x1p-8).bits, 0x3f80);
  EXPECT_EQ(Bf16(1.0 + 0x1p-7 + 0x1p-8 - 0x1p-40).bits, 0x3f81);
}

}  // namespace
}  // namespace foci
