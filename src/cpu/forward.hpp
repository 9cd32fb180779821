// SPDX-License-Identifier: Apache-2.0
// The forward pass of weightings that look at scores: keys and values packed once a head (under a
// prefix full metric once a span), then block by block of queries. Blocks write to different
// places, so the bits do not depend on who runs them. Where heads are many, a thread takes whole
// ones: what it packs stays near it.
#pragma once

#include "cpu/geometry.hpp"
#include "cpu/narrow.hpp"

namespace foci::cpu {

/// A padded key's bias: its weight is never looked at.
inline constexpr float padding = -1e30f;

/// key_bias of a head at the kept keys [first, first + count) is added to b.
void add_key_bias(float* b, const Problem& p, const Tokens& tokens, std::int64_t h,
                  std::int64_t first, std::int64_t count);

/// The kernels of a weighting that looks at scores.
struct Weigher {
  void (*forward)(const ForwardBlock&) = nullptr;
  void (*backward)(const BackwardBlock&) = nullptr;
  bool softmax = true;
  Divisor divisor = Divisor::none;
  bool fades = false;
  float slope = 0;  // ln(rate)
};
Weigher weigher_of(const Weighting& weighting, const Kernels& isa);

/// Keys over bf16 packed at a time; a multiple of a panel and of block_rows.
inline constexpr std::int64_t narrow_piece = 2 * block_keys;

class Forward {
 public:
  /// One block of queries and what came out; it lives until its thread takes the next.
  struct Result {
    std::int64_t s, h, first;
    const ForwardBlock& block;
  };
  /// Calls what it was made of: a reference to a function object, without owning it.
  class Sink {
   public:
    template <class F>
    Sink(const F& f)
        : of_(&f),
          call_([](const void* g, const Result& x, int t) { (*static_cast<const F*>(g))(x, t); }) {}
    void operator()(const Result& result, int thread) const { call_(of_, result, thread); }

   private:
    const void* of_;
    void (*call_)(const void*, const Result&, int);
  };

  /// narrow: kernels over bf16 for a problem that they can do, see narrow_for(), or nullptr.
  Forward(Arena& arena, const Problem& problem, const Kernels& isa, const Geometry& geometry,
          int threads, const NarrowKernels* narrow = nullptr);

  /// Blocks write straight into o where its rows lie as theirs do.
  void aim(const View& o);
  /// After Geometry::estimate(): packs, then hands every block's result to `sink`.
  void run(Executor* threads, bool statistics, const Sink& sink);
  /// What all heads of a sequence share; before run_head().
  void prepare();
  /// One (sequence, key head) alone, with statistics, on the calling thread.
  void run_head(std::int64_t s, std::int64_t g, int thread, const Sink& sink);
  /// o, lse and statistics of a block to where they belong.
  void write(const Outputs& to, const Result& result) const;

 private:
  struct Call {
    int thread;
    bool statistics;
    const Sink& sink;
  };
  /// What a block of queries meets.
  struct Met {
    const float *keys, *values, *b;
    std::int64_t n;
  };

  struct Room {
    std::span<float> q, m, r;  // (block_rows, D) twice, (block_rows)
    std::span<float> o;        // (block_rows, E)
    std::span<float> own, b;   // (longest_m, padded)
    std::span<float> keys;     // of a span
    std::span<float> more;     // behind lines of a full metric
    std::span<float> lines;    // (pack_rows, max(D, E)) on their way
    std::span<float> values;   // (short_keys, E), where lines are not packed
    std::span<float> scratch;
    std::span<float> rows;  // (7, block_rows)
    std::span<std::int64_t> at;
    std::span<float> last;         // (block_rows)
    std::span<Bf16> narrow_lines;  // (narrow_piece, max(D, E)) on their way

    void place(ForwardBlock& block) const;
  };

  /// Where a head's packed lines are kept.
  std::int64_t slot(std::int64_t s, std::int64_t g, int thread) const {
    return by_heads_ ? thread : s * p_.size.G + g;
  }
  void pack_values(std::int64_t s, std::int64_t g, float* values, Room& room);
  void pack_raw_keys(std::int64_t s, std::int64_t g, float* keys, Room& room);
  void pack_keys(const Meeting& at, std::int64_t n, float* keys, float* b, float* raw, Room& room);
  /// b and its padding of head h, from the metric's own.
  void complete_bias(const Meeting& at, std::int64_t n, float* b, const float* own) const;
  void pack(std::int64_t s, std::int64_t g, std::int64_t piece, int thread);
  Met met_by(std::int64_t s, std::int64_t h, int thread) const;
  /// Whether a sequence's lines are not packed: softmax_short() takes them.
  bool is_short(std::int64_t s) const { return short_ && geometry_.tokens(s).at.M <= short_keys; }
  void run_block(const Meeting& at, std::int64_t first, std::int64_t rows, const Met& met,
                 const Call& call);
  void run_blocks(std::int64_t s, std::int64_t g, const Call& call);
  // narrow_forward.cpp: keys and values of a piece, queries of a block
  void pack_narrow(std::int64_t s, std::int64_t g, std::int64_t piece, int thread);
  void place_narrow(NarrowForward& block, const Meeting& at, std::int64_t first, Room& room) const;
  void run_span(std::int64_t s, std::int64_t g, std::int64_t span, const Call& call);

  const Problem& p_;
  const Kernels& isa_;
  const Geometry& geometry_;
  const NarrowKernels* narrow_;
  std::int64_t panel_;  // keys of a panel, of the kernels in use
  Weigher weigher_;
  std::int64_t pieces_ = 1;     // in which a head is packed
  bool biased_ = false;         // whether b is more than padding
  bool by_heads_ = false;       // whether a thread takes whole heads
  bool short_ = false;          // whether softmax_short() does short sequences
  std::int64_t key_room_ = 0;   // floats of a head's packed keys
  std::int64_t bias_room_ = 0;  // of its b
  std::int64_t value_room_ = 0;
  std::span<float> keys_;       // (slots, key_room)
  std::span<float> values_;     // (slots, value_room)
  std::span<float> b_;          // (sequences, H, bias_room)
  std::span<float> positions_;  // (sequences, bias_room)
  std::span<Room> rooms_;
  View direct_;  // o, where blocks write straight into it
};

}  // namespace foci::cpu
