// SPDX-License-Identifier: Apache-2.0
// Softmax dot attention as a textbook has it. Keys and values are transposed once per head, so that
// every inner loop runs along memory and the compiler can use vectors: a fair peer, not a straw
// man.
#include "cli/naive.hpp"

#include <algorithm>
#include <cmath>

namespace foci::cli {
namespace {

/// to += factor * from
template <class T>
void add(T* to, T factor, const T* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

/// (rows, columns) -> (columns, rows)
template <class T>
void transpose(std::vector<T>& to, const T* from, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[j * rows + i] = from[i * columns + j];
  }
}

template <class T>
void softmax(T* row, std::int64_t count) {
  if (count == 0) return;
  const T most = *std::max_element(row, row + count);
  T sum = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    row[j] = std::exp(row[j] - most);
    sum += row[j];
  }
  for (std::int64_t j = 0; j < count; ++j) row[j] /= sum;
}

}  // namespace

template <class T>
NaiveAttention<T>::NaiveAttention(const Problem& problem, const Options& how, Executor& threads)
    : problem_(problem), threads_(threads), s_(problem.sizes()), causal_(how.causal) {
  rooms_.resize(std::size_t(threads.threads()));
  for (Room& room : rooms_) {
    for (auto* matrix : {&room.a, &room.da}) matrix->resize(std::size_t(s_.N * s_.M));
    room.kt.resize(std::size_t(s_.D * s_.M));
    room.vt.resize(std::size_t(s_.E * s_.M));
  }
  o_.resize(std::size_t(s_.B * s_.H * s_.N * s_.E));
  dq_.resize(std::size_t(s_.B * s_.H * s_.N * s_.D));
  dk_.resize(std::size_t(s_.B * s_.G * s_.M * s_.D));
  dv_.resize(std::size_t(s_.B * s_.G * s_.M * s_.E));
}

template <class T>
std::int64_t NaiveAttention<T>::sees(std::int64_t i) const {
  return causal_ ? std::clamp<std::int64_t>(i + s_.M - s_.N + 1, 0, s_.M) : s_.M;
}

/// a = softmax(c q k') of one query head.
template <class T>
void NaiveAttention<T>::weights(Room& room, std::int64_t b, std::int64_t h) const {
  const T* q = static_cast<const T*>(problem_.view("q").data) + (b * s_.H + h) * s_.N * s_.D;
  const T c = T(1 / std::sqrt(double(s_.D)));
  std::fill(room.a.begin(), room.a.end(), T(0));
  for (std::int64_t i = 0; i < s_.N; ++i) {
    T* row = &room.a[std::size_t(i * s_.M)];
    for (std::int64_t d = 0; d < s_.D; ++d)
      add(row, c * q[i * s_.D + d], &room.kt[d * s_.M], sees(i));
    softmax(row, sees(i));
  }
}

template <class T>
void NaiveAttention<T>::forward() {
  const T* k = static_cast<const T*>(problem_.view("k").data);
  const T* v = static_cast<const T*>(problem_.view("v").data);
  const std::int64_t shared = s_.H / s_.G;
  std::fill(o_.begin(), o_.end(), T(0));
  threads_.run(s_.B * s_.G, [&](std::int64_t group, int thread) {
    Room& room = rooms_[std::size_t(thread)];
    transpose(room.kt, k + group * s_.M * s_.D, s_.M, s_.D);
    for (std::int64_t r = 0; r < shared; ++r) {
      const std::int64_t b = group / s_.G, h = group % s_.G * shared + r;
      weights(room, b, h);
      for (std::int64_t i = 0; i < s_.N; ++i) {
        T* o = &o_[std::size_t(((b * s_.H + h) * s_.N + i) * s_.E)];
        for (std::int64_t j = 0; j < sees(i); ++j) {
          add(o, room.a[i * s_.M + j], v + (group * s_.M + j) * s_.E, s_.E);
        }
      }
    }
  });
}

/// From do to dq, dk, dv of one query head whose weights are in the room.
template <class T>
void NaiveAttention<T>::pull(Room& room, std::int64_t b, std::int64_t h) {
  const std::int64_t g = h * s_.G / s_.H, rows = (b * s_.H + h) * s_.N,
                     keys = (b * s_.G + g) * s_.M;
  const T* q = static_cast<const T*>(problem_.view("q").data) + rows * s_.D;
  const T* k = static_cast<const T*>(problem_.view("k").data) + keys * s_.D;
  const T* d_o = static_cast<const T*>(problem_.view("do").data) + rows * s_.E;
  const T c = T(1 / std::sqrt(double(s_.D)));
  std::fill(room.da.begin(), room.da.end(), T(0));
  for (std::int64_t i = 0; i < s_.N; ++i) {
    const T* a = &room.a[std::size_t(i * s_.M)];
    T* da = &room.da[std::size_t(i * s_.M)];
    const std::int64_t n = sees(i);
    for (std::int64_t e = 0; e < s_.E; ++e) add(da, d_o[i * s_.E + e], &room.vt[e * s_.M], n);
    T mean = 0;
    for (std::int64_t j = 0; j < n; ++j) mean += a[j] * da[j];
    for (std::int64_t j = 0; j < n; ++j) {
      const T ds = c * a[j] * (da[j] - mean);
      add(&dq_[std::size_t((rows + i) * s_.D)], ds, k + j * s_.D, s_.D);
      add(&dk_[std::size_t((keys + j) * s_.D)], ds, q + i * s_.D, s_.D);
      add(&dv_[std::size_t((keys + j) * s_.E)], a[j], d_o + i * s_.E, s_.E);
    }
  }
}

template <class T>
void NaiveAttention<T>::backward() {
  const T* k = static_cast<const T*>(problem_.view("k").data);
  const T* v = static_cast<const T*>(problem_.view("v").data);
  const std::int64_t shared = s_.H / s_.G;
  for (auto* gradient : {&dq_, &dk_, &dv_}) std::fill(gradient->begin(), gradient->end(), T(0));
  threads_.run(s_.B * s_.G, [&](std::int64_t group, int thread) {
    Room& room = rooms_[std::size_t(thread)];
    transpose(room.kt, k + group * s_.M * s_.D, s_.M, s_.D);
    transpose(room.vt, v + group * s_.M * s_.E, s_.M, s_.E);
    for (std::int64_t r = 0; r < shared; ++r) {
      const std::int64_t b = group / s_.G, h = group % s_.G * shared + r;
      weights(room, b, h);
      pull(room, b, h);
    }
  });
}

template class NaiveAttention<float>;
template class NaiveAttention<double>;

}  // namespace foci::cli
