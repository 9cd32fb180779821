// SPDX-License-Identifier: Apache-2.0
// The answer to a drawn problem by plain loops over the weightings of ref: in double what is right,
// in float what the naive formula gives.
#pragma once

#include "cuda/tile_case.hpp"
#include "ref/decay.hpp"
#include "ref/identity.hpp"
#include "ref/relu2.hpp"
#include "ref/softmax.hpp"
#include "ref/statistics.hpp"

#include <limits>
#include <map>
#include <string>

namespace foci::cuda::cases {

/// By name: o, lse, concentration, ..., dq, dk, dv, dm, dkey_bias.
using Answer = std::map<std::string, std::vector<double>>;

/// A drawn problem in numbers of type T.
template <class T>
class Loops {
 public:
  explicit Loops(const Drawn& of) : p_(of), c_(of.c) {
    const auto lines = [](const Tensor& tensor) {
      const auto wide = tensor ? tensor.values() : std::vector<double>();
      return std::vector<T>(wide.begin(), wide.end());
    };
    q_ = lines(of.q), k_ = lines(of.k), v_ = lines(of.v), m_ = lines(of.m);
    d_o_ = lines(of.d_o), bias_ = lines(of.bias);
    dq_.resize(q_.size()), dk_.resize(k_.size()), dv_.resize(v_.size()), dm_.resize(m_.size());
    dbias_.resize(bias_.size()), o_.resize(d_o_.size());
    for (auto* line : {&s_, &a_, &da_, &ds_}) line->resize(std::size_t(of.M));
    const std::size_t rows = std::size_t(of.batch * c_.H * of.N);
    for (auto* fact : {&lse_, &concentration_, &effective_, &entropy_, &largest_})
      fact->resize(rows);
    weights.resize(rows);
    for (std::size_t s = 0; s < of.sequences.size(); ++s) {
      for (std::int64_t h = 0; h < c_.H; ++h) {
        for (std::int64_t i = 0; i < of.sequences[s].N; ++i) row(std::int64_t(s), h, i);
      }
    }
  }

  Answer answer() const {
    const auto wide = [](const std::vector<T>& x) {
      return std::vector<double>(x.begin(), x.end());
    };
    Answer all = {{"o", wide(o_)},   {"dq", wide(dq_)}, {"dk", wide(dk_)},
                  {"dv", wide(dv_)}, {"dm", wide(dm_)}, {"dkey_bias", wide(dbias_)}};
    all["concentration"] = wide(concentration_);
    all["effective_keys"] = wide(effective_);
    all["largest"] = wide(largest_);
    if (p_.how.weigh.kind == Kind::softmax) all["lse"] = wide(lse_);
    if (has_entropy(p_.how.weigh)) all["entropy"] = wide(entropy_);
    return all;
  }
  static bool has_entropy(const Weigh& how) {
    return how.kind == Kind::softmax || how.kind == Kind::decay || how.features;
  }

  std::vector<std::map<std::int64_t, double>> weights;  // |a| of each row by key

 private:
  void row(std::int64_t s, std::int64_t h, std::int64_t i) {
    const Stretch& at = p_.sequences[std::size_t(s)];
    const std::int64_t g = h / (c_.H / c_.G), reach = c_.causal ? at.M - at.N + i + 1 : at.M;
    const std::size_t line = std::size_t((at.b * c_.H + h) * p_.N + at.q0 + i);
    at_.clear();
    for (std::int64_t j = 0; j < reach; ++j) {
      if (p_.keeps(at, j)) at_.push_back(j);
    }
    chunk_ = p_.chunk_of(s, i);
    scale_ = T(p_.scale()) * T(p_.scales[std::size_t(s * c_.G + g)]);
    ref::Row<T> row;
    row.n = std::int64_t(at_.size());
    row.at = at_.data();
    row.s = s_.data(), row.a = a_.data(), row.da = da_.data(), row.ds = ds_.data();
    for (std::int64_t n = 0; n < row.n; ++n)
      s_[std::size_t(n)] = score(at, g, h, line, at_[std::size_t(n)]);
    forward(row);
    facts(row, line);
    T* o = &o_[line * std::size_t(c_.E)];
    const T* d_o = &d_o_[line * std::size_t(c_.E)];
    for (std::int64_t n = 0; n < row.n; ++n) {
      const std::size_t token = key(at, g, at_[std::size_t(n)]);
      ref::add(o, row.a[n], &v_[token * std::size_t(c_.E)], c_.E);
      row.da[n] = ref::dot(d_o, &v_[token * std::size_t(c_.E)], c_.E);
      ref::add(&dv_[token * std::size_t(c_.E)], row.a[n], d_o, c_.E);
    }
    backward(row);
    for (std::int64_t n = 0; n < row.n; ++n) pull(at, g, h, line, at_[std::size_t(n)], row.ds[n]);
  }

