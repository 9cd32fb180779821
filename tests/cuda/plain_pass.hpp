// SPDX-License-Identifier: Apache-2.0
// A pass over queries and keys by plain loops in double on host memory, as Folded, Saved and Sinks
// describe it: softmax, or scores as they are. For tests of what comes before and after a pass.
#pragma once

#include "cuda/passes.cuh"

#include <cmath>
#include <map>
#include <vector>

namespace foci::cuda {

class PlainPass {
 public:
  PlainPass(const Shape& shape, const Folded& folded, Kind kind)
      : shape_(shape), f_(folded), kind_(kind) {}

  /// o, and what belongs to d_o; queries of this wave alone.
  void run(const Field& o, const Field& d_o, const Sinks& to) {
    clear_keys(to);
    for (int s = 0; s < shape_.sequences; ++s) {
      const Place at = shape_.place(s);
      for (int h = 0; h < shape_.H; ++h) {
        if (!serves(s, h)) continue;
        for (int i = 0; i < at.N; ++i) {
          const int chunk = chunk_of(s, i);
          if (chunk >= 0) row(s, at, h, i, chunk, o, d_o, to);
        }
      }
    }
    store(to.dk, dk_, false);
    store(to.dv, dv_, f_.spans != nullptr);
    store(to.dkey_bias, dkey_bias_, f_.spans != nullptr);
  }

 private:
  /// Products are worked on in the heads that by_mma says, everything else in the others.
  bool serves(int s, int h) const {
    if (!f_.by_mma) return true;
    return (f_.by_mma[s * shape_.G + shape_.key_head(h)] != 0) == (f_.score == Score::product);
  }

  /// Of this wave, -1 where it is none.
  int chunk_of(int s, int i) const {
    if (!f_.spans) return 0;
    const int* span = f_.spans + s * (f_.most_chunks + 1) + f_.first_chunk;
    for (int c = 0; c < f_.chunks; ++c) {
      if (span[c] <= i && i < span[c + 1]) return c;
    }
    return -1;
  }
  std::int64_t key_line(const Field& of, int chunk, const Place& at, int g, int j) const {
    return f_.spans ? of.offset(chunk, at.b, g, at.k0 + j) : of.offset(at.b, g, at.k0 + j);
  }
  static std::int64_t column(const Field& of, bool chunked) { return of.strides[chunked ? 4 : 3]; }

  /// Every key has a sum, if only 0.
  void clear_keys(const Sinks& to) {
    for (int s = 0; s < shape_.sequences; ++s) {
      const Place at = shape_.place(s);
      for (int h = 0; h < shape_.H; ++h) {
        if (!serves(s, h)) continue;
        for (int j = 0; j < at.M; ++j) clear_key(to, at, h, shape_.key_head(h), j);
      }
    }
  }
  void clear_key(const Sinks& to, const Place& at, int h, int g, int j) {
    if (to.dkey_bias) dkey_bias_[bias_at(to.dkey_bias, at, h, j)] = 0;
    for (int chunk = 0; chunk < (f_.spans ? f_.chunks : 1) && to.dk; ++chunk) {
      for (int d = 0; d < shape_.D; ++d)
        dk_[key_line(to.dk, chunk, at, g, j) + d * column(to.dk, f_.spans)] = 0;
    }
    for (int e = 0; e < shape_.E && to.dv; ++e) dv_[to.dv.offset(at.b, g, at.k0 + j, e)] = 0;
  }
  std::int64_t bias_at(const Field& of, const Place& at, int h, int j) const {
    return of.offset(at.b, f_.key_head_bias ? shape_.key_head(h) : h, at.k0 + j);
  }
  using Sums = std::map<std::int64_t, double>;  // by where they go
  static void store(const Field& to, const Sums& sums, bool adds) {
    for (const auto& [at, sum] : sums)
      to.store_at(at, float(sum + (adds ? double(to.load_at(at)) : 0.0)));
  }

