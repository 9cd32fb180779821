// SPDX-License-Identifier: Apache-2.0
// Softmax over folded lines in plain loops over double, both ways: a pass that rounds nothing, for
// tests of what comes before and after it.
#pragma once

#include "cuda/passes.cuh"

#include <cmath>
#include <vector>

namespace foci::cuda {

/// One query's way through: its visible keys, their weights.
struct LoopRow {
  std::vector<int> keys;
  std::vector<double> a;
};

inline double score(const Folded& f, const Place& at, int D, int h, int g, int i, int j) {
  double sum = 0;
  for (int d = 0; d < D; ++d) {
    const double q = f.q.load(at.b, h, at.q0 + i, d), k = f.k.load(at.b, g, at.k0 + j, d);
    if (f.score == Score::product) {
      sum += q * k;
    } else {
      const double m = f.m ? f.m.load(at.b, h, at.q0 + i, d) : 1.0f;
      sum += -0.5 * m * (q - k) * (q - k);
    }
  }
  const double b = f.key_bias ? f.key_bias.load(at.b, f.key_head_bias ? g : h, at.k0 + j) : 0.0f;
  return double(f.scale) * sum + b;
}

inline LoopRow row_of(const Shape& shape, const Folded& f, const Place& at, int h, int i) {
  LoopRow row;
  double most = -INFINITY, sum = 0;
  for (int j = 0; j < shape.reach(at, i); ++j) {
    if (f.key_mask &&
        !static_cast<const std::uint8_t*>(f.key_mask.data)[f.key_mask.offset(at.b, at.k0 + j)])
      continue;
    row.keys.push_back(j);
    row.a.push_back(score(f, at, shape.D, h, shape.key_head(h), i, j));
    most = std::max(most, row.a.back());
  }
  for (double& a : row.a) sum += a = std::exp(a - most);
  for (double& a : row.a) a /= sum;
  return row;
}

template <class Each>
void each_row(const Shape& shape, const Folded& f, Each&& each) {
  for (int s = 0; s < shape.sequences; ++s) {
    const Place at = shape.place(s);
    for (int h = 0; h < shape.H; ++h) {
      for (int i = 0; i < at.N; ++i) each(at, h, i, row_of(shape, f, at, h, i));
    }
  }
}

inline void loops_forward(const Shape& shape, const Folded& f, const Field& o) {
  each_row(shape, f, [&](const Place& at, int h, int i, const LoopRow& row) {
    for (int e = 0; e < shape.E; ++e) {
      double sum = 0;
      for (std::size_t n = 0; n < row.keys.size(); ++n)
        sum += row.a[n] * double(f.v.load(at.b, shape.key_head(h), at.k0 + row.keys[n], e));
      o.store(float(sum), at.b, h, at.q0 + i, e);
    }
  });
}

/// Sums in double of what goes to a Field (batches, heads, tokens, width).
class LoopSums {
 public:
  LoopSums(int heads, int tokens, int width) : heads_(heads), tokens_(tokens), width_(width) {}
  double& at(int b, int h, int t, int d) {
    const std::size_t place = ((std::size_t(b) * heads_ + h) * tokens_ + t) * width_ + d;
    if (place >= sums_.size()) sums_.resize(place + 1);
    return sums_[place];
  }
  void store(const Field& to, int batches) {
    for (int b = 0; b < batches && to; ++b) {
      for (int h = 0; h < heads_; ++h) {
        for (int t = 0; t < tokens_; ++t) {
          for (int d = 0; d < width_; ++d) to.store(float(at(b, h, t, d)), b, h, t, d);
        }
      }
    }
  }

 private:
  int heads_, tokens_, width_;
  std::vector<double> sums_;
};

inline void loops_backward(const Shape& shape, const Folded& f, const Field& d_o, const Sinks& to) {
  const int D = shape.D, E = shape.E;
  LoopSums dq(shape.H, shape.N, D), dm(shape.H, shape.N, D), dk(shape.G, shape.M, D),
      dv(shape.G, shape.M, E), db(f.key_head_bias ? shape.G : shape.H, shape.M, 1);
  each_row(shape, f, [&](const Place& at, int h, int i, const LoopRow& row) {
    const int g = shape.key_head(h), t = at.q0 + i;
    std::vector<double> da(row.keys.size());
    double delta = 0;
    for (std::size_t n = 0; n < da.size(); ++n) {
      for (int e = 0; e < E; ++e) {
        const double back = d_o.load(at.b, h, t, e);
        da[n] += back * double(f.v.load(at.b, g, at.k0 + row.keys[n], e));
        dv.at(at.b, g, at.k0 + row.keys[n], e) += row.a[n] * back;
      }
      delta += row.a[n] * da[n];
    }
    for (std::size_t n = 0; n < da.size(); ++n) {
      const int key = at.k0 + row.keys[n];
      const double ds = row.a[n] * (da[n] - delta), c = double(f.scale);
      db.at(at.b, f.key_head_bias ? g : h, key, 0) += ds;
      for (int d = 0; d < D; ++d) {
        const double q = f.q.load(at.b, h, t, d), k = f.k.load(at.b, g, key, d);
        if (f.score == Score::product) {
          dq.at(at.b, h, t, d) += c * ds * k;
          dk.at(at.b, g, key, d) += c * ds * q;
          continue;
        }
        const double m = f.m ? f.m.load(at.b, h, t, d) : 1.0f;
        dq.at(at.b, h, t, d) -= c * ds * m * (q - k);
        dk.at(at.b, g, key, d) += c * ds * m * (q - k);
        dm.at(at.b, h, t, d) -= 0.5 * c * ds * (q - k) * (q - k);
      }
    }
  });
  const int batches = shape.q_offsets ? 1 : shape.sequences;
  dq.store(to.dq, batches);
  dk.store(to.dk, batches);
  dv.store(to.dv, batches);
  dm.store(to.dm, batches);
  for (int b = 0; b < batches && to.dkey_bias; ++b) {
    for (int h = 0; h < (f.key_head_bias ? shape.G : shape.H); ++h) {
      for (int j = 0; j < shape.M; ++j) to.dkey_bias.store(float(db.at(b, h, j, 0)), b, h, j);
    }
  }
}

}  // namespace foci::cuda
