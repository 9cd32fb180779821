// SPDX-License-Identifier: Apache-2.0
// The backward pass of weightings that look at scores. Keys are shared out in a fixed number of
// parts, whatever the threads; each walks through its keys, a few blocks at a time, against all
// queries, and gathers dq' of its own. At the end dq' is summed up and unfolded to dq and the
// metric.
#pragma once

#include "cpu/forward.hpp"

namespace foci::cpu {

/// What the rows of a forward pass leave behind, (sequences, H, N) each.
struct Notes {
  std::span<float> low;          // softmax: -shift, over bf16 -lse; else r
  std::span<float> minus_delta;  // minus sum_j a_ij da_ij, da times `inverse` for softmax; over
                                 // bf16 the backward pass finds it
  std::span<float> inverse;      // softmax: 1 / sum, not over bf16; else 1 / by
  std::span<float> room;         // (threads, 2, block_rows, max(D,E))
  // Where the metric whitens: q' and y = c P (q - centre), (sequences, H, N, D), and r
  std::span<float> q, y, r;

  static Notes take(Arena& arena, const Problem& p, int threads);
};

/// Lines [0, count) that lie in column panels, block by block, as (count,width).
void lines_of(float* to, std::span<const float> panels, std::int64_t count, std::int64_t width,
              std::int64_t panel);

/// Fills in q', y and r of every query, where the metric whitens.
void note_queries(const Notes& notes, const Problem& p, const Geometry& geometry,
                  Executor* threads);

class Backward {
 public:
  /// narrow: like Forward; not looked at where wants_notes() says no.
  Backward(Arena& arena, const Problem& problem, const Kernels& isa, Geometry& geometry,
           const Notes& notes, int threads, const NarrowKernels* narrow = nullptr);

  /// Whether the rows' notes are looked at.
  static bool wants_notes(const Problem& problem);
  /// Whether short sequences go to softmax_short_backward(), which wants no notes.
  static bool shortens(const Problem& problem, const Kernels& isa, const Geometry& geometry,
                       const NarrowKernels* narrow);
  /// After Geometry::estimate() and the notes.
  void run(const Gradients& to, Executor* threads);

 private:
  /// Key blocks that meet a packed block of queries one after the other.
  static constexpr std::int64_t together = 4;
  static constexpr std::int64_t most_keys = together * gradient_keys;

  /// What kernels over bf16 work with instead of packed floats.
  struct NarrowRoom {
    std::span<float> keys;     // with their values, block by block
    std::span<float> queries;  // with d_o
    std::span<float> scratch;
    std::span<Bf16> lines;  // (2, gradient_keys, max(D,E)) on their way
  };
  struct Room {
    std::span<float> keys, values;       // packed, block by block
    std::span<float> key_lines;          // column panels, block by block
    std::span<float> q, m, d_o;          // column panels of block_rows rows
    std::span<float> q_lines, dm_lines;  // likewise
    std::span<float> rows;               // (block_rows, max(L,E)) on their way
    std::span<float> lines;              // (most_keys, max(L,E)) on their way
    std::span<float> more;               // (most_keys, D) behind lines of a full metric
    std::span<float> dk_lines;           // (most_keys, D)
    std::span<float> own, b, db, at;     // (most_keys, padded): b of the metric, b, db, positions
    std::span<float> low, minus_delta;   // (block_rows, padded)
    std::span<float> inverse, dr, last;  // likewise
    std::span<float> weights, d_scores;
    std::span<float> dk, dv;                // column panels, block by block
    std::span<float> value_lines, scratch;  // (short_keys, E) and more, for short sequences
    std::span<float> raw;                   // panels of k, where the metric whitens
    std::span<float> pulled;                // panels: what a key's own bias adds to dk
    std::span<float> shared;  // (most_keys, padded) db of all heads that share the keys
    std::span<float> whitening, scaled;
    NarrowRoom narrow;
  };
  /// Some keys of a head against the queries of a span.
  struct Work {
    std::int64_t s, g, span, part;
    std::int64_t first, count;  // keys
    int thread;
  };

