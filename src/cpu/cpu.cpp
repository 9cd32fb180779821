// SPDX-License-Identifier: Apache-2.0
// A call on the CPU backend from beginning to end: estimate, then tiles.
#include "cpu/cpu.hpp"

#include "cpu/backward.hpp"
#include "cpu/choose.hpp"
#include "cpu/chunked_passes.hpp"
#include "cpu/match_dot.hpp"
#include "cpu/narrow_lines.hpp"

#include <cmath>

namespace foci::cpu {

namespace {

int count_of(Executor* threads) { return threads ? threads->threads() : 1; }

/// Kernels over bf16; looked for only where there is any.
const NarrowKernels* narrow_of(const Problem& p) {
  return p.from.q.dtype == DType::bf16 ? narrow_for(p, chosen_narrow()) : nullptr;
}

bool in_chunks(const Problem& p) { return chunked_serves(p.how.metric, p.how.weighting); }

bool wants_statistics(const Outputs& to) {
  return to.concentration || to.effective_keys || to.entropy || to.largest || to.largest_at;
}

/// Rows of a forward pass turned into what the backward pass needs of them.
class NoteTaker {
 public:
  NoteTaker(const Problem& problem, const Kernels& isa, const Geometry& geometry,
            const Weigher& weigher, const Notes& notes, const View& d_o, bool narrow)
      : p_(problem),
        isa_(isa),
        geometry_(geometry),
        weigher_(weigher),
        notes_(notes),
        d_o_(d_o),
        narrow_(narrow) {}

  /// Whether the rows that were saved have all the bits that are needed.
  bool knows(const Outputs& saved) const {
    if (narrow_) return bool(saved.lse);
    if (!saved.o || saved.o.dtype != DType::f32) return false;
    if (weigher_.softmax) return bool(saved.lse);
    if (weigher_.fades) return false;
    return weigher_.divisor == Divisor::length || weigher_.divisor == Divisor::none;
  }

  void operator()(const Forward::Result& result, int thread) const {
    const ForwardBlock& block = result.block;
    if (narrow_) {
      float* low = notes_.low.data() + place(result.s, result.h, result.first);
      for (std::int64_t i = 0; i < block.rows; ++i) low[i] = -block.by[i];
      return;
    }
    float low[block_rows], inverse[block_rows];
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const float by = weigher_.softmax ? block.sum[i] : block.by[i];
      low[i] = weigher_.softmax ? -block.shift[i] : block.r[i];
      inverse[i] = by == 0 ? 0.0f : 1 / by;
      if (weigher_.softmax && by == 0) low[i] = padding;  // nothing was seen
    }
    note({result.s, result.h, 0}, result.first, block.rows, {block.o, low, inverse}, thread);
  }

  void note_saved(const Outputs& saved, const Meeting& at, std::int64_t first, std::int64_t rows,
                  int thread) const {
    const Tokens& tokens = geometry_.tokens(at.s);
    if (narrow_) {
      float* low = notes_.low.data() + place(at.s, at.h, first);
      for (std::int64_t i = 0; i < rows; ++i)
        low[i] = -metric::load_one<float>(saved.lse, {tokens.at.b, at.h, tokens.at.q0 + first + i});
      return;
    }
    const std::int64_t E = p_.size.E;
    float low[block_rows], inverse[block_rows], r[block_rows] = {};
    if (!notes_.r.empty()) {
      std::copy_n(notes_.r.data() + place(at.s, at.h, first), rows, r);
    } else if (geometry_.kind() == Kind::full) {
      geometry_.queries(at, first, rows, room(thread, 0), room(thread, 1), r);
    }
    const float* o = tokens.queries(saved.o, at.h, first, rows, E, room(thread, 1));
    for (std::int64_t i = 0; i < rows; ++i) {
      const float n = float(tokens.sees[first + i]);
      inverse[i] = weigher_.divisor != Divisor::length ? 1.0f : n > 0 ? 1 / n : 0.0f;
      low[i] = r[i];
      if (!weigher_.softmax) continue;
      // A whole number leaves the scores their digits; the rest of lse becomes a factor.
      const metric::Index row{tokens.at.b, at.h, tokens.at.q0 + first + i};
      const double lse = metric::load_one<double>(saved.lse, row) - double(r[i]);
      const double whole = std::nearbyint(lse);
      low[i] = std::isinf(lse) ? padding : -float(whole);
      inverse[i] = std::isinf(lse) ? 0.0f : float(std::exp(whole - lse));
    }
    note(at, first, rows, {o, low, inverse}, thread);
  }

 private:
  float* room(int thread, int which) const {
    return notes_.room.data() +
           ((2 * thread + which) * block_rows * std::max(p_.size.D, p_.size.E));
  }
  std::int64_t place(std::int64_t s, std::int64_t h, std::int64_t first) const {
    return (s * p_.size.H + h) * p_.longest_n + first;
  }
  struct Lines {
    const float *o, *low, *inverse;
  };

