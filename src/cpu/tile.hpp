// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the kernels: a register tile multiplied with a packed panel, and exp of a
// vector. Included inside the namespace of one instruction set; nothing here is shared between
// them.

static constexpr long panel = 2 * lanes;

/// What is left of 64 rows or 128 by tiles is few: it has a tile of its own.
static constexpr int few_rows = 4;

static inline long padded(long x, long to) { return (x + to - 1) / to * to; }

/// (n,D) row-major -> the first n lines of column panels [D/panel][rows][panel], zero padded
static inline void pack_columns(float* to, const float* from, std::int64_t n, std::int64_t rows,
                                std::int64_t D) {
  for (long d = 0; d < D; d += panel) {
    const long width = D - d < panel ? D - d : panel;
    float* out = to + d * rows;
    for (long i = 0; i < n; ++i) {
      const float* line = from + i * D + d;
      float* to_line = out + i * panel;
      long x = 0;
      for (; x + lanes <= width; x += lanes) store(to_line + x, load(line + x));
      for (; x < width; ++x) to_line[x] = line[x];
      for (; x % lanes != 0; ++x) to_line[x] = 0;
      if (x < panel) store(to_line + x, all(0.0f));
    }
  }
}

/// c[i][j] += sum_k a(i,k) b(k,j): a at i*RowStep + k*KStep, b one line of vectors every b_step
/// floats.
template <int Rows, int Vectors, long RowStep, long KStep>
FOCI_INLINE void multiply(V (&c)[Rows][Vectors], const float* a, const float* b, long b_step,
                          long K) {
#pragma GCC unroll 4
  for (long k = 0; k < K; ++k) {
    V line[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) line[j] = load(b + j * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const V x = all(a + i * RowStep);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) c[i][j] = fma(x, line[j], c[i][j]);
    }
    a += KStep;
    b += b_step;
  }
}

/// tile (tile_rows, panel) += sum_k m(i,k) (q(i,k) - b(k,j))^2, m and q placed as a in multiply().
/// By differences: where q and b are near each other a product form would lose their digits.
template <long RowStep, long KStep>
static __attribute__((noinline)) void add_distances(float* tile, const float* q, const float* m,
                                                    const float* b, long K) {
  V c[tile_rows][2];
#pragma GCC unroll 32
  for (int t = 0; t < 2 * tile_rows; ++t) c[t / 2][t % 2] = load(tile + t * lanes);
  for (long k = 0; k < K; ++k, b += panel) {
    const V left = load(b), right = load(b + lanes);
#pragma GCC unroll 16
    for (int i = 0; i < tile_rows; ++i) {
      const V x = all(q + i * RowStep + k * KStep), by = all(m + i * RowStep + k * KStep);
      const V l = sub(x, left), r = sub(x, right);
      c[i][0] = fma(mul(by, l), l, c[i][0]);
      c[i][1] = fma(mul(by, r), r, c[i][1]);
    }
  }
#pragma GCC unroll 32
  for (int t = 0; t < 2 * tile_rows; ++t) store(tile + t * lanes, c[t / 2][t % 2]);
}

/// The same in double, for blocks of few keys: they are soon done, and average nothing out.
template <long RowStep, long KStep>
static __attribute__((noinline)) void add_distances_wide(float* tile, const float* q,
                                                         const float* m, const float* b, long K) {
  for (int i = 0; i < tile_rows; ++i) {
    double sum[panel];
    for (long j = 0; j < panel; ++j) sum[j] = double(tile[i * panel + j]);
    for (long k = 0; k < K; ++k) {
      const double x = double(q[i * RowStep + k * KStep]), by = double(m[i * RowStep + k * KStep]);
      for (long j = 0; j < panel; ++j) {
        const double apart = x - double(b[k * panel + j]);
        sum[j] += by * apart * apart;
      }
    }
    for (long j = 0; j < panel; ++j) tile[i * panel + j] = float(sum[j]);
  }
}

/// Constants read from memory: kept in registers the compiler would spill accumulators for them.
struct alignas(64) ExpTable {
  float line[13][16];
};
constexpr ExpTable make_exp_table() {
  // e^f = 1 + f + ... by degree 6 on |f| <= ln(2)/2: relative error 1.3e-8 before rounding, and e^0
  // is 1 exactly. Then what the names below say.
  const float value[13] = {1.0f,
                           1.0f,
                           0.49999994208942317f,
                           0.16666431257893544f,
                           0.041668002030842075f,
                           0.008374155619615277f,
                           0.0013843654843218244f,
                           -87.0f,
                           12582912.0f,
                           1.4426950408889634f,
                           -0.693359375f,
                           2.12194440e-4f,
                           16.0f};
  ExpTable table{};
  for (int i = 0; i < 13; ++i) {
    for (int j = 0; j < 16; ++j) table.line[i][j] = value[i];
  }
  return table;
}
static constexpr ExpTable exp_table = make_exp_table();
FOCI_INLINE const float* exp_constants() {
  const float* table = &exp_table.line[0][0];
  asm volatile("" : "+r"(table));
  return table;
}
enum : int {
  lowest_exponent = 7 * 16,
  rounding = 8 * 16,  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  log2_of_e = 9 * 16,
  minus_ln2_high = 10 * 16,  // few bits, so that a product with an integer is exact
  minus_ln2_low = 11 * 16,
  outgrown = 12 * 16  // how far scores may outgrow their maximum
};

/// e^x within 1.5 units in the last place, and 0 below x = -87; NaN stays NaN (max gives back its
/// second operand then). x must stay below 88.
FOCI_INLINE V exp(V score, const float* constants) {
  const V lowest = load(constants + lowest_exponent);
  const V x = max(lowest, score);
  const V magic = load(constants + rounding);
  const V t = fma(x, load(constants + log2_of_e), magic);
  const V n = sub(t, magic);
  V f = fma(n, load(constants + minus_ln2_high), x);
  f = fma(n, load(constants + minus_ln2_low), f);
  V p = load(constants + 6 * 16);
#pragma GCC unroll 8
  for (int i = 5; i >= 0; --i) p = fma(p, f, load(constants + i * 16));
  return scaled_unless_below(score, lowest, p, n, t);
}
