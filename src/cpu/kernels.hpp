// SPDX-License-Identifier: Apache-2.0
// What the instruction-set objects offer: packing, and one block of attention, forward and
// backward, over plain floats. Scores are s_ij = q_i . k_j + b_j + r_i; with m they are
// sum_d m_id (q_id - k_jd)^2 + b_j + r_i. No masks here: masked keys are left out when packing, and
// a row sees a prefix of what is left.
#pragma once

#include "cpu/chunk.hpp"
#include "cpu/jacobian_lines.hpp"
#include "cpu/matrix.hpp"

#include <cstdint>

namespace foci::cpu {

/// Query rows of a block, keys of a key block; multiples of every tile.
inline constexpr std::int64_t block_rows = 96;
inline constexpr std::int64_t block_keys = 192;
/// Row length of a tile of weights: a compile-time stride keeps addresses in the instructions.
inline constexpr std::int64_t weight_stride = block_keys + 16;

/// Keys that softmax_short() takes at once, at most.
inline constexpr std::int64_t short_keys = 256;

inline constexpr std::int64_t gradient_keys = 96;
inline constexpr std::int64_t gradient_stride = gradient_keys + 16;

/// What relu2 and identity divide a row by.
enum class Divisor { length, l1, l2, none };

/// Powers of the distance in position, for decay with content: x_ij = s_ij e^(slope (last_i -
/// at_j)).
struct Fading {
  float slope = 0;              // ln(rate) <= 0
  const float* at = nullptr;    // (n, padded to a panel) positions of the keys
  const float* last = nullptr;  // (rows) position of the last key each row sees
};

/// One query block against all keys. Weights a_ij = x_ij / by_i, o = sum_j a_ij v_j.
struct ForwardBlock {
  const float* q;            // (rows, D)
  const float* m;            // (rows, D) or nullptr
  const float* q_rest;       // (rows, D) what rounding took from q, for few keys, or nullptr
  const float* r;            // (rows)
  const std::int64_t* sees;  // (rows) keys seen, never fewer than the row before
  const float* keys;         // packed by pack_keys
  const float* values;       // packed by pack_columns with value_rows rows
  const float* bias;         // (n, padded to a panel); always there, padding far below
  bool biased;               // whether bias is more than padding
  bool causal;               // whether sees differs from n
  bool statistics;
  Divisor divisor;  // relu2 and identity
  Fading fading;    // decay with content
  float scale;      // of q . k: 1 except where a kernel takes q as it lies in memory
  bool split;       // whether q has more bits than the keys' type
  std::int64_t rows, n, D, E;
  std::int64_t value_rows;
  float* scratch;            // forward_scratch() floats
  float* o;                  // (rows, E)
  float* by;                 // (rows) softmax: lse (natural log, -inf where nothing is seen);
                             //        else what the row is divided by
  float* shift;              // (rows) softmax: a_ij = exp(s_ij - shift_i) / sum_i
  float* sum;                // (rows)
  float* sizes;              // (rows) sum |a|, of a times any number, one for the row
  float* squares;            // (rows) sum a^2, of the same
  float* entropy;            // (rows) softmax only
  float* largest;            // (rows) the largest |a|, 0 where nothing is seen
  std::int64_t* largest_at;  // (rows) its lowest index among the keys, -1 where nothing is seen
};

/// One query block against one key block, backwards. q, lines, d_o and dq stand at the block's
/// first row in column panels of query_rows rows; keys and values at the block's first key.
struct BackwardBlock {
  const float* q;            // column panels: what scores are made of
  const float* m;            // column panels or nullptr
  const float* q_rest;       // column panels: what rounding took from q, for few keys, or nullptr
  const float* q_lines;      // column panels: what dk sums up, q itself for dot
  const float* d_o;          // column panels; softmax: do_i / sum_i unless whole
  const float* keys;         // packed by pack_keys
  const float* values;       // packed by pack_keys too: (n,E) by E
  const float* key_lines;    // column panels of key_rows rows: what dq sums up
  const float* bias;         // (n, padded to a panel)
  const float* low;          // (rows) softmax: -shift, else r
  const float* minus_delta;  // (rows) minus sum_j a_ij da_ij, da from d_o as it stands here
  const float* inverse;      // (rows) 1 / by, 0 where by is 0; not for softmax
  const std::int64_t* sees;  // (rows)
  bool biased, causal;
  bool whole;  // these are all keys; softmax finds low, minus_delta and sums from them
  bool wide;   // distances in double, as the forward pass takes them where it has few keys
  Divisor divisor;
  Fading fading;
  float scale;
  bool split;
  std::int64_t rows, query_rows;  // of the block, of the panels
  std::int64_t key, n, key_rows;  // first key, keys of the block, of the panels
  std::int64_t D, E;
  std::int64_t line_width;  // of q_lines and dk
  float* weights;           // (block_rows, gradient_stride)
  float* d_scores;          // (block_rows, gradient_stride)
  float* dq;                // column panels of query_rows rows; += sum_j ds_ij key_lines_j
  float* dk;                // column panels of gradient_keys rows; += sum_i ds_ij q_lines_i
  float* dv;                // column panels of gradient_keys rows; += sum_i a_ij do_i
  float* dbias;             // (n) += sum_i ds_ij, or nullptr
  float* dr;                // (rows) += sum_j ds_ij, or nullptr
  float* dm;  // column panels like dq; += sum_j ds_ij (q_i - key_lines_j)^2, or nullptr; q_i is
              // what stands in dm_lines
  const float* dm_lines;  // column panels like q
};

/// One query block against all keys, backwards, where softmax_short() goes forwards. Nothing is
/// packed.
struct ShortBackward {
  const float *q, *d_o;        // (rows,D), (rows,E)
  const float *keys, *values;  // (n,D), (n,E)
  const std::int64_t* sees;    // (rows)
  bool causal;
  bool joins;         // dk and dv are added to what is there
  float scale, back;  // of q, of dq
  std::int64_t rows, n, D, E;
  float* scratch;  // short_backward_scratch() floats
  float* dq;       // (rows,D) back times sum_j ds_ij k_j
  float* dk;       // (n,D) sum_i ds_ij scale q_i
  float* dv;       // (n,E)
};

struct DecodeKernels;  // decode_row.hpp

/// Packed keys as a full metric sees them: z = W (x - centre), in panels of their own.
struct WhitenedPanels {
  float* z;             // [n/panel][D][panel]
  float* norms;         // (n, padded to a panel) |z|^2
  const float* keys;    // packed by pack_keys
  const float* Wt;      // (D,D) the transpose of W, which is lower or upper triangular
  const float* centre;  // (D)
  bool lower;
  std::int64_t n, D;
  float* room;  // whitening_room() floats
};

/// to += W' (by_j z_j) for every key j, in panels like z.
struct UnwhitenedPanels {
  float* to;
  const float* z;
  const float* by;  // (n, padded to a panel)
  const float* W;   // (D,D)
  bool lower;       // whether W is
  std::int64_t n, D;
  float* room;  // whitening_room() floats
};

/// The upper triangle of sum (padded D twice) = or += sum_j by_j k_j k_j'.
struct ScatteredLines {
  double* sum;
  const float* lines;  // column panels of `rows` rows, zero padded
  const float* by;     // (n)
  std::int64_t n, rows, D;
  bool adds;          // += instead of =
  std::int64_t most;  // lines that are summed up in float; these sums in double
  float* room;        // (rows, padded D)
};

struct Kernels {
  const char* name;
  std::int64_t panel;      // keys of a panel
  std::int64_t tile_rows;  // rows of a register tile
  std::int64_t (*forward_scratch)(std::int64_t D, std::int64_t E);
  /// (n,D) row-major -> panels [n/panel][D][panel], zero padded
  void (*pack_keys)(float* to, const float* from, std::int64_t n, std::int64_t D);
  /// (n,D) row-major -> the first n lines of column panels [D/panel][rows][panel], zero padded
  void (*pack_columns)(float* to, const float* from, std::int64_t n, std::int64_t rows,
                       std::int64_t D);
  /// to_i = a_i . b_i over the rows of two (rows,E) arrays, summed up as softmax_backward does
  void (*row_dots)(float* to, const float* a, const float* b, std::int64_t rows, std::int64_t E);
  void (*softmax_forward)(const ForwardBlock& block);
  /// The same where keys (n,D) and values (n,E) lie in lines of whole vectors and nothing but
  /// products are scores: m = nullptr, r = 0, n <= short_keys.
  void (*softmax_short)(const ForwardBlock& block);
  std::int64_t (*short_backward_scratch)(std::int64_t n, std::int64_t D, std::int64_t E);
  void (*softmax_short_backward)(const ShortBackward& block);
  void (*softmax_backward)(const BackwardBlock& block);
  void (*relu2_forward)(const ForwardBlock& block);
  void (*relu2_backward)(const BackwardBlock& block);
  void (*identity_forward)(const ForwardBlock& block);  // with fading: decay with content
  void (*identity_backward)(const BackwardBlock& block);
  std::int64_t (*whitening_room)(std::int64_t D);
  void (*whiten_panels)(const WhitenedPanels& of);
  void (*unwhiten_panels)(const UnwhitenedPanels& of);
  void (*scatter_lines)(const ScatteredLines& of);
  const MatrixKernels* matrix;
  const JacobianKernels* jacobian;
  const ChunkKernels* chunk;
  const DecodeKernels* decode;
};

namespace portable {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

}  // namespace foci::cpu