  Room take_room(Arena& arena) const;
  using WithKeys = void (Backward::*)(const Gradients&, const Work&, Room&);
  void walk_keys(const Gradients& to, Work work, WithKeys with);
  void run_part(const Gradients& to, const Work& work);
  void run_keys(const Gradients& to, const Work& work, Room& room);
  void pack_keys(const Meeting& at, const Work& work, Room& room);
  void complete_keys(const Meeting& at, const Work& work, Room& room);
  BackwardBlock block_of(const Meeting& at, const Work& work, std::int64_t first,
                         const Room& room) const;
  void meet_queries(const Gradients& to, const Meeting& at, const Work& work, Room& room);
  void pack_queries(const Gradients& to, const Meeting& at, std::int64_t first, std::int64_t rows,
                    Room& room);
  // short_backward.cpp
  bool is_short(std::int64_t s) const { return short_ && geometry_.tokens(s).at.M <= short_keys; }
  void run_short(const Gradients& to, std::int64_t s, std::int64_t g, int thread);
  void finish_short_rows(const Gradients& to, const Meeting& at, std::int64_t first,
                         std::int64_t rows, bool plain, int thread);
  // narrow_backward.cpp
  NarrowRoom take_narrow(Arena& arena) const;
  void pack_narrow(const Work& work, Room& room);
  void meet_narrow(const Gradients& to, const Meeting& at, const Work& work, Room& room,
                   bool deltas);
  void find_deltas(const Gradients& to, Executor* threads);
  void find_deltas_of(const Gradients& to, const Work& work, Room& room);
  int pack_narrow_queries(const Gradients& to, const Meeting& at, std::int64_t first,
                          std::int64_t rows, bool sums, Room& room);
  // whitened.cpp
  void run_whitened(const Gradients& to, Executor* threads);
  bool scatters(const Meeting& at, std::int64_t part, const Geometry::Rows& rows) const;
  void clear_span(const Work& work);
  void run_whitened_part(const Gradients& to, Work work);
  void finish_whitened(const Gradients& to, std::int64_t s, std::int64_t g, int thread);
  std::int64_t first_block(std::int64_t s, std::int64_t part) const;
  void pack_lines(const Work& work, Room& room);
  void meet_span(const Gradients& to, const Work& work, Room& room);
  void scatter_keys(const Work& work, std::int64_t met, Room& room);
  void unwhiten_keys(const Work& work, Room& room) const;
  void add_pulled(const Work& work, Room& room) const;
  double* scatter_of(std::int64_t s, std::int64_t g, std::int64_t part, std::int64_t span) const;
  void keep_bias(const Meeting& at, const Work& work, const Room& room);
  void unfold_keys(const Meeting& at, const Work& work, Room& room);
  void keep_keys(const Gradients& to, const Work& work, Room& room);
  void finish_queries(const Gradients& to, Meeting at, int thread);
  void finish_rows(const Gradients& to, const Meeting& at, std::int64_t first, std::int64_t rows,
                   int thread);
  void finish_head(const Gradients& to, std::int64_t s, std::int64_t g, bool joins, int thread);
  void write_keys(const Gradients& to, std::int64_t s, std::int64_t g) const;

  /// Keys that the queries of a span meet; it has some.
  std::int64_t keys_met(std::int64_t s, const Geometry::Rows& rows) const {
    const Tokens& tokens = geometry_.tokens(s);
    return geometry_.has_spans() ? tokens.sees[rows.last - 1] : tokens.n;
  }
  /// Whether a part has keys that the span's queries meet; the first sums up anyway.
  bool meets(const Meeting& at, std::int64_t part, const Geometry::Rows& rows) const {
    return !whitened_ || part == 0 ||
           first_block(at.s, part) * gradient_keys < keys_met(at.s, rows);
  }
  /// Offset of a (sequence, head) in arrays of `size` floats each.
  float* of(std::span<float> array, std::int64_t s, std::int64_t h, std::int64_t size) const {
    return array.empty() ? nullptr : array.data() + ((s * p_.size.H + h) * size);
  }
  /// Where query `first` stands in dq_ or dm_.
  float* panels_of(std::span<float> array, const Meeting& at, std::int64_t part, std::int64_t first,
                   int thread) const;
  void sum_parts(float* to, std::span<float> array, const Meeting& at, std::int64_t first,
                 std::int64_t rows, int thread) const;
  Gathered late(std::int64_t s, std::int64_t g) const;

  const Problem& p_;
  const Kernels& isa_;
  Geometry& geometry_;
  Notes notes_;
  const NarrowKernels* narrow_;
  std::int64_t panel_;  // columns of a panel, of the kernels in use
  Weigher weigher_;
  std::int64_t D_, L_;  // head size, width of the lines that dk sums up
  std::int64_t padded_D_, padded_E_, padded_L_;
  std::int64_t parts_, query_blocks_;
  bool by_heads_;  // whether a thread takes whole heads
  bool short_;     // whether short sequences have a pass of their own
  bool whitened_;  // whether whitened.cpp does it
  bool whole_;     // one key block has all keys: it needs no notes
  bool biased_, wants_db_, wants_dr_, wants_dm_, late_;
  std::span<float> dq_, dm_;  // (sequences, H, parts, query_blocks) column panels; by heads
                              // (threads, heads that share) of them
  std::span<float> dr_;       // (sequences, H, parts, N)
  std::span<float> delta_;    // (sequences, H, parts, N) sum_j a_ij da_ij over bf16
  std::span<float> db_;       // (sequences, H, M)
  std::span<float>
      span_db_;  // (sequences, H, M): of the span at hand, summed over heads that share
  std::span<double> scatter_;  // (sequences, G, parts, spans, padded D twice), see whitened.cpp
  std::span<float> late_q_;    // (sequences, H, N, D)
  std::span<float> late_k_;    // (sequences, G, M, D)
  std::span<float> late_v_;    // (2, sequences, G, M, E)
  std::span<Room> rooms_;
};

}  // namespace foci::cpu
