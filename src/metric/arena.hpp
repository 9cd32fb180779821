// SPDX-License-Identifier: Apache-2.0
// Hands out pieces of the caller's workspace. Made without memory it only counts, so that the code
// that takes the pieces is also the code that says how many bytes it needs.
#pragma once

#include <foci/error.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace foci::metric {

class Arena {
 public:
  static constexpr std::size_t alignment = 64;

  Arena() = default;
  explicit Arena(std::span<std::byte> memory) : memory_(memory), counting_(false) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    used_ = (alignment - address % alignment) % alignment;
  }

  /// Room for the product of the sizes; throws where that is more than memory could ever hold.
  template <class T, class... Sizes>
  std::span<T> take(Sizes... sizes) {
    std::size_t count = 1;
    for (const std::size_t size : {std::size_t(sizes)...}) count = times(count, size);
    const std::size_t bytes = times(count, sizeof(T));
    const std::size_t begin = used_;
    used_ = bounded(used_ + (bytes + alignment - 1) / alignment * alignment);
    if (counting_) return {};
    assert(used_ <= memory_.size());
    return {reinterpret_cast<T*>(memory_.data() + begin), count};
  }

  /// a * b bytes, checked alike.
  static std::size_t times(std::size_t a, std::size_t b) {
    std::size_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) product = ~std::size_t(0);
    return bounded(product);
  }

  /// Bytes taken so far.
  std::size_t used() const { return used_; }

 private:
  static std::size_t bounded(std::size_t bytes) {
    if (bytes >> 56 == 0) return bytes;
    throw InvalidArgument("these sizes ask for more memory than any machine can address");
  }

  std::span<std::byte> memory_;
  std::size_t used_ = 0;
  bool counting_ = true;
};

}  // namespace foci::metric
