// SPDX-License-Identifier: Apache-2.0
// Views and tensors: shapes with overflow checked, row-major strides, and values carried from one
// type to another. Sixteen-bit floats are rounded once, straight from double. No arithmetic.
#include <foci/error.hpp>
#include <foci/tensor.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

namespace foci {
namespace {

constexpr std::size_t alignment = 64;

/// Rounds to nearest even in a format with a sign, `exponent_bits` and `fraction_bits`.
std::uint16_t narrow(double x, int exponent_bits, int fraction_bits) {
  constexpr std::uint64_t infinity = 0x7ff0'0000'0000'0000;
  constexpr std::uint64_t hidden = std::uint64_t(1) << 52;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t magnitude = bits & ~(std::uint64_t(1) << 63);
  const auto sign = std::uint32_t((bits >> 63) << 15);
  const int top = (1 << exponent_bits) - 1;
  const std::uint32_t overflow = std::uint32_t(top) << fraction_bits;
  if (magnitude > infinity) return std::uint16_t(sign | overflow | 1u << (fraction_bits - 1));

  int exponent = int(magnitude >> 52) - 1023 + top / 2;
  if (exponent >= top) return std::uint16_t(sign | overflow);
  int shift = 52 - fraction_bits;
  if (exponent < 1) {  // subnormal in the narrow format: fewer bits are kept
    shift += 1 - exponent;
    exponent = 1;
  }
  if (shift > 53) return std::uint16_t(sign);
  const std::uint64_t mantissa = (magnitude & (hidden - 1)) | hidden;
  const std::uint64_t half = std::uint64_t(1) << (shift - 1);
  const std::uint64_t rest = mantissa & (2 * half - 1);
  auto kept = std::uint32_t(mantissa >> shift);
  if (rest > half || (rest == half && (kept & 1))) ++kept;
  // `kept` holds the hidden bit, so a carry moves into the exponent and on to infinity by itself.
  return std::uint16_t(sign | ((std::uint32_t(exponent - 1) << fraction_bits) + kept));
}

/// A boolean as it lies in memory: any byte that is not 0 is true.
struct Byte {
  std::uint8_t byte;
};

/// Calls f with `data` as a pointer to the type that `dtype` names.
template <class F>
void with_type(DType dtype, void* data, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(static_cast<double*>(data));
    case DType::f32:
      return f(static_cast<float*>(data));
    case DType::bf16:
      return f(static_cast<Bf16*>(data));
    case DType::f16:
      return f(static_cast<F16*>(data));
    case DType::i64:
      return f(static_cast<std::int64_t*>(data));
    case DType::i32:
      return f(static_cast<std::int32_t*>(data));
    case DType::u8:
      return f(static_cast<std::uint8_t*>(data));
    case DType::boolean:
      return f(static_cast<Byte*>(data));
  }
}

/// The same value as int64 or double, whichever holds it exactly.
template <class S>
auto widen(S x) {
  if constexpr (std::is_integral_v<S>) {
    return std::int64_t(x);
  } else if constexpr (std::is_same_v<S, Byte>) {
    return std::int64_t(x.byte != 0);
  } else if constexpr (std::is_floating_point_v<S>) {
    return double(x);
  } else {
    return double(float(x));
  }
}

/// To an integer: towards zero, held at the ends of the range, NaN to 0.
template <class To, class Wide>
To convert(Wide x) {
  using Limits = std::numeric_limits<To>;
  if constexpr (std::is_same_v<To, Byte>) {
    return Byte{std::uint8_t(x != 0)};
  } else if constexpr (std::is_integral_v<To>) {
    if constexpr (std::is_floating_point_v<Wide>) {
      if (std::isnan(x)) return 0;
    }
    if (x <= Wide(Limits::min())) return Limits::min();
    return x >= Wide(Limits::max()) ? Limits::max() : To(x);
  } else {
    return To(x);
  }
}

/// Calls f(offset in elements) in row-major order.
template <class F>
void for_each_offset(const View& view, F&& f) {
  std::array<std::int64_t, max_rank> index{};
  std::int64_t offset = 0;
  const std::int64_t count = view.count();
  for (std::int64_t n = 0; n < count; ++n) {
    f(offset);
    for (int axis = view.rank - 1; axis >= 0; --axis) {
      offset += view.strides[axis];
      if (++index[axis] < view.shape[axis]) break;
      offset -= index[axis] * view.strides[axis];
      index[axis] = 0;
    }
  }
}

void check_axis(const View& view, int axis) {
  if (axis >= 0 && axis < view.rank) return;
  throw InvalidArgument("axis " + std::to_string(axis) + " of a view of shape " +
                        to_string(view.sizes()) + "; it needs 0 <= axis < " +
                        std::to_string(view.rank));
}

}  // namespace

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::boolean:
      break;
  }
  return 1;
}

std::string_view name_of(DType dtype) {
  constexpr std::string_view names[] = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
  return names[int(dtype)];
}

