// SPDX-License-Identifier: Apache-2.0
// Hands out pieces of the caller's workspace. Made without memory it only counts, so that the code
// that takes the pieces is also the code that says how many bytes it needs.
#pragma once

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

  template <class T>
  std::span<T> take(std::int64_t count) {
    const std::size_t bytes = std::size_t(count) * sizeof(T);
    const std::size_t begin = used_;
    used_ += (bytes + alignment - 1) / alignment * alignment;
    if (counting_) return {};
    assert(used_ <= memory_.size());
    return {reinterpret_cast<T*>(memory_.data() + begin), std::size_t(count)};
  }

  /// Bytes taken so far.
  std::size_t used() const { return used_; }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
  bool counting_ = true;
};

}  // namespace foci::metric
