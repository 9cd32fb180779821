// SPDX-License-Identifier: Apache-2.0
// linear, identity and decay with content in time O(N D^2): rows meet the keys of their own chunk
// one by one and all earlier ones through the state S = sum_j phi(k_j) v_j'. Sums run over chunks,
// chunks over parts; a part's sum never depends on who computes it, so neither do the bits.
#pragma once

#include "cpu/choose.hpp"
#include "cpu/chunk.hpp"
#include "cpu/decay.hpp"
#include "cpu/jacobian.hpp"

namespace foci::cpu {

/// Sizes and choices of a call.
struct ChunkPlan {
  const Problem* p = nullptr;
  Map map = Map::none;
  bool divides = false;  // linear: by the sum of its weights
  bool fades = false;    // decay
  std::int64_t D = 0, E = 0, R = 0;
  std::int64_t features = 0;            // D, and one more for each head's bias
  std::int64_t d_step = 0, e_step = 0;  // floats from line to line
  std::int64_t chunk = 0;               // keys of a chunk, rows of a block
  std::int64_t part = 0;                // keys or rows of a part
  std::int64_t state = 0;               // floats of a state
  bool direct = false;                  // few keys need no state; not causal
  int groups = 1;                       // of parts, where heads are too few for the threads

  ChunkPlan(const Problem& problem, int threads);

  bool biased() const { return features > D; }
  std::int64_t matrix() const { return features * e_step; }
};

/// (features, e_step) sums of phi(k) v' or phi(q) do', and (d_step) of phi alone, for linear.
struct State {
  float* matrix;
  float* column;
};

/// Keys [begin, end), whose exp is taken from the same peaks.
struct Chunk {
  std::int64_t begin = 0, end = 0;
  const float* peak = nullptr;  // (d_step)
  std::int64_t count() const { return end - begin; }
};

/// Rows [first, first + count) of query head r of the group.
struct RowBlock {
  std::int64_t r = 0, first = 0, count = 0;
};

/// One key head of one sequence with its R query heads.
struct KeyHead {
  const Tokens* tokens = nullptr;
  const float* by = nullptr;  // (N) what rows are divided by; not for linear
  std::int64_t g = 0;
  DiagonalMetric metric;
  std::span<float> peaks;        // (parts + 1, d_step) exp: the largest keys before a part
  std::span<float> totals;       // (parts, state)
  std::span<float> whole;        // (state) of all keys, then of all rows; not causal
  std::span<float> sums;         // (R,N) linear, backward: sum_j x_ij
  std::span<double> deltas;      // (R,N) sum_j a_ij da_ij
  std::span<double> dm;          // (parts, heads, D) where rows share their m
  std::span<float> dq, dk;       // (R,longest_n,D), (n,D) where the estimate adds to them
  std::span<float> dv, dv_prev;  // (n,E) the same

  static KeyHead take(Arena& arena, const ChunkPlan& plan, bool backward);
};

/// One thread's memory.
struct ChunkRoom {
  std::span<float> keys, keys_across;      // (chunk, d_step), (max(D,E), chunk)
  std::span<float> values, values_across;  // (chunk, e_step), (max(D,E), chunk)
  std::span<float> raw, q, d_o;            // (chunk, D), (chunk, d_step), (chunk, e_step)
  std::span<float> out, dq;                // (chunk, e_step), (chunk, d_step)
  std::span<float> dk, dv;                 // (chunk, d_step), (chunk, e_step)
  std::span<float> scores, pulls;          // (chunk, chunk)
  std::span<float> base, local, joined;    // states: before the part, of it, both
  std::span<float> across;                 // (E, d_step)
  std::span<float> peaks;                  // (part, d_step) exp
  std::span<Chunk> chunks;                 // (part or part / chunk)
  std::span<float> bias, powers, by;       // (chunk)
  std::span<Tally> tallies;                // (chunk)
  std::span<float> fade, line;             // (d_step)
  std::span<std::int64_t> visible, from;   // (chunk) keys a row sees, rows a key is seen from
  std::span<float> lines, others;          // (longest_m, max(D,E)) on their way to the metric