  std::size_t key(const Stretch& at, std::int64_t g, std::int64_t j) const {
    return std::size_t((at.b * c_.G + g) * p_.M + at.k0 + j);
  }
  const T* key_line(std::size_t token) const {
    return &k_[(std::size_t(chunk_ * p_.batch * c_.G * p_.M) + token) * std::size_t(c_.D)];
  }
  std::size_t bias_at(const Stretch& at, std::int64_t g, std::int64_t h, std::int64_t j) const {
    const bool heads = c_.biased == Biased::heads;
    return std::size_t((at.b * (heads ? c_.H : c_.G) + (heads ? h : g)) * p_.M + at.k0 + j);
  }

  T score(const Stretch& at, std::int64_t g, std::int64_t h, std::size_t line, std::int64_t j) {
    const T *q = &q_[line * std::size_t(c_.D)], *k = key_line(key(at, g, j));
    const T* m = m_.empty() ? nullptr : &m_[line * std::size_t(c_.D)];
    T sum = 0;
    for (std::int64_t d = 0; d < c_.D; ++d) {
      const T apart = q[d] - k[d];
      sum +=
          p_.how.score == Score::product ? scale_ * q[d] * k[d] : (m ? m[d] : T(1)) * apart * apart;
    }
    if (p_.how.score != Score::product) sum *= T(-0.5) * scale_;
    return c_.biased == Biased::no ? sum : sum + bias_[bias_at(at, g, h, j)];
  }

  void forward(ref::Row<T>& row) {
    const Weigh& how = p_.how.weigh;
    if (how.features) return features_forward(row);
    if (how.kind == Kind::softmax) ref::forward(Softmax{}, row);
    if (how.kind == Kind::relu2) ref::forward(Relu2{how.rescale}, row);
    if (how.kind == Kind::identity) ref::forward(Identity{how.rescale}, row);
    if (how.kind >= Kind::decay)
      ref::forward(Decay{p_.how.rate, how.kind == Kind::decay_content}, row);
  }
  void backward(ref::Row<T>& row) {
    const Weigh& how = p_.how.weigh;
    if (how.features) return features_backward(row);
    if (how.kind == Kind::softmax) ref::backward(Softmax{}, row);
    if (how.kind == Kind::relu2) ref::backward(Relu2{how.rescale}, row);
    if (how.kind == Kind::identity) ref::backward(Identity{how.rescale}, row);
    if (how.kind >= Kind::decay)
      ref::backward(Decay{p_.how.rate, how.kind == Kind::decay_content}, row);
  }
  /// As in ref/linear.hpp.
  void features_forward(ref::Row<T>& row) {
    sum_ = 0;
    for (std::int64_t n = 0; n < row.n; ++n) sum_ += row.s[n];
    for (std::int64_t n = 0; n < row.n; ++n) row.a[n] = sum_ == T(0) ? T(0) : row.s[n] / sum_;
  }
  void features_backward(ref::Row<T>& row) {
    const T mean = ref::dot(row.a, row.da, row.n);
    for (std::int64_t n = 0; n < row.n; ++n)
      row.ds[n] = sum_ == T(0) ? T(0) : (row.da[n] - mean) / sum_;
  }

  void facts(const ref::Row<T>& row, std::size_t line) {
    const ref::Statistics<T> of = ref::statistics(row);
    lse_[line] = row.n == 0 ? -std::numeric_limits<T>::infinity() : row.lse;
    concentration_[line] = of.concentration;
    effective_[line] = of.effective_keys;
    entropy_[line] = of.entropy;
    largest_[line] = of.largest;
    for (std::int64_t n = 0; n < row.n; ++n) weights[line][row.at[n]] = std::abs(double(row.a[n]));
  }

  void pull(const Stretch& at, std::int64_t g, std::int64_t h, std::size_t line, std::int64_t j,
            T ds) {
    if (c_.biased != Biased::no) dbias_[bias_at(at, g, h, j)] += ds;
    const T *q = &q_[line * std::size_t(c_.D)], *k = key_line(key(at, g, j));
    T* dq = &dq_[line * std::size_t(c_.D)];
    T* dk = &dk_[std::size_t(k - k_.data())];
    const std::size_t row = line * std::size_t(c_.D);
    for (std::int64_t d = 0; d < c_.D; ++d) {
      if (p_.how.score == Score::product) {
        dq[d] += scale_ * ds * k[d];
        dk[d] += ds * (scale_ * q[d]);
        continue;
      }
      const T apart = q[d] - k[d], by = m_.empty() ? T(1) : m_[row + std::size_t(d)];
      dq[d] -= scale_ * by * ds * apart;
      dk[d] += scale_ * by * ds * apart;
      if (!m_.empty()) dm_[row + std::size_t(d)] -= T(0.5) * scale_ * ds * apart * apart;
    }
  }

  const Drawn& p_;
  const Case& c_;
  std::vector<T> q_, k_, v_, m_, d_o_, bias_;
  std::vector<T> o_, dq_, dk_, dv_, dm_, dbias_;
  std::vector<T> lse_, concentration_, effective_, entropy_, largest_;
  std::vector<T> s_, a_, da_, ds_;
  std::vector<std::int64_t> at_;
  std::int64_t chunk_ = 0;
  T scale_ = 1, sum_ = 0;
};

}  // namespace foci::cuda::cases
