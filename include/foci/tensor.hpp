// SPDX-License-Identifier: Apache-2.0
// A view of somebody's memory (pointer, type, shape, strides) and a tensor that owns its own.
// No arithmetic lives here.
#pragma once

#include <foci/export.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u8, boolean };

FOCI_API std::size_t size_of(DType dtype);
FOCI_API std::string_view name_of(DType dtype);
constexpr bool is_floating(DType dtype) { return dtype <= DType::f16; }

/// Sixteen-bit floats as they lie in memory; converting to them rounds to nearest even.
struct FOCI_API Bf16 {
  std::uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(double x);
  explicit operator float() const;
};
struct FOCI_API F16 {
  std::uint16_t bits = 0;
  F16() = default;
  explicit F16(double x);
  explicit operator float() const;
};

/// Does not compile for a type that DType has no name for.
template <class S>
inline constexpr DType dtype_of = S::has_no_dtype;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<Bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<F16> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

inline constexpr int max_rank = 5;
using Shape = std::vector<std::int64_t>;

/// "(2, 4, 37, 16)"
FOCI_API std::string to_string(std::span<const std::int64_t> shape);

/// Non-owning; a default-made view means "absent". Strides count elements and may be 0 or negative.
/// Inputs are taken as views too and never written through.
struct FOCI_API View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> strides{};

  View() = default;
  /// Row-major memory of the given shape.
  View(const void* data, DType dtype, std::span<const std::int64_t> shape);
  template <class S>
  View(const S* data, std::initializer_list<std::int64_t> shape)
      : View(data, dtype_of<S>, std::span(shape.begin(), shape.size())) {}

  explicit operator bool() const { return rank != 0; }
  std::span<const std::int64_t> sizes() const { return {shape.data(), std::size_t(rank)}; }
  std::int64_t count() const;
  bool contiguous() const;

  View swapped(int i, int j) const;                                   ///< two axes exchanged
  View sliced(int axis, std::int64_t begin, std::int64_t end) const;  ///< [begin, end) of one axis

  /// Address of an element; the indices must be inside the shape.
  template <class S>
  S* at(std::initializer_list<std::int64_t> index) const {
    std::int64_t offset = 0;
    int axis = 0;
    for (std::int64_t i : index) offset += i * strides[axis++];
    return static_cast<S*>(data) + offset;
  }
};

/// Owns zero-filled, 64-byte aligned, row-major memory.
class FOCI_API Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::span<const std::int64_t> shape);
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape)
      : Tensor(dtype, std::span(shape.begin(), shape.size())) {}
  /// A row-major copy of `from`, its values converted to `dtype`.
  static Tensor copy(const View& from, DType dtype);

  const View& view() const { return view_; }
  operator const View&() const { return view_; }
  explicit operator bool() const { return bool(view_); }
  template <class S>
  S* data() const {
    return static_cast<S*>(view_.data);
  }
  /// All values in row-major order as doubles (booleans as 0 and 1).
  std::vector<double> values() const;

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  View view_;
};

}  // namespace foci