  static ChunkRoom take(Arena& arena, const ChunkPlan& plan, bool backward);
};

/// One thread at work on one key head. Chunks first, then lines, then states.
class ChunkWork {
 public:
  const ChunkPlan& plan;
  const Powers& powers;
  KeyHead& head;
  ChunkRoom& room;
  const MatrixKernels& matrix;
  const ChunkKernels& kernels;
  std::int64_t chunks = 0;  // found in the part
  Lines values;             // (chunk, E) of the loaded chunk
  Lines raw;                // (rows, D) queries as they came

  ChunkWork(const ChunkPlan& p, const Powers& w, KeyHead& h, ChunkRoom& r, const Kernels& isa);

  const Tokens& tokens() const { return *head.tokens; }
  std::int64_t parts() const { return blocks_of(tokens().n, plan.part); }
  bool causal() const { return plan.p->how.causal; }
  /// Whether so few keys are seen by all that a state would cost more than it saves.
  bool direct() const { return plan.direct && tokens().n <= plan.chunk; }
  /// How many rows see no more than `seen` keys; they come first.
  std::int64_t rows_within(std::int64_t seen) const;

  /// The largest key coordinates before a part; nullptr unless phi = exp.
  const float* peak_before(std::int64_t part) const;
  void find_peaks(std::int64_t part);  // of its keys alone, to where the next part looks
  void join_peaks();                   // then of all before it
  void find_chunks(std::int64_t part);

  void load_keys(const Chunk& chunk);  // phi of them, and the biases behind
  void load_values(const Chunk& chunk);
  void transpose_keys(const Chunk& chunk);
  void transpose_values(const Chunk& chunk);
  void load_queries(const RowBlock& rows, const float* peak);  // phi(q')
  /// do, each row divided like its weights; linear divides later.
  void load_gradients(const RowBlock& rows, const View& d_o);
  /// How many keys of the chunk each row sees, and from which row on each key is seen.
  void see(const RowBlock& rows, const Chunk& chunk);
  /// room.scores (rows, chunk) = q' . k, as far as rows see; their queries begin at line `from`.
  void score(const RowBlock& rows, std::int64_t from = 0);
  /// room.pulls (rows, chunk) = do . v. The weights of few keys may all but cancel in a row's
  /// gradient: for linear's first chunk each sum is taken in double.
  void pull(const RowBlock& rows, const Chunk& chunk);
  /// Scores to weights: + bias, times the powers of the rate.
  void weigh(float* scores, const RowBlock& rows, const Chunk& chunk, bool biased);

  /// x / by, 0 where by is 0
  void divide_row(float* x, float by, std::int64_t count) const;

  State state(std::span<float> of) const;
  /// rate^(last key that row i sees - last key before the chunk)
  float row_power(std::int64_t i, const Chunk& chunk) const;
  /// Positions from the last of the first `from` keys to the last of the first `to`.
  std::int64_t gap(std::int64_t from, std::int64_t to) const;
  /// (d_step) e^(from - to) or rate^gap; nullptr where that is 1.
  const float* fade_of(const float* from, const float* to, std::int64_t gap);
  /// to = fade x + y, row by row
  void blend(std::span<float> to, std::span<const float> x, const float* fade,
             std::span<const float> y) const;
  void shrink(std::span<float> state, const float* fade) const;

  // room.local: the part so far, measured from a chunk's peaks and the last key before it.
  void begin_part(const float* peak);
  void absorb_keys(const Chunk& chunk);  // the loaded keys, which are used up
  void finish_keys(std::int64_t part);
  void total_keys(std::int64_t part);  // all of it
  /// What rows of a chunk see of earlier keys; empty where there are none.
  std::span<float> join_keys(std::int64_t part, std::int64_t c);
  /// room.base: from before the part to before the next.
  void fold_keys(std::span<const float> total, std::int64_t part);

