// SPDX-License-Identifier: Apache-2.0
// Products of row-major matrices in register tiles, of floats or of doubles. An entry of c is one
// chain of fused steps over k in order, wherever its tile lies, so its bits do not depend on the
// sizes beside it. Included inside the namespace of one instruction set.

/// Steps over k between two visits of c: a panel of b, two vectors wide, stays in the nearest
/// cache.
static constexpr long product_depth = 192;

FOCI_INLINE constexpr int lanes_of(const float*) { return lanes; }
FOCI_INLINE constexpr int lanes_of(const double*) { return wide_lanes; }

/// c = or += a b for Rows rows and Vectors whole vectors of columns. Three rows share a pointer, so
/// that pointers and steps fit the registers.
template <class T, int Rows, int Vectors>
static void product_tile(const ProductOf<T>& of) {
  constexpr int width = lanes_of(static_cast<const T*>(nullptr)), shared = (Rows + 2) / 3;
  using X = decltype(load(static_cast<const T*>(nullptr)));
  X c[Rows][Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j)
      c[i][j] = of.add ? load(of.c + i * of.c_step + j * width) : all(T(0));
  }
  const T* b = of.b;
  const T* a[shared];
#pragma GCC unroll 16
  for (int i = 0; i < shared; ++i) a[i] = of.a + 3 * i * of.a_row;
  const long row = of.a_row, step = of.a_k, b_step = of.b_step;
#pragma GCC unroll 2
  for (long k = of.K; k > 0; --k) {
    X line[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) line[j] = load(b + j * width);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const X x = all(a[i / 3] + i % 3 * row);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) c[i][j] = fma(x, line[j], c[i][j]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < shared; ++i) a[i] += step;
    b += b_step;
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) store(of.c + i * of.c_step + j * width, c[i][j]);
  }
}

template <class T>
using ProductTile = void (*)(const ProductOf<T>&);

template <class T, int Vectors, int Most = tile_rows>
static ProductTile<T> product_tile_of(long rows) {
  if constexpr (Most > 1) {
    if (rows < Most) return product_tile_of<T, Vectors, Most - 1>(rows);
  }
  return product_tile<T, Most, Vectors>;
}

/// All rows of one panel of columns, in tiles of even height.
template <class T, int Vectors>
static void product_panel(const ProductOf<T>& of) {
  const long tiles = (of.rows + tile_rows - 1) / tile_rows;
  ProductOf<T> part = of;
  for (long tile = 0, row = 0; tile < tiles; ++tile) {
    part.rows = (of.rows - row + tiles - tile - 1) / (tiles - tile);
    part.c = of.c + row * of.c_step;
    part.a = of.a + row * of.a_row;
    product_tile_of<T, Vectors>(part.rows)(part);
    row += part.rows;
  }
}

/// The last columns, fewer than two vectors: b and c through copies padded with zeros.
template <class T, int Vectors>
static void product_rest(const ProductOf<T>& of) {
  constexpr long width = Vectors * lanes_of(static_cast<const T*>(nullptr));
  alignas(64) T b[product_depth * width];
  alignas(64) T c[tile_rows * width];
  for (long k = 0; k < of.K; ++k) {
    for (long x = 0; x < width; ++x)
      b[k * width + x] = x < of.cols ? of.b[k * of.b_step + x] : T(0);
  }
  ProductOf<T> part = of;
  part.b = b;
  part.b_step = part.c_step = width;
  part.c = c;
  for (long row = 0; row < of.rows; row += tile_rows) {
    part.rows = of.rows - row < tile_rows ? of.rows - row : tile_rows;
    part.a = of.a + row * of.a_row;
    T* to = of.c + row * of.c_step;
    for (long i = 0; i < part.rows && of.add; ++i) {
      for (long x = 0; x < width; ++x)
        c[i * width + x] = x < of.cols ? to[i * of.c_step + x] : T(0);
    }
    product_tile_of<T, Vectors>(part.rows)(part);
    for (long i = 0; i < part.rows; ++i) {
      for (long x = 0; x < of.cols; ++x) to[i * of.c_step + x] = c[i * width + x];
    }
  }
}

/// One stretch of at most product_depth steps. Few rows take more columns at a time.
template <class T>
static void product_stretch(const ProductOf<T>& of) {
  constexpr long width = lanes_of(static_cast<const T*>(nullptr));
  ProductOf<T> part = of;
  long x = 0;
  const auto next = [&](long columns) {
    part.c = of.c + x;
    part.b = of.b + x;
    part.cols = columns;
    x += columns;
  };
  while (of.rows <= 2 && of.cols - x >= 4 * width) {
    next(4 * width);
    (of.rows == 1 ? product_tile<T, 1, 4> : product_tile<T, 2, 4>)(part);
  }
  while (of.cols - x >= 2 * width) {
    next(2 * width);
    product_panel<T, 2>(part);
  }
  const long rest = of.cols - x;
  if (rest == 0) return;
  next(rest);
  if (rest == width) return product_panel<T, 1>(part);
  if (rest < width) return product_rest<T, 1>(part);
  product_rest<T, 2>(part);
}

template <class T>
static void multiply_matrices(const ProductOf<T>& of) {
  if (of.rows <= 0 || of.cols <= 0) return;
  ProductOf<T> part = of;
  for (long k = 0; k == 0 || k < of.K; k += product_depth) {
    part.K = of.K - k < product_depth ? of.K - k : product_depth;
    part.a = of.a + k * of.a_k;
    part.b = of.b + k * of.b_step;
    part.add = of.add || k > 0;
    product_stretch(part);
  }
}