  void row(int s, const Place& at, int h, int i, int chunk, const Field& o, const Field& d_o,
           const Sinks& to) {
    const int g = shape_.key_head(h), D = shape_.D, E = shape_.E;
    const double c = double(f_.scale) * (f_.scales ? double(f_.scales[s * shape_.G + g]) : 1.0);
    std::vector<int> seen;
    std::vector<double> a;
    double most = -INFINITY, sum = 0, delta = 0;
    for (int j = 0; j < shape_.reach(at, i); ++j) {
      if (f_.key_mask &&
          !static_cast<const std::uint8_t*>(f_.key_mask.data)[f_.key_mask.offset(at.b, at.k0 + j)])
        continue;
      double score = 0;
      for (int d = 0; d < D; ++d) {
        score +=
            c * (f_.score == Score::product ? both(at, h, g, i, j, d)
                                            : -0.5 * std::pow(gap(at, h, g, i, j, chunk, d), 2));
      }
      if (f_.key_bias) score += double(f_.key_bias.load(at.b, f_.key_head_bias ? g : h, at.k0 + j));
      seen.push_back(j), a.push_back(score);
      most = std::max(most, score);
    }
    for (double& x : a) sum += x = kind_ == Kind::softmax ? std::exp(x - most) : x;
    for (double& x : a) x /= kind_ == Kind::softmax ? sum : 1.0;
    std::vector<double> da(a.size());
    for (int e = 0; e < E; ++e) {
      double line = 0;
      for (std::size_t n = 0; n < a.size(); ++n) {
        const double v = double(f_.v.load(at.b, g, at.k0 + seen[n], e));
        line += a[n] * v;
        da[n] += v * double(d_o.load(at.b, h, at.q0 + i, e));
      }
      if (o) o.store(float(line), at.b, h, at.q0 + i, e);
    }
    for (std::size_t n = 0; n < a.size(); ++n) delta += a[n] * da[n];
    std::vector<double> dq(std::size_t(D), 0.0);
    for (std::size_t n = 0; n < a.size(); ++n) {
      const double ds = kind_ == Kind::softmax ? a[n] * (da[n] - delta) : da[n];
      pull(at, h, i, chunk, seen[n], a[n], ds, c, dq, d_o, to);
    }
    for (int d = 0; d < D && to.dq; ++d)
      to.dq.store(float(dq[std::size_t(d)]), at.b, h, at.q0 + i, d);
  }

  double query(const Place& at, int h, int i, int d) const {
    return double(f_.q.load(at.b, h, at.q0 + i, d));
  }
  double both(const Place& at, int h, int g, int i, int j, int d) const {
    return query(at, h, i, d) * double(f_.k.load(at.b, g, at.k0 + j, d));
  }
  double gap(const Place& at, int h, int g, int i, int j, int chunk, int d) const {
    return double(f_.q.load(at.b, h, at.q0 + i, d)) -
           double(f_.k.load_at(key_line(f_.k, chunk, at, g, j) + d * column(f_.k, f_.spans)));
  }
  void pull(const Place& at, int h, int i, int chunk, int j, double a, double ds, double c,
            std::vector<double>& dq, const Field& d_o, const Sinks& to) {
    const int g = shape_.key_head(h);
    for (int d = 0; d < shape_.D && f_.score == Score::product; ++d) {
      dq[std::size_t(d)] += c * ds * double(f_.k.load(at.b, g, at.k0 + j, d));
      if (to.dk) dk_[to.dk.offset(at.b, g, at.k0 + j, d)] += c * ds * query(at, h, i, d);
    }
    for (int d = 0; d < shape_.D && f_.score != Score::product; ++d) {
      const double apart = c * ds * gap(at, h, g, i, j, chunk, d);
      dq[std::size_t(d)] -= apart;
      if (to.dk) dk_[key_line(to.dk, chunk, at, g, j) + d * column(to.dk, f_.spans)] += apart;
    }
    for (int e = 0; e < shape_.E && to.dv; ++e)
      dv_[to.dv.offset(at.b, g, at.k0 + j, e)] += a * double(d_o.load(at.b, h, at.q0 + i, e));
    if (to.dkey_bias) dkey_bias_[bias_at(to.dkey_bias, at, h, j)] += ds;
  }

  Shape shape_;
  Folded f_;
  Kind kind_;
  Sums dk_, dv_, dkey_bias_;
};

}  // namespace foci::cuda
