// SPDX-License-Identifier: Apache-2.0
// What the instruction-set objects offer: packing and one block of softmax attention, forward and
// backward, over plain floats. No masks here: masked keys are left out when packing, and a row sees
// a prefix.
#pragma once

#include <cstdint>

namespace foci::cpu {

/// Query rows of a block, keys of a key block; multiples of every tile.
inline constexpr std::int64_t block_rows = 96;
inline constexpr std::int64_t block_keys = 192;
/// Row length of a tile of weights: a compile-time stride keeps addresses in the instructions.
inline constexpr std::int64_t weight_stride = block_keys + 16;

inline constexpr std::int64_t gradient_keys = 96;
inline constexpr std::int64_t gradient_stride = gradient_keys + 16;

/// One query block against all keys.
struct ForwardBlock {
  const float* q;            // (rows, D) folded
  const std::int64_t* sees;  // (rows) keys seen
  const float* keys;         // packed by pack_keys
  const float* values;       // packed by pack_columns with n rows
  const float* bias;         // (n, padded to a panel); always there, padding far below
  bool biased;               // whether bias is more than padding
  bool causal;               // whether sees differs from n
  bool statistics;
  std::int64_t rows, n, D, E;
  float* scratch;            // forward_scratch() floats
  float* o;                  // (rows, E) weights times values, divided
  float* lse;                // (rows) natural log, -inf where nothing is seen
  float* squares;            // (rows) sum of squared weights
  float* entropy;            // (rows)
  float* largest;            // (rows) the largest weight, 0 where nothing is seen
  std::int64_t* largest_at;  // (rows) its lowest index among the keys, -1 where nothing is seen
};

/// One query block against one key block, backwards. Pointers to q, d_o and dq stand at the block's
/// first row in column panels of query_rows rows; keys and values at the block's first key in key
/// panels.
struct BackwardBlock {
  const float* q;
  const float* d_o;
  const float* keys;         // packed by pack_keys
  const float* values;       // packed by pack_keys too: (n,E) by E
  const float* key_lines;    // column panels of key_rows rows
  const float* bias;         // (n, padded to a panel)
  const float* low;          // (rows) minus lse
  const float* minus_delta;  // (rows)
  const std::int64_t* sees;  // (rows)
  bool biased, causal;
  std::int64_t rows, query_rows;  // of the block, of the panels
  std::int64_t key, n, key_rows;  // first key, keys of the block, of the panels
  std::int64_t D, E;
  float* weights;   // (block_rows, gradient_stride)
  float* d_scores;  // (block_rows, gradient_stride)
  float* dq;        // column panels of query_rows rows
  float* dk;        // column panels of gradient_keys rows
  float* dv;
  float* dbias;  // (n) or nullptr
};

struct Kernels {
  const char* name;
  std::int64_t panel;      // keys of a panel
  std::int64_t tile_rows;  // rows of a register tile
  std::int64_t (*forward_scratch)(std::int64_t D, std::int64_t E);
  /// (n,D) row-major -> panels [n/panel][D][panel], zero padded
  void (*pack_keys)(float* to, const float* from, std::int64_t n, std::int64_t D);
  /// (n,D) row-major -> column panels [D/panel][rows][panel], zero padded
  void (*pack_columns)(float* to, const float* from, std::int64_t n, std::int64_t rows,
                       std::int64_t D);
  void (*softmax_forward)(const ForwardBlock& block);
  void (*softmax_backward)(const BackwardBlock& block);
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