  // The way back: sums of phi(q) do' / by over the rows after a chunk, which see all of it. The
  // loaded rows are used up.
  void absorb_rows(const RowBlock& rows, const Chunk& chunk);
  void enter_rows(const Chunk& chunk);
  void leave_rows(const Chunk& chunk);  // before its own rows are absorbed
  void finish_rows(std::int64_t part);
  std::span<float> join_rows(std::int64_t part, std::int64_t c);
  void fold_rows(std::span<const float> total, std::int64_t part);
  void transpose_state(std::span<float> of);  // room.across

 private:
  void load_kept(float* to, std::int64_t step, const View& from, std::int64_t first,
                 std::int64_t count, std::int64_t width) const;
  Product strip(float* to, const float* lines, std::int64_t step, const float* across,
                std::int64_t first, std::int64_t rows) const;
  /// Kept keys where they lie, where whole vectors of them do; else none.
  Lines in_place(const View& from, std::int64_t first, std::int64_t count,
                 std::int64_t width) const;
  void load_raw_keys(std::int64_t first, std::int64_t count);
  void walk_keys(std::int64_t begin, std::int64_t end, const float* peak);
  void enter_keys(const Chunk& chunk);

  const float* peak_ = nullptr;  // of room.local
};

/// Lines of a tensor, `step` floats apart, from and to floats; any type.
void load_lines(float* to, std::int64_t step, const View& from, const metric::Index& first,
                std::int64_t count, std::int64_t width);
void store_lines(const View& to, const metric::Index& first, const float* from, std::int64_t step,
                 std::int64_t count, std::int64_t width);
void clear_lines(const View& to, const metric::Index& first, std::int64_t count,
                 std::int64_t width);

/// What forward and backward share: memory, tokens, metrics, peaks, sums over keys.
class ChunkPass {
 public:
  ChunkPass(Arena& arena, const Problem& problem, int threads, bool backward);

 protected:
  ChunkWork work(std::int64_t head, int thread) {
    return ChunkWork(plan_, powers_, heads_[head], rooms_[thread], isa_);
  }
  std::int64_t heads() const { return p_.sequences * p_.size.G; }
  /// Calls f(work, part) for every part of keys, or of rows, of every head.
  template <class F>
  void each_part(Executor* threads, std::int64_t longest, F&& f) {
    const std::int64_t most = blocks_of(longest, plan_.part);
    each(threads, heads() * most,
         [&](std::int64_t i, int thread) { f(work(i / most, thread), i % most); });
  }
  std::int64_t group_begin(const ChunkWork& work, std::int64_t group) const {
    return work.parts() * group / plan_.groups;
  }

  void prepare(Executor* threads);
  /// Of one head at a time: its keys lie in the first thread's room.
  JacobianEstimate jacobian(std::int64_t head);
  /// Sums of the parts that later groups begin with; of everything where rows see everything.
  void total_keys(Executor* threads);
  /// room.base = what comes before a part, from the totals.
  void begin_group(ChunkWork& work, std::int64_t part);
  static void keep(std::span<float> to, std::span<const float> state) {
    std::copy(state.begin(), state.end(), to.begin());
  }
  std::span<float> total(ChunkWork& work, std::int64_t part) const {
    return work.head.totals.subspan(part * plan_.state, plan_.state);
  }

  const Problem& p_;
  const Kernels& isa_;
  ChunkPlan plan_;
  Powers powers_;
  std::span<Tokens> tokens_;
  std::span<float> by_;  // (sequences, longest_n)
  std::span<KeyHead> heads_;
  std::span<ChunkRoom> rooms_;
  JacobianRoom jacobian_room_;

 private:
  void estimate(ChunkWork work);
};

}  // namespace foci::cpu