  void note(const Meeting& at, std::int64_t first, std::int64_t rows, const Lines& lines,
            int thread) const {
    const std::int64_t E = p_.size.E, to = place(at.s, at.h, first);
    float* scaled = room(thread, 0);
    const float* d_o = geometry_.tokens(at.s).queries(d_o_, at.h, first, rows, E, scaled);
    for (std::int64_t i = 0; i < rows && weigher_.softmax; ++i) {
      for (std::int64_t e = 0; e < E; ++e) scaled[i * E + e] = d_o[i * E + e] * lines.inverse[i];
    }
    float* minus_delta = notes_.minus_delta.data() + to;
    isa_.row_dots(minus_delta, lines.o, weigher_.softmax ? scaled : d_o, rows, E);
    for (std::int64_t i = 0; i < rows; ++i) {
      minus_delta[i] = -minus_delta[i];
      notes_.low[to + i] = lines.low[i];
      notes_.inverse[to + i] = lines.inverse[i];
    }
  }

  const Problem& p_;
  const Kernels& isa_;
  const Geometry& geometry_;
  const Weigher& weigher_;
  const Notes& notes_;
  const View& d_o_;
  bool narrow_;  // whether kernels over bf16 will read the notes
};

}  // namespace

std::size_t workspace(const Problem& problem, int threads) {
  if (in_chunks(problem)) return chunked_workspace(problem, threads);
  const Kernels& isa = chosen();
  Arena arena;
  Geometry geometry(arena, problem, isa, threads);
  const Notes notes = Notes::take(arena, problem, threads);
  const NarrowKernels* narrow = narrow_of(problem);
  Arena one = arena, other = arena;  // the two passes take turns
  const Forward forward(one, problem, isa, geometry, threads, narrow);
  const Backward backward(other, problem, isa, geometry, notes, threads, narrow);
  std::size_t most = std::max(one.used(), other.used());
  if (problem.match_dot)
    most = std::max(most, match_dot_room(geometry, problem, isa, arena, threads));
  return most + Arena::alignment;
}

void forward(const Outputs& to, const Problem& problem, std::span<std::byte> memory,
             Executor* threads) {
  if (in_chunks(problem)) return chunked_forward(to, problem, memory, threads);
  const Kernels& isa = chosen();
  Arena arena(memory);
  Geometry geometry(arena, problem, isa, count_of(threads));
  geometry.estimate(threads, to.metric || to.status);
  if (problem.match_dot) match_dot(geometry, problem, isa, arena, threads);
  geometry.write(to);
  const NarrowKernels* narrow = narrow_of(problem);
  Forward pass(arena, problem, isa, geometry, count_of(threads), narrow);
  pass.aim(to.o);
  const auto write = [&](const Forward::Result& result, int) { pass.write(to, result); };
  pass.run(threads, wants_statistics(to), write);
}

void backward(const Gradients& to, const Outputs& saved, const Problem& problem,
              std::span<std::byte> memory, Executor* threads) {
  if (in_chunks(problem)) return chunked_backward(to, problem, memory, threads);
  const Kernels& isa = chosen();
  const Weigher weigher = weigher_of(problem.how.weighting, isa);
  const int count = count_of(threads);
  Arena arena(memory);
  Geometry geometry(arena, problem, isa, count);
  const Notes notes = Notes::take(arena, problem, count);
  Arena again = arena;
  geometry.estimate(threads, false);
  if (problem.match_dot) match_dot(geometry, problem, isa, arena, threads);
  const NarrowKernels* narrow = narrow_of(problem);
  if (has_one_centre(problem)) note_queries(notes, problem, geometry, threads);
  const NoteTaker taker(problem, isa, geometry, weigher, notes, to.d_o, narrow);
  if (!Backward::wants_notes(problem) ||
      (problem.longest_m <= short_keys && Backward::shortens(problem, isa, geometry, narrow))) {
    // all there is to know is found on the way
  } else if (taker.knows(saved)) {
    const std::int64_t H = problem.size.H, spans = geometry.spans();
    each(threads, problem.sequences * H * spans, [&](std::int64_t i, int thread) {
      const Meeting at{i / spans / H, i / spans % H, i % spans};
      const Geometry::Rows rows = geometry.rows(at.s, at.span);
      for (std::int64_t first = rows.first; first < rows.last; first += block_rows)
        taker.note_saved(saved, at, first, std::min(block_rows, rows.last - first), thread);
    });
  } else {
    Forward(arena, problem, isa, geometry, count, narrow).run(threads, false, taker);
  }
  Backward(again, problem, isa, geometry, notes, count, narrow).run(to, threads);
}

}  // namespace foci::cpu
