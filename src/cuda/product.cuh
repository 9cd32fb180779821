// SPDX-License-Identifier: Apache-2.0
// A matrix product by one block: a tile of 64 by 64 sums, 4 by 4 a thread, over factors that come
// from anywhere. Sums are float or double.
#pragma once

#include "cuda/words.cuh"

namespace foci::cuda {

inline constexpr int product_side = 64;      // rows and columns of a block's tile
inline constexpr int product_threads = 256;  // of a block
inline constexpr int product_depth = 16;     // taken at a time
inline constexpr int product_own = 4;        // rows and columns of a thread

/// Which index of a factor neighbouring threads read along.
enum class Along { depth, side };

/// The factors on their way, in shared memory.
template <class T>
struct ProductRoom {
  alignas(16) T a[product_depth][product_side + product_own];
  alignas(16) T b[product_depth][product_side + product_own];
};

/// The sums of one thread.
template <class T>
struct ProductTile {
  T sum[product_own][product_own] = {};

  static FOCI_DEVICE int row(int i) {
    return int(threadIdx.x) / (product_side / product_own) * product_own + i;
  }
  static FOCI_DEVICE int column(int j) {
    return int(threadIdx.x) % (product_side / product_own) * product_own + j;
  }

  /// sum[row][column] += sum over k in [begin, end) of a(row, k) b(column, k). Rows and columns
  /// that do not exist are for a and b to call 0.
  template <Along AlongA, Along AlongB, class A, class B>
  FOCI_DEVICE void add(ProductRoom<T>& room, int begin, int end, const A& a, const B& b) {
    for (int first = begin; first < end; first += product_depth) {
      load<AlongA>(room.a, first, end, a);
      load<AlongB>(room.b, first, end, b);
      __syncthreads();
      FOCI_UNROLL
      for (int k = 0; k < product_depth; ++k) multiply(room, k);
      __syncthreads();
    }
  }

  /// f(row, column, sum) of every sum of the thread.
  template <class F>
  FOCI_DEVICE void each(const F& f) const {
    FOCI_UNROLL
    for (int i = 0; i < product_own; ++i) {
      FOCI_UNROLL
      for (int j = 0; j < product_own; ++j) f(row(i), column(j), sum[i][j]);
    }
  }

 private:
  template <Along Order, class F>
  static FOCI_DEVICE void load(T (&to)[product_depth][product_side + product_own], int first,
                               int end, const F& from) {
    FOCI_UNROLL
    for (int at = int(threadIdx.x); at < product_depth * product_side; at += product_threads) {
      const int k = Order == Along::depth ? at % product_depth : at / product_side;
      const int i = Order == Along::depth ? at / product_depth : at % product_side;
      to[k][i] = first + k < end ? T(from(i, first + k)) : T(0);
    }
  }

  FOCI_DEVICE void multiply(const ProductRoom<T>& room, int k) {
    T a[product_own], b[product_own];
    FOCI_UNROLL
    for (int i = 0; i < product_own; ++i) {
      a[i] = room.a[k][row(i)];
      b[i] = room.b[k][column(i)];
    }
    FOCI_UNROLL
    for (int i = 0; i < product_own; ++i) {
      FOCI_UNROLL
      for (int j = 0; j < product_own; ++j) sum[i][j] += a[i] * b[j];
    }
  }
};

/// Tiles of 64 that cover n.
constexpr int product_tiles(int n) { return (n + product_side - 1) / product_side; }

}  // namespace foci::cuda
