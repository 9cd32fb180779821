// SPDX-License-Identifier: Apache-2.0
// Views and tensors: shapes, strides, slices, conversions, and what is refused.
#include <foci/error.hpp>
#include <foci/tensor.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "sanitized.hpp"
#include "thrown.hpp"

namespace foci {
namespace {

constexpr DType all_types[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                               DType::i64, DType::i32, DType::u8,   DType::boolean};
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(DType, SizesAndNames) {
  const std::size_t sizes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  const char* names[] = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
  for (DType dtype : all_types) {
    EXPECT_EQ(size_of(dtype), sizes[int(dtype)]);
    EXPECT_EQ(name_of(dtype), names[int(dtype)]);
    EXPECT_EQ(is_floating(dtype), int(dtype) < 4);
  }
}

TEST(View, RowMajorStrides) {
  const float data[24] = {};
  const View view(data, {2, 3, 4});
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.count(), 24);
  EXPECT_EQ(to_string(view.sizes()), "(2, 3, 4)");
  EXPECT_EQ(to_string(std::span(view.strides).first(3)), "(12, 4, 1)");
  EXPECT_EQ(view.at<float>({1, 2, 3}), data + 23);
  EXPECT_TRUE(view.contiguous());
  EXPECT_TRUE(bool(view));
}

TEST(View, DefaultMeansAbsent) {
  const View view;
  EXPECT_FALSE(bool(view));
  EXPECT_EQ(view.count(), 0);
  EXPECT_EQ(to_string(view.sizes()), "()");
  EXPECT_TRUE(view.contiguous());
  EXPECT_FALSE(bool(Tensor()));
  EXPECT_FALSE(bool(Tensor::copy(view, DType::f64)));
  EXPECT_TRUE(Tensor().values().empty());
}

TEST(View, SwappedAndSliced) {
  const double data[24] = {};
  const View view(data, {2, 3, 4});
  const View turned = view.swapped(0, 2);
  EXPECT_EQ(to_string(turned.sizes()), "(4, 3, 2)");
  EXPECT_EQ(turned.at<double>({3, 2, 1}), data + 23);
  EXPECT_FALSE(turned.contiguous());
  const View part = view.sliced(1, 1, 3);
  EXPECT_EQ(to_string(part.sizes()), "(2, 2, 4)");
  EXPECT_EQ(part.at<double>({1, 1, 3}), data + 23);
  EXPECT_FALSE(part.contiguous());
  EXPECT_TRUE(view.sliced(0, 1, 2).contiguous());
  EXPECT_TRUE(view.sliced(0, 0, 1).swapped(0, 1).contiguous()) << "an axis of 1 has no order";
  EXPECT_EQ(view.sliced(1, 3, 3).count(), 0);
  EXPECT_TRUE(view.sliced(1, 3, 3).contiguous());
}

TEST(View, RefusesWhatItCannotHold) {
  const auto make = [](Shape shape) {
    return thrown<InvalidArgument>([&] { View(nullptr, DType::f64, shape); });
  };
  EXPECT_EQ(make({1, 2, 3, 4, 5, 6}), "shape (1, 2, 3, 4, 5, 6) has 6 axes; at most 5 are held");
  EXPECT_EQ(make({4, -1}), "shape (4, -1) has a negative size; it needs sizes >= 0");
  EXPECT_EQ(make({-1, 0}), "shape (-1, 0) has a negative size; it needs sizes >= 0");
  const std::int64_t big = std::int64_t(1) << 31;
  EXPECT_EQ(make({big, big}),
            "shape (2147483648, 2147483648) of f64 is too large; it needs fewer than 2^63 bytes");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(View(nullptr, DType::u8, Shape{most, 2}), InvalidArgument);
  EXPECT_THROW(View(nullptr, DType::u8, Shape{most, 0, most}), InvalidArgument);
  EXPECT_NO_THROW(View(nullptr, DType::u8, Shape{most}));
  EXPECT_THROW(View(nullptr, DType::f64, Shape{most / 8 + 1}), InvalidArgument);
  EXPECT_NO_THROW(View(nullptr, DType::f64, Shape{most / 8}));
}

TEST(View, RefusesAnAxisOrSliceOutside) {
  const float data[6] = {};
  const View view(data, {2, 3});
  EXPECT_EQ(thrown<InvalidArgument>([&] { view.swapped(0, 2); }),
            "axis 2 of a view of shape (2, 3); it needs 0 <= axis < 2");
  EXPECT_THROW(view.swapped(-1, 0), InvalidArgument);
  EXPECT_THROW(view.sliced(2, 0, 0), InvalidArgument);
  EXPECT_EQ(thrown<InvalidArgument>([&] { view.sliced(1, 1, 4); }),
            "slice [1, 4) of axis 1 of a view of shape (2, 3); it needs 0 <= begin <= end <= 3");
  EXPECT_THROW(view.sliced(1, -1, 2), InvalidArgument);
  EXPECT_THROW(view.sliced(1, 2, 1), InvalidArgument);
}

TEST(Tensor, IsAlignedAndZero) {
  for (DType dtype : all_types) {
    for (std::int64_t size : {0, 1, 7, 64, 1000}) {
      const Tensor tensor(dtype, {size, 3});
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data<void>()) % 64, 0u);
      EXPECT_NE(tensor.data<void>(), nullptr);
      EXPECT_EQ(tensor.values(), std::vector<double>(std::size_t(3 * size), 0.0));
    }
  }
}

