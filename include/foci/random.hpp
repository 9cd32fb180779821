// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine and for every library: SplitMix64 seeded by a
// hash of seed, stream and index, and integer draws without the standard library's distributions.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace foci::data {

class Random {
 public:
  /// One stream for each pair: a sample's number, an epoch, ...
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0, std::uint64_t index = 0)
      : state_(mixed(seed + 0x9e3779b97f4a7c15u * mixed(stream + 0x632be59bd9b4e019u) +
                     mixed(index + 0xd1342543de82ef95u))) {}

  std::uint64_t bits() { return mixed(state_ += 0x9e3779b97f4a7c15u); }
  /// In [0, 1), with 53 bits.
  double uniform() { return double(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// In [0, count), without bias.
  std::int64_t below(std::int64_t count) {
    const auto n = std::uint64_t(count),
               limit = ~std::uint64_t{0} - (~std::uint64_t{0} % n + 1) % n;
    std::uint64_t drawn = bits();
    while (drawn > limit) drawn = bits();
    return std::int64_t(drawn % n);
  }
  /// Both ends included.
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool chance(double p) { return uniform() < p; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[std::size_t(below(std::int64_t(i)))]);
    }
  }

 private:
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }
  std::uint64_t state_;
};

}  // namespace foci::data
