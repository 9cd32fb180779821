// SPDX-License-Identifier: Apache-2.0
// A drawn problem given to the tile passes, and the tolerance rule between their answer and loops:
//   max|ours - exact| <= 2 max|naive - exact| + eps max|exact|
// with errors in units of max|exact|, the largest over all draws that are judged together.
#pragma once

#include "cuda/tile_loops.hpp"

#include <gtest/gtest.h>

namespace foci::cuda::cases {

/// Tensors that a pass writes, full of NaN, and views of them as the case wants them to lie.
class Written {
 public:
  explicit Written(const Drawn& of) : p_(of) {}

  Field make(const std::string& name, const foci::Shape& shape, DType dtype = DType::f32) {
    const bool inside = p_.c.memory == Memory::heads_inside && shape.size() == 4;
    foci::Shape lying = shape;
    if (inside) std::swap(lying[1], lying[2]);
    Tensor& tensor = tensors_[name] = Tensor(dtype, lying);
    std::memset(tensor.view().data, 0xff,
                std::size_t(tensor.view().count()) * size_of(tensor.view().dtype));
    views_[name] = inside ? tensor.view().swapped(1, 2) : tensor.view();
    return Field(views_[name]);
  }
  void clear(const std::string& name) {
    const View& view = tensors_[name];
    std::memset(view.data, 0, std::size_t(view.count()) * size_of(view.dtype));
  }
  const View& operator[](const std::string& name) const { return views_.at(name); }
  std::vector<double> values(const std::string& name) const {
    return Tensor::copy(views_.at(name), DType::f64).values();
  }
  bool has(const std::string& name) const { return views_.contains(name); }

 private:
  const Drawn& p_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, View> views_;
};

/// One problem, both ways.
class Ours {
 public:
  Written written;

  explicit Ours(const Drawn& of) : written(of), p_(of), c_(of.c) {
    shape_ = {int(of.sequences.size()),
              int(c_.H),
              int(c_.G),
              int(of.N),
              int(of.M),
              int(c_.D),
              int(c_.E),
              int(c_.N),
              int(c_.M),
              int(c_.causal),
              offsets(of.q_offsets),
              offsets(of.k_offsets)};
    folded_.score = of.how.score;
    folded_.scale = float(of.scale());
    folded_.scales = of.scales.data();
    folded_.q = laid("q", of.q);
    folded_.v = laid("v", of.v);
    if (of.m) folded_.m = laid("m", of.m);
    if (of.bias) folded_.key_bias = Field(of.bias.view());
    if (of.mask) folded_.key_mask = Field(of.mask.view());
    folded_.key_head_bias = c_.biased == Biased::key_heads;
  }

  void forward(bool statistics) {
    const foci::Shape rows = {p_.batch, c_.H, p_.N};
    Rows to;
    to.o = written.make("o", {p_.batch, c_.H, p_.N, c_.E}, c_.dtype);
    const bool softmax = p_.how.weigh.kind == Kind::softmax;
    if (softmax) to.lse = written.make("lse", rows);
    if (!softmax) to.by = static_cast<float*>(written.make("by", rows).data);
    if (statistics) {
      to.concentration = written.make("concentration", rows);
      to.effective_keys = written.make("effective_keys", rows);
      to.largest = written.make("largest", rows);
      to.largest_at = written.make("largest_at", rows, DType::i64);
      if (Loops<double>::has_entropy(p_.how.weigh)) to.entropy = written.make("entropy", rows);
    }
    each_wave(
        [&](const Folded& folded) { tile_forward(shape_, folded, p_.how.weigh, to, nullptr); });
  }

  /// After forward().
  void backward() {
    Saved saved;
    Rows again;  // in float, whatever the case's type
    again.o = saved.o = written.make("saved", {p_.batch, c_.H, p_.N, c_.E});
    each_wave(
        [&](const Folded& folded) { tile_forward(shape_, folded, p_.how.weigh, again, nullptr); });
    saved.d_o = laid("d_o", p_.d_o);
    if (written.has("lse")) saved.lse = Field(written["lse"]);
    if (written.has("by")) saved.by = static_cast<float*>(written["by"].data);
    saved.delta = static_cast<float*>(written.make("delta", {p_.batch, c_.H, p_.N}).data);
    Sinks to;
    to.dq = written.make("dq", {p_.batch, c_.H, p_.N, c_.D}, c_.dtype);
    to.dv = written.make("dv", {p_.batch, c_.G, p_.M, c_.E}, c_.dtype);
    const View dk = dk_view();
    if (p_.m) to.dm = written.make("dm", {p_.batch, c_.H, p_.N, c_.D});
    if (p_.bias) {
      const View& bias = p_.bias;
      to.dkey_bias = written.make("dkey_bias", {bias.shape[0], bias.shape[1], bias.shape[2]});
    }
    if (c_.period) written.clear("dv");
    if (c_.period && p_.bias) written.clear("dkey_bias");
    each_wave([&](const Folded& folded) {
      to.dk = Field(of_wave(dk, folded));
      tile_backward(shape_, folded, p_.how.weigh, saved, to, nullptr);
    });
  }

