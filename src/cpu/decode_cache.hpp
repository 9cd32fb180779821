// SPDX-License-Identifier: Apache-2.0
// What one (batch, key head) of a decoder remembers of its tokens: keys in panels, values line by
// line, biases and positions. Masked tokens never enter.
#pragma once

#include "cpu/decode_row.hpp"
#include "cpu/tokens.hpp"

namespace foci::cpu {

/// Which parts of a cache a mechanism looks at.
struct Remembered {
  bool keys = false;         // in panels: sweeps
  bool whitened = false;     // not as they came, but as a full metric sees them
  bool values = false;       // sweeps
  bool key_lines = false;    // (n,D) as floats: estimates
  bool value_lines = false;  // (n,E) as floats
};

/// One token of a checked step, for one key head.
struct NextToken {
  const Problem& of;
  std::int64_t b, g;
  std::int64_t i;  // which of the step's tokens
  std::int64_t t;  // where it stands
  bool kept;
};

struct DecodeCache {
  Remembered what;
  Line key_line = Line::f32, value_line = Line::f32;
  std::int64_t n = 0;  // keys kept
  std::int64_t R = 1, D = 0, E = 0;
  std::int64_t value_step = 0;              // E padded to whole vectors
  std::int64_t panel = 0, step = 0;         // keys of a panel; capacity padded to panels
  bool biased = false;                      // whether any token brought a bias
  std::span<std::byte> keys;                // panels [step/panel][D][panel]
  std::span<std::byte> values;              // (capacity, value_step)
  std::span<float> bias;                    // (R, step)
  std::span<std::int64_t> at;               // (capacity) where each key stands
  std::span<float> key_lines, value_lines;  // (capacity, D), (capacity, E)

  static DecodeCache take(Arena& arena, const Problem& p, DType type, const Remembered& what,
                          const Kernels& isa);
  void append(const NextToken& token, const DecodeKernels& isa);
};

/// One line of a tensor as floats, vector by vector where it lies so.
void load_line(float* to, const View& from, const metric::Index& at, std::int64_t count,
               const DecodeKernels& isa);

}  // namespace foci::cpu
