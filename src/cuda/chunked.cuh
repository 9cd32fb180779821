// SPDX-License-Identifier: Apache-2.0
// linear, identity and decay in time O(N D^2), with every statistic: rows meet the keys of their
// own chunk one by one and all earlier ones through the state S = sum_j phi(k_j) v_j'. Statistics
// look at every weight once more, when asked. linear takes its features from raw lines: nothing is
// stored.
#pragma once

#include "cuda/linear.cuh"
#include "cuda/passes.cuh"

namespace foci::cuda {

/// linear, decay, and identity by length or by nothing, over dot and the diagonal metrics in
/// product form; decay without content over any metric. Both ways, with whatever outputs.
bool chunked_serves(const Problem& problem);

namespace chunks {

/// What a row of weights is divided by.
enum class Divisor : int { nothing, length, powers, sum };

/// Of the kept keys before a chunk.
struct Facts {
  int count = 0;
  int last = -1;      // where the last of them stands
  double weight = 0;  // decay: sum of rate^(last - j)
};

/// What kernels know of a call. States: (slots, F, E), then for linear (slots, F) sums of phi
/// alone; a slot is a chunk of one key head.
struct Call {
  Shape shape;
  Folded folded;
  Map map = Map::none;
  Divisor divisor = Divisor::nothing;
  int content = 1;      // whether weights depend on queries and keys
  float log2_rate = 0;  // 0 where nothing fades
  int D = 0;            // of the scores: 0 without content
  int biases = 0;       // lines that follow the D of a key: a bias per head, or 1 without content
  int F = 0;            // D + biases
  int state = 0;        // floats of a slot
  Facts* facts = nullptr;   // (chunks) where keys are masked
  float* peaks = nullptr;   // (slots, D) exp: the largest keys before a chunk
  float* states = nullptr;  // of the keys before a chunk, or of all
  Rows rows;                // forward
  // Backward.
  Field d_o;
  Sinks sinks;
  float* later = nullptr;    // states of the rows after a chunk, or of all
  float* by = nullptr;       // (B,H,N)
  double* deltas = nullptr;  // (B,H,N) linear: sum_j a_ij da_ij
  float* shifts = nullptr;   // (B,H,N) exp
};

/// How a weighting is one of these.
struct How {
  Map map;
  Divisor divisor;
  int content;
};
How how_of(const Weighting& weighting);

/// Whether somebody asks for what only a look at every weight tells.
bool wants_tally(const Rows& to);

}  // namespace chunks

class ChunkedPass {
 public:
  enum class Pass { forward, backward };
  ChunkedPass(Arena& arena, const Problem& problem, const Shape& shape, Pass pass);

  /// Writes whatever of `to` is there; lse is softmax' alone.
  void forward(const Folded& folded, const Rows& to, Stream stream);
  /// Needs nothing of the forward pass.
  void backward(const Folded& folded, const Field& d_o, const Sinks& to, Stream stream);

 private:
  void prepare(const Folded& folded, Stream stream);
  chunks::Call call_;
  int most_chunks_ = 0, row_tiles_ = 0;
};

namespace chunks {

/// Facts, peaks, and the states before each chunk, or of all keys.
void sum_keys(const Call& call, int most_chunks, Stream stream);
/// From the sums of each chunk's rows (of each stretch of rows) to those after it (of all).
void join_rows(const Call& call, int most_chunks, Stream stream);

}  // namespace chunks
}  // namespace foci::cuda