 private:
  static const int* offsets(const std::vector<int>& all) {
    return all.empty() ? nullptr : all.data();
  }
  /// A copy as the case wants it to lie.
  Field laid(const std::string& name, const Tensor& tensor) {
    const View& from = tensor;
    const Field field = written.make(
        name, {from.shape[0], from.shape[1], from.shape[2], from.shape[3]}, from.dtype);
    const View& to = written[name];
    for (std::int64_t a = 0; a < from.shape[0]; ++a) {
      for (std::int64_t b = 0; b < from.shape[1]; ++b) {
        for (std::int64_t i = 0; i < from.shape[2]; ++i) {
          for (std::int64_t d = 0; d < from.shape[3]; ++d) {
            std::memcpy(
                to.at<std::byte>({}) + size_of(to.dtype) * std::size_t(place(to, a, b, i, d)),
                from.at<std::byte>({}) + size_of(to.dtype) * std::size_t(place(from, a, b, i, d)),
                size_of(to.dtype));
          }
        }
      }
    }
    return field;
  }
  static std::int64_t place(const View& view, std::int64_t a, std::int64_t b, std::int64_t i,
                            std::int64_t d) {
    return a * view.strides[0] + b * view.strides[1] + i * view.strides[2] + d * view.strides[3];
  }
  View dk_view() {
    const foci::Shape shape = {p_.chunks, p_.batch, c_.G, p_.M, c_.D};
    written.make("dk", shape, c_.dtype);
    return written["dk"];
  }
  /// The lines of a wave: (chunks,B,G,M,D), or (B,G,M,D) where there are no chunks.
  View of_wave(const View& all, const Folded& folded) const {
    if (c_.period) return all.sliced(0, folded.first_chunk, folded.first_chunk + folded.chunks);
    View one = all;
    one.rank = 4;
    for (int axis = 0; axis < 4; ++axis)
      one.shape[std::size_t(axis)] = all.shape[std::size_t(axis) + 1],
      one.strides[std::size_t(axis)] = all.strides[std::size_t(axis) + 1];
    return one;
  }
  template <class F>
  void each_wave(const F& f) {
    const std::int64_t each = c_.period ? 2 : 1;
    for (std::int64_t first = 0; first < p_.chunks; first += each) {
      folded_.first_chunk = int(first);
      folded_.chunks = int(std::min(each, p_.chunks - first));
      folded_.most_chunks = int(p_.chunks);
      folded_.spans = c_.period ? p_.spans.data() : nullptr;
      folded_.k = Field(of_wave(p_.k, folded_));
      f(folded_);
    }
  }

  const Drawn& p_;
  const Case& c_;
  cuda::Shape shape_;
  Folded folded_;
};

/// Errors of one tensor.
struct Compared {
  double error = 0, naive = 0, eps = 0;
  std::string worst;
};
using Comparison = std::map<std::string, Compared>;

inline double eps_of(DType dtype) {
  return dtype == DType::f32 ? 0x1p-23 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
}

/// Largest difference; NaN where only one is NaN.
inline double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double apart = std::abs(a[i] - b[i]);
    if (!(apart <= most)) most = apart;
  }
  return most;
}

inline std::string described(const Drawn& of) {
  const Case& c = of.c;
  std::string text = name_of(of.how.weigh.kind);
  for (const std::int64_t x :
       {std::int64_t(of.how.score), std::int64_t(of.how.weigh.rescale), c.B, c.H, c.G, c.N, c.M,
        c.D, c.E, std::int64_t(c.causal), std::int64_t(c.masked), std::int64_t(c.biased),
        std::int64_t(c.memory), std::int64_t(c.period)})
    text.append(" ").append(std::to_string(x));
  return text;
}

inline void expect_places(const Ours& ours, const Loops<double>& exact) {
  const auto places = ours.written.values("largest_at");
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& weights = exact.weights[i];
    if (weights.empty()) {
      EXPECT_EQ(places[i], -1);
      continue;
    }
    ASSERT_TRUE(weights.contains(std::int64_t(places[i])));
    double most = 0;
    for (const auto& [j, a] : weights) most = std::max(most, a);
    EXPECT_GE(weights.at(std::int64_t(places[i])), most * (1 - 1e-4));
  }
}

/// One draw more.
inline void compare(Comparison& to, const Drawn& drawn) {
  const Loops<double> exact(drawn);
  const Loops<float> naive(drawn);
  Ours ours(drawn), plain(drawn);
  ours.forward(true);
  plain.forward(false);
  EXPECT_EQ(farthest(ours.written.values("o"), plain.written.values("o")), 0)
      << "statistics change the output of " << described(drawn);
  ours.backward();
  expect_places(ours, exact);
  const Answer close = naive.answer();
  for (const auto& [name, right] : exact.answer()) {
    if (!ours.written.has(name)) continue;
    double largest = 0;
    for (const double x : right)
      largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    const double error = farthest(ours.written.values(name), right);
    const double near = farthest(close.at(name), right);
    const double eps = eps_of(ours.written[name].dtype);
    if (near > 1e-3 * largest) {  // what is 0 but for rounding
      EXPECT_LE(error, 1e-4) << name << " of " << described(drawn);
      continue;
    }
    if (largest == 0) {
      EXPECT_EQ(error, 0) << name << " of " << described(drawn);
      continue;
    }
    Compared& all = to[name];
    if (!(error / largest <= all.error)) {
      all.error = error / largest;
      all.worst = described(drawn);
    }
    all.naive = std::max(all.naive, near / largest);
    all.eps = std::max(all.eps, eps);
  }
}

inline void compare(Comparison& to, const Case& c, const Mechanism& how, std::uint64_t seed) {
  compare(to, Drawn(c, how, seed));
}

inline void expect_agreement(const Comparison& found) {
  for (const auto& [name, of] : found)
    EXPECT_LE(of.error, 2 * of.naive + of.eps) << name << " of " << of.worst;
}

}  // namespace foci::cuda::cases
