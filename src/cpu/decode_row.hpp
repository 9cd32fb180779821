// SPDX-License-Identifier: Apache-2.0
// What the instruction-set objects offer to decoding: one token's query heads against the cache of
// their key head, in one sweep over its memory; weights and what they tell; running sums in place
// of a sweep. Cached lines keep the type of the tensors they came from; all sums are floats.
#pragma once

#include "cpu/kernels.hpp"

#include <cstdint>

namespace foci::cpu {

enum class Line { f32, bf16, f16 };
constexpr std::int64_t bytes_of(Line line) { return line == Line::f32 ? 4 : 2; }

/// s_rj = sum_d q_rd k_jd, or with w sum_d w_rd (q_rd - k_jd)^2; plus bias_rj. Summed up in T:
/// float where an error counts against the largest score, as in softmax; double where weights are
/// made of small scores too.
template <class T>
struct CachedScores {
  float* s;           // (R, step), written up to whole panels
  const T* q;         // (R, q_step)
  const T* w;         // (R, q_step) or nullptr
  const float* bias;  // (R, step) or nullptr
  const void* keys;   // panels [n/panel][D][panel]
  Line line;
  std::int64_t R, n, D, q_step, step;
};

/// o_re = sum_j x_rj v_je
struct CachedSum {
  float* o;            // (R, E)
  const float* x;      // (R, step)
  const void* values;  // (n, E), E whole vectors
  Line line;
  std::int64_t R, n, E, step;
};

/// state_d = fade state_d + k_d v, then o_r += sum_d q_rd state_d.
struct RunningSum {
  float* state;    // (rows, E), E whole vectors
  const float* k;  // (rows), or nullptr: nothing joins
  const float* v;  // (E)
  float fade;
  const float* q;  // (R, q_step)
  float* o;        // (R, E)
  std::int64_t R, rows, q_step, E;
};

/// A row of x = e^(s - top), top the largest score.
struct Exponentials {
  float top, sum;
  float squares, scored;  // sum x^2, sum (s - top) x; when asked
  std::int64_t at;        // the first key with the largest score; when asked
};

/// Of the |x| of a row.
struct Sizes {
  float largest;
  double sum, squares;  // in double no square leaves the range
};

enum class Phi { elu1, relu, exp };

struct DecodeKernels {
  std::int64_t lanes;
  bool keeps_narrow;  // whether lines of sixteen bits are best kept as they are, not as floats
  /// to = from; count whole vectors
  void (*widen)(float* to, const void* from, Line line, std::int64_t count);
  void (*score)(const CachedScores<float>& of);
  void (*score_wide)(const CachedScores<double>& of);
  void (*gather)(const CachedSum& of);
  /// Scores become e^(s - top); a row of nothing but -inf becomes 0, its top -inf.
  Exponentials (*exponentiate)(float* x, std::int64_t n, bool statistics);
  /// x_j *= e^(slope (last - at_j))
  void (*fade)(float* x, const std::int64_t* at, std::int64_t last, float slope, std::int64_t n);
  /// x = relu(x)^2
  void (*square_positive)(float* x, std::int64_t n);
  Sizes (*measure)(const float* x, std::int64_t n);
  /// x /= by
  void (*divide)(float* x, float by, std::int64_t n);
  /// to = phi(x); count whole vectors
  void (*features)(float* to, const float* x, Phi phi, std::int64_t count);
  void (*run)(const RunningSum& of);
  /// sum_d x_d y_d; count whole vectors
  float (*dot)(const float* x, const float* y, std::int64_t count);
};

namespace portable {
extern const DecodeKernels decode_kernels;
}
namespace avx2 {
extern const DecodeKernels decode_kernels;
}
namespace avx512 {
extern const DecodeKernels decode_kernels;
}

}  // namespace foci::cpu
