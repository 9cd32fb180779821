// SPDX-License-Identifier: Apache-2.0
// Random numbers as a hash of seed, stream, sample and place: the same on every device and for
// every batch. SplitMix64 over whole tensors.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>

#include <cstdint>
#include <numbers>

namespace foci::attack {

/// i64 as unsigned bits, mixed.
inline at::Tensor mixed(at::Tensor z) {
  const auto down = [](const at::Tensor& x, int by) {
    return at::bitwise_right_shift(x, by).bitwise_and_((std::int64_t{1} << (64 - by)) - 1);
  };
  z = z.bitwise_xor(down(z, 30)).mul_(std::int64_t(0xbf58476d1ce4e5b9u));
  z = z.bitwise_xor_(down(z, 27)).mul_(std::int64_t(0x94d049bb133111ebu));
  return z.bitwise_xor_(down(z, 31));
}

inline std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

inline constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;

/// One kind of draw of one attack.
struct Stream {
  std::uint64_t key;
  Stream next(std::uint64_t index) const { return {mixed(key + golden * (index + 1))}; }
  /// In [0, 1), for all samples the same.
  double uniform(std::uint64_t index) const { return double(next(index).key >> 11) * 0x1p-53; }
  /// In [0, count).
  std::int64_t below(std::uint64_t index, std::int64_t count) const {
    return std::int64_t(uniform(index) * double(count));
  }
};

/// (B,count) in [0, 1) with 24 bits; samples (B) i64.
inline at::Tensor uniform(const Stream& stream, const at::Tensor& samples, std::int64_t count) {
  const at::Tensor row = mixed(samples * std::int64_t(golden) + std::int64_t(stream.key));
  const at::Tensor place = at::arange(count, samples.options()) * std::int64_t(golden);
  const at::Tensor bits = mixed(row.unsqueeze(1) + place.unsqueeze(0));
  return at::bitwise_right_shift(bits, 40).bitwise_and_(0xffffff).to(at::kFloat).mul_(0x1p-24);
}

/// (B,count) of -1 and 1.
inline at::Tensor signs(const Stream& stream, const at::Tensor& samples, std::int64_t count) {
  return uniform(stream, samples, count).lt(0.5).to(at::kFloat).mul_(2).sub_(1);
}

inline at::Tensor normal(const Stream& stream, const at::Tensor& samples, std::int64_t count) {
  const at::Tensor radius =
      uniform(stream.next(0), samples, count).add_(0x1p-25).log_().mul_(-2).sqrt_();
  return radius.mul_(uniform(stream.next(1), samples, count).mul_(2 * std::numbers::pi).cos_());
}

}  // namespace foci::attack
