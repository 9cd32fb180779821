// SPDX-License-Identifier: Apache-2.0
// Reading and writing lines of a View in another number type; the type is looked at once a line.
#pragma once

#include <foci/tensor.hpp>

#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>

namespace foci::metric {

/// Calls f with a null pointer of the view's element type.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(static_cast<double*>(nullptr));
    case DType::f32:
      return f(static_cast<float*>(nullptr));
    case DType::bf16:
      return f(static_cast<Bf16*>(nullptr));
    case DType::f16:
      return f(static_cast<F16*>(nullptr));
    case DType::i64:
      return f(static_cast<std::int64_t*>(nullptr));
    case DType::i32:
      return f(static_cast<std::int32_t*>(nullptr));
    case DType::u8:
    case DType::boolean:
      return f(static_cast<std::uint8_t*>(nullptr));
  }
}

/// The same for floating types alone; f may return something.
template <class F>
auto with_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(static_cast<double*>(nullptr));
    case DType::bf16:
      return f(static_cast<Bf16*>(nullptr));
    case DType::f16:
      return f(static_cast<F16*>(nullptr));
    default:
      return f(static_cast<float*>(nullptr));
  }
}

/// Bf16(x) and F16(x) of a float, inline: rounded to nearest even, NaN quiet.
inline Bf16 narrow_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x), size = bits & 0x7fff'ffffu;
  Bf16 y;
  y.bits = std::uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  if (size > 0x7f80'0000u) y.bits = std::uint16_t((bits >> 31 << 15) | 0x7fc0u);
  return y;
}
inline F16 narrow_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x), size = bits & 0x7fff'ffffu;
  std::uint32_t y = (size - (112u << 23) + 0xfffu + (size >> 13 & 1)) >> 13;
  if (size < 113u << 23)  // subnormal: adding 1/2 rounds where the last bit will be
    y = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f00'0000u;
  if (size >= 143u << 23) y = size > 0x7f80'0000u ? 0x7e00u : 0x7c00u;
  F16 half;
  half.bits = std::uint16_t((bits >> 31 << 15) | y);
  return half;
}

template <class T, class S>
T convert(const S& x) {
  if constexpr (std::is_same_v<T, S>) {
    return x;
  } else if constexpr (std::is_same_v<T, Bf16> && std::is_same_v<S, float>) {
    return narrow_bf16(x);
  } else if constexpr (std::is_same_v<T, F16> && std::is_same_v<S, float>) {
    return narrow_f16(x);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<S, Bf16>) {
    return std::bit_cast<float>(std::uint32_t(x.bits) << 16);
  } else if constexpr (requires { static_cast<T>(x); }) {
    return static_cast<T>(x);
  } else {
    return static_cast<T>(static_cast<float>(x));
  }
}

/// The indices of an element, or of a line when the last is left out; or the sizes of a tensor.
struct Index {
  std::array<std::int64_t, max_rank> of{};
  int rank = 0;
  Index(std::initializer_list<std::int64_t> index) {
    for (const std::int64_t i : index) of[rank++] = i;
  }
  template <std::size_t Rank>
  Index(const std::array<std::int64_t, Rank>& index) : rank(int(Rank)) {
    for (std::size_t axis = 0; axis < Rank; ++axis) of[axis] = index[axis];
  }
  explicit Index(std::span<const std::int64_t> sizes) : rank(int(sizes.size())) {
    for (int axis = 0; axis < rank; ++axis) of[axis] = sizes[axis];
  }
  std::span<const std::int64_t> sizes() const { return {of.data(), std::size_t(rank)}; }
};

template <class S>
S* address(const View& view, const Index& index) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < index.rank; ++axis) offset += index.of[axis] * view.strides[axis];
  return static_cast<S*>(view.data) + offset;
}

/// to[0..count) = the last axis of `from` at `index` (which leaves that axis out).
template <class T>
void load(T* to, const View& from, const Index& index, std::int64_t count) {
  assert(index.rank == from.rank - 1);
  with_type(from.dtype, [&]<class S>(S*) {
    const S* p = address<S>(from, index);
    const std::int64_t step = from.strides[from.rank - 1];
    if (step == 1) {
      for (std::int64_t d = 0; d < count; ++d) to[d] = convert<T>(p[d]);
      return;
    }
    for (std::int64_t d = 0; d < count; ++d) to[d] = convert<T>(p[d * step]);
  });
}

template <class T>
void store(const View& to, const Index& index, const T* from, std::int64_t count) {
  assert(index.rank == to.rank - 1);
  with_type(to.dtype, [&]<class S>(S*) {
    S* p = address<S>(to, index);
    const std::int64_t step = to.strides[to.rank - 1];
    if (step == 1) {
      for (std::int64_t d = 0; d < count; ++d) p[d] = convert<S>(from[d]);
      return;
    }
    for (std::int64_t d = 0; d < count; ++d) p[d * step] = convert<S>(from[d]);
  });
}

/// store() of zeros.
inline void store_zeros(const View& to, const Index& index, std::int64_t count) {
  assert(index.rank == to.rank - 1);
  with_type(to.dtype, [&]<class S>(S*) {
    S* p = address<S>(to, index);
    for (std::int64_t d = 0; d < count; ++d) p[d * to.strides[to.rank - 1]] = S{};
  });
}

/// One element, all of its indices given.
template <class T>
T load_one(const View& from, const Index& index) {
  T x{};
  with_type(from.dtype, [&]<class S>(S*) { x = convert<T>(*address<S>(from, index)); });
  return x;
}

template <class T>
void store_one(const View& to, const Index& index, T x) {
  if (!to) return;
  with_type(to.dtype, [&]<class S>(S*) { *address<S>(to, index) = convert<S>(x); });
}

}  // namespace foci::metric