Bf16::Bf16(double x) : bits(narrow(x, 8, 7)) {}

Bf16::operator float() const { return std::bit_cast<float>(std::uint32_t(bits) << 16); }

F16::F16(double x) : bits(narrow(x, 5, 10)) {}

F16::operator float() const {
  const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16;
  const std::uint32_t magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | magnitude << 13);
  if (magnitude < 0x0400) {  // subnormal: a whole number of 2^-24
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(float(magnitude) * 0x1p-24f));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (std::uint32_t(127 - 15) << 23)));
}

std::string to_string(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + ")";
}

View::View(const void* memory, DType type, std::span<const std::int64_t> sizes)
    : data(const_cast<void*>(memory)), dtype(type) {
  if (sizes.size() > std::size_t(max_rank)) {
    throw InvalidArgument("shape " + to_string(sizes) + " has " + std::to_string(sizes.size()) +
                          " axes; at most " + std::to_string(max_rank) + " are held");
  }
  // Empty axes count as 1 here, so that no stride can overflow either.
  std::int64_t stride = 1;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / std::int64_t(size_of(dtype));
  rank = int(sizes.size());
  for (int axis = rank - 1; axis >= 0; --axis) {
    const std::int64_t size = sizes[axis];
    if (size < 0) {
      throw InvalidArgument("shape " + to_string(sizes) +
                            " has a negative size; it needs sizes >= 0");
    }
    shape[axis] = size;
    strides[axis] = stride;
    if (size > most / stride) {
      throw InvalidArgument("shape " + to_string(sizes) + " of " + std::string(name_of(dtype)) +
                            " is too large; it needs fewer than 2^63 bytes");
    }
    stride *= std::max<std::int64_t>(size, 1);
  }
}

std::int64_t View::count() const {
  std::int64_t product = rank == 0 ? 0 : 1;
  for (std::int64_t size : sizes()) product *= size;
  return product;
}

bool View::contiguous() const {
  std::int64_t expected = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (shape[axis] == 0) return true;
    if (shape[axis] != 1 && strides[axis] != expected) return count() == 0;
    expected *= shape[axis];
  }
  return true;
}

View View::swapped(int i, int j) const {
  check_axis(*this, i);
  check_axis(*this, j);
  View result = *this;
  std::swap(result.shape[i], result.shape[j]);
  std::swap(result.strides[i], result.strides[j]);
  return result;
}

View View::sliced(int axis, std::int64_t begin, std::int64_t end) const {
  check_axis(*this, axis);
  if (begin < 0 || begin > end || end > shape[axis]) {
    throw InvalidArgument("slice [" + std::to_string(begin) + ", " + std::to_string(end) +
                          ") of axis " + std::to_string(axis) + " of a view of shape " +
                          to_string(sizes()) +
                          "; it needs 0 <= begin <= end <= " + std::to_string(shape[axis]));
  }
  View result = *this;
  result.shape[axis] = end - begin;
  if (result.count() != 0) {  // an empty slice may not even have an address to move
    result.data =
        static_cast<std::byte*>(data) + begin * strides[axis] * std::int64_t(size_of(dtype));
  }
  return result;
}

Tensor::Tensor(DType dtype, std::span<const std::int64_t> shape) : view_(nullptr, dtype, shape) {
  if (!view_) return;
  const std::size_t bytes = std::size_t(view_.count()) * size_of(dtype);
  const std::size_t whole = std::max(bytes + alignment - 1, alignment) / alignment * alignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, whole)));
  if (!memory_) {
    throw Error("no memory for a tensor of shape " + to_string(shape) + " of " +
                std::string(name_of(dtype)) + "; it needs " + std::to_string(bytes) + " bytes");
  }
  std::memset(memory_.get(), 0, whole);
  view_.data = memory_.get();
}

Tensor Tensor::copy(const View& from, DType dtype) {
  Tensor to(dtype, from.sizes());
  if (!to.view_.data || from.count() == 0) return to;  // absent or empty
  if (!from.data) {
    throw InvalidArgument("a view of shape " + to_string(from.sizes()) +
                          " without data; a copy needs an address to read from");
  }
  with_type(from.dtype, from.data, [&]<class From>(From* source) {
    with_type(dtype, to.view_.data, [&]<class To>(To* target) {
      for_each_offset(from, [&](std::int64_t offset) {
        if constexpr (std::is_same_v<From, To> && !std::is_same_v<To, Byte>) {
          *target++ = source[offset];  // to the bit, NaN payloads included
        } else {
          *target++ = convert<To>(widen(source[offset]));
        }
      });
    });
  });
  return to;
}

std::vector<double> Tensor::values() const {
  std::vector<double> result(std::size_t(view_.count()));
  with_type(view_.dtype, view_.data, [&](auto* source) {
    for (double& value : result) value = double(widen(*source++));
  });
  return result;
}

void Tensor::Free::operator()(std::byte* p) const { std::free(p); }

}  // namespace foci