TEST(Tensor, RefusesBadShapes) {
  EXPECT_THROW(Tensor(DType::f32, {2, -3}), InvalidArgument);
  EXPECT_THROW(Tensor(DType::f32, {1, 1, 1, 1, 1, 1}), InvalidArgument);
  EXPECT_THROW(Tensor(DType::f32, {std::int64_t(1) << 61, 2}), InvalidArgument);
}

TEST(Tensor, SaysWhenThereIsNoMemory) {
  if (sanitized) GTEST_SKIP() << "the sanitizer ends the program instead";
  EXPECT_EQ(thrown<Error>([] { Tensor(DType::u8, {std::int64_t(1) << 60}); }),
            "no memory for a tensor of shape (1152921504606846976) of u8; "
            "it needs 1152921504606846976 bytes");
}

TEST(Tensor, CopyFollowsStrides) {
  Tensor tensor(DType::f32, {2, 3});
  for (int i = 0; i < 6; ++i) tensor.data<float>()[i] = float(i);
  const Tensor turned = Tensor::copy(tensor.view().swapped(0, 1), DType::f64);
  EXPECT_EQ(to_string(turned.view().sizes()), "(3, 2)");
  EXPECT_EQ(turned.values(), (std::vector<double>{0, 3, 1, 4, 2, 5}));

  View repeated = tensor.view().sliced(0, 1, 2);
  repeated.shape[0] = 3;
  repeated.strides[0] = 0;
  EXPECT_EQ(Tensor::copy(repeated, DType::i32).values(),
            (std::vector<double>{3, 4, 5, 3, 4, 5, 3, 4, 5}));

  View backwards = tensor.view().sliced(0, 1, 2);
  backwards.data = tensor.data<float>() + 5;
  backwards.strides[1] = -1;
  EXPECT_EQ(Tensor::copy(backwards, DType::f16).values(), (std::vector<double>{5, 4, 3}));
}

TEST(Tensor, CopyNeedsData) {
  EXPECT_EQ(thrown<InvalidArgument>([] {
              Tensor::copy(View(nullptr, DType::f32, Shape{2, 3}), DType::f32);
            }),
            "a view of shape (2, 3) without data; a copy needs an address to read from");
  EXPECT_EQ(Tensor::copy(View(nullptr, DType::f32, Shape{0, 3}), DType::f32).view().rank, 2);
}

TEST(Tensor, CopyBetweenAllTypes) {
  const double data[] = {0, 1, 2, 200};
  for (DType from : all_types) {
    const Tensor source = Tensor::copy(View(data, {4}), from);
    for (DType to : all_types) {
      const bool logical = from == DType::boolean || to == DType::boolean;
      EXPECT_EQ(Tensor::copy(source, to).values(),
                logical ? (std::vector<double>{0, 1, 1, 1}) : (std::vector<double>{0, 1, 2, 200}))
          << name_of(from) << " to " << name_of(to);
    }
  }
}

TEST(Tensor, IntegersStayInRange) {
  const double data[] = {nan, infinity, -infinity, 1e30, -1.9, 255.5, 0x1p63, -0x1p63};
  const View view(data, {8});
  const Tensor wide = Tensor::copy(view, DType::i64);
  constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t high = std::numeric_limits<std::int64_t>::max();
  const std::int64_t expected[] = {0, high, low, high, -1, 255, high, low};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(wide.data<std::int64_t>()[i], expected[i]) << i;
  EXPECT_EQ(Tensor::copy(view, DType::u8).values(),
            (std::vector<double>{0, 255, 0, 255, 0, 255, 255, 0}));
  EXPECT_EQ(Tensor::copy(view, DType::boolean).values(),
            (std::vector<double>{1, 1, 1, 1, 1, 1, 1, 1}));
  const std::int64_t exact[] = {high, low, (std::int64_t(1) << 53) + 1};
  const Tensor same = Tensor::copy(View(exact, {3}), DType::i64);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(same.data<std::int64_t>()[i], exact[i]);
  EXPECT_EQ(Tensor::copy(View(exact, {3}), DType::i32).values(),
            (std::vector<double>{2147483647, -2147483648.0, 2147483647}));
}

TEST(Tensor, CopyToTheSameTypeKeepsEveryBit) {
  const std::uint32_t bits[] = {0x7fc12345, 0x80000000, 0x00000001};
  float data[3];
  std::memcpy(data, bits, sizeof data);
  const Tensor copy = Tensor::copy(View(data, {3}), DType::f32);
  EXPECT_EQ(std::memcmp(copy.data<float>(), bits, sizeof bits), 0);
  Bf16 odd;
  odd.bits = 0x7fc1;
  EXPECT_EQ(Tensor::copy(View(&odd, {1}), DType::bf16).data<Bf16>()->bits, 0x7fc1);
}

TEST(Tensor, AnyByteThatIsNotZeroIsTrue) {
  const std::uint8_t bytes[] = {0, 1, 2, 255};
  const Tensor flags = Tensor::copy(View(bytes, DType::boolean, Shape{4}), DType::boolean);
  EXPECT_EQ(flags.values(), (std::vector<double>{0, 1, 1, 1}));
  EXPECT_EQ(flags.data<std::uint8_t>()[3], 1);
}

TEST(Tensor, MovesItsMemory) {
  Tensor first(DType::f32, {2});
  first.data<float>()[1] = 7;
  const Tensor second = std::move(first);
  EXPECT_EQ(second.values(), (std::vector<double>{0, 7}));
}

}  // namespace
}  // namespace foci
