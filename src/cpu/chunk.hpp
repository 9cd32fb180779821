// SPDX-License-Identifier: Apache-2.0
// What the instruction-set objects offer to linear, decay and identity beside plain products:
// sums over the keys a row sees, features, and the small loops over lines. A line is padded to
// `line_pad` floats, so that whole vectors may be read and written.
#pragma once

#include "cpu/matrix.hpp"

#include <cstdint>

namespace foci::cpu {

inline constexpr std::int64_t line_pad = 16;

/// phi of keys and queries; none where scores are plain products.
enum class Map { none, elu1, relu, exp };

/// c_i += sum over k in [begin_i, end_i) of a(i,k) b_k, in order of k; what lies outside is never
/// touched. a(i,k) stands at i * a_row + k * a_k. begin and end never fall; nullptr = 0 and K.
struct Ranged {
  float* c;
  const float* a;
  const float* b;
  std::int64_t rows, cols, K;  // cols: padded
  std::int64_t c_step, a_row, a_k, b_step;
  const std::int64_t* begin;
  const std::int64_t* end;
};

/// Lines of floats, `step` apart.
struct Lines {
  const float* at = nullptr;
  std::int64_t step = 0;
};

/// phi of (rows,D) lines, each padded with zeros to `step`; `from` may be where they go.
struct Mapped {
  float* to;
  Lines from;
  Map how;
  const float* peak;  // (D, padded) exp: e^(x - peak)
  std::int64_t rows, D, step;
};

/// The last steps of one query's gradient, in double: dq' = phi'(q') (dq - delta z) / sum for
/// linear, then dq = c m dq' and dm += c q dq'.
struct QueryGradient {
  float* dq;
  const float* phi;  // phi(q')
  const float* z;    // sum of phi(k) over the keys seen
  double delta, sum;
  Map map;
  const float* q;
  const float* m;  // nullptr = 1
  double c;
  double* dm;  // or nullptr
  std::int64_t D;
};

/// What a row's weights say about themselves.
struct Tally {
  double sizes = 0, squares = 0;  // sum |a| and sum a^2
  double entropy = 0;
  float largest = 0;
  std::int64_t largest_at = -1;
};

struct ChunkKernels {
  void (*ranged)(const Ranged& of);
  /// c = a b like a Product whose a_k is 1, each sum in double; cols padded.
  void (*exact_product)(const Product& of);

  void (*map)(const Mapped& of);
  // (rows,D) lines, `step` floats apart; what lies past D becomes 0.
  /// e^(q + peak) over the row's largest such number
  void (*exp_queries)(float* lines, const float* peak, std::int64_t rows, std::int64_t D,
                      std::int64_t step);

  void (*finish_query)(const QueryGradient& of);

  // One line of `count` floats, padded.
  /// d *= the slope of phi where phi has the value `phi`
  void (*slope)(float* d, const float* phi, Map how, std::int64_t count);
  /// top = max(top, x)
  void (*raise)(float* top, const float* x, std::int64_t count);
  /// whether any x is more than e^16 above its peak
  bool (*outgrown)(const float* x, const float* peak, std::int64_t count);
  /// to = e^(x - y)
  void (*exp_between)(float* to, const float* x, const float* y, std::int64_t count);
  void (*scale)(float* x, float by, std::int64_t count);
  void (*divide)(float* x, float by, std::int64_t count);
  /// to = by x + y
  void (*blend)(float* to, float by, const float* x, const float* y, std::int64_t count);

  // `count` floats exactly.
  double (*dot)(const float* x, const float* y, std::int64_t count);
  double (*sum)(const float* x, std::int64_t count);
  /// x -= y, y in more bits than a float has
  void (*subtract)(float* x, double y, std::int64_t count);
  /// x = (x + bias) by; either may be nullptr
  void (*weigh)(float* x, const float* bias, const float* by, std::int64_t count);
  /// Adds `count` weights of keys from `key` on; x is used up. Entropy where `sums_to_one`.
  void (*tally)(Tally& to, float* x, std::int64_t count, std::int64_t key, bool sums_to_one);
};

namespace portable {
extern const ChunkKernels chunk_kernels;
}
namespace avx2 {
extern const ChunkKernels chunk_kernels;
}
namespace avx512 {
extern const ChunkKernels chunk_kernels;
}

}  // namespace foci::cpu
