// SPDX-License-Identifier: Apache-2.0
// Decay without content, O(N E): y = rate^gap y + v from key to key, o = y / W; backwards
// dv = rate^gap dv_after + do / W. The heads of a group share their weights, so they share the
// walk. Sums run within parts and over parts, whoever computes them.
#include "cpu/chunked_passes.hpp"

namespace foci::cpu {

namespace {

constexpr std::int64_t part_keys = 1024;

/// One thread's lines, (e_step) each: sums before the part and within it, one token's, one row's.
struct ScanRoom {
  std::span<float> base, local, line, out;
};

class DecayScan {
 public:
  DecayScan(Arena& arena, const Problem& problem, int threads);
  void forward(const Outputs& to, Executor* threads);
  void backward(const Gradients& to, Executor* threads);

 private:
  /// One part of one key head's keys, and the rows whose last key is among them.
  struct Part {
    const Tokens& tokens;
    const float* by;
    ScanRoom& room;
    std::int64_t g, begin, end;
  };

  std::int64_t heads() const { return p_.sequences * p_.size.G; }
  Part part(std::int64_t head, std::int64_t index, ScanRoom& room) const;
  std::int64_t parts(std::int64_t head) const {
    return blocks_of(tokens_[head / p_.size.G].n, part_keys);
  }
  float* total(std::int64_t head, std::int64_t index) {
    return totals_.data() + ((head * most_parts_ + index) * step_);
  }
  /// Calls f(head, first part, end part, thread) so that every part has its turn.
  template <class F>
  void each_group(Executor* threads, F&& f) {
    each(threads, heads() * groups_, [&](std::int64_t i, int thread) {
      const std::int64_t head = i / groups_, group = i % groups_, count = parts(head);
      f(head, count * group / groups_, count * (group + 1) / groups_, thread);
    });
  }

  void prepare();
  void add_key(const Part& at, std::int64_t j);
  void add_row(const Part& at, const View& d_o, std::int64_t i);
  void write_rows(const Part& at, const Outputs& to, std::int64_t j, std::int64_t& row);
  void walk_back(const Part& at, const Gradients& to, bool writes);
  void clear(const Gradients& to, std::int64_t head) const;
  /// base -> that of the next part, or backwards of the part before.
  void fold(const Part& at, const float* total) const;

  const Problem& p_;
  const ChunkKernels& kernels_;
  Powers powers_;
  std::int64_t step_, most_parts_;
  int groups_ = 1;
  std::span<Tokens> tokens_;
  std::span<float> by_;      // (sequences, longest_n)
  std::span<float> totals_;  // (heads, parts, step)
  std::span<ScanRoom> rooms_;
};

DecayScan::DecayScan(Arena& arena, const Problem& problem, int threads)
    : p_(problem),
      kernels_(*chosen().chunk),
      powers_(Powers::take(arena, problem, 1)),
      step_(padded(problem.size.E, line_pad)),
      most_parts_(blocks_of(problem.longest_m, part_keys)),
      tokens_(arena.take<Tokens>(problem.sequences)),
      by_(arena.take<float>(problem.sequences, problem.longest_n)),
      rooms_(arena.take<ScanRoom>(threads)) {
  if (heads() > 0 && heads() < threads && most_parts_ > 1)
    groups_ = int(std::min(blocks_of(threads, heads()), most_parts_));
  totals_ = arena.take<float>(groups_ > 1, heads(), most_parts_, step_);
  for (std::int64_t s = 0; s < problem.sequences; ++s)
    put(tokens_, s, Tokens::take(arena, problem));
  for (int t = 0; t < threads; ++t) {
    put(rooms_, t,
        ScanRoom{arena.take<float>(step_), arena.take<float>(step_), arena.take<float>(step_),
                 arena.take<float>(step_)});
  }
}

DecayScan::Part DecayScan::part(std::int64_t head, std::int64_t index, ScanRoom& room) const {
  const std::int64_t s = head / p_.size.G, begin = index * part_keys;
  return {tokens_[s], by_.data() + s * p_.longest_n,
          room,       head % p_.size.G,
          begin,      std::min(begin + part_keys, tokens_[s].n)};
}

void DecayScan::prepare() {
  powers_.fill();
  for (ScanRoom& room : rooms_) {
    for (auto* line : {&room.base, &room.local, &room.line, &room.out})
      std::fill(line->begin(), line->end(), 0.0f);
  }
  for (std::int64_t s = 0; s < p_.sequences; ++s) {
    tokens_[s].place(p_, s);
    decay_divisors(by_.data() + s * p_.longest_n, tokens_[s], powers_.rate);
  }
}

void DecayScan::add_key(const Part& at, std::int64_t j) {
  const Tokens& t = at.tokens;
  float *local = at.room.local.data(), *line = at.room.line.data();
  load_lines(line, step_, p_.from.v, {t.at.b, at.g, t.at.k0 + t.key_at[j]}, 1, p_.size.E);
  const float by = j > at.begin ? powers_.of(t.key_at[j] - t.key_at[j - 1]) : 0.0f;
  kernels_.blend(local, by, local, line, step_);
}

void DecayScan::fold(const Part& at, const float* total) const {
  const std::int64_t* key_at = at.tokens.key_at.data();
  const std::int64_t gap = at.begin > 0 ? key_at[at.end - 1] - key_at[at.begin - 1] : 0;
  kernels_.blend(at.room.base.data(), powers_.of(gap), at.room.base.data(), total, step_);
}

/// The rows whose last key is j.
void DecayScan::write_rows(const Part& at, const Outputs& to, std::int64_t j, std::int64_t& row) {
  const Tokens& t = at.tokens;
  const ScanRoom& room = at.room;
  const std::int64_t R = p_.heads_per_key();
  for (; row < t.at.N && t.sees[row] == j + 1; ++row) {
    const std::int64_t gap = at.begin > 0 ? t.key_at[j] - t.key_at[at.begin - 1] : 0;
    float* out = room.out.data();
    kernels_.blend(out, powers_.of(gap), room.base.data(), room.local.data(), step_);
    kernels_.divide(out, at.by[row], step_);
    for (std::int64_t h = at.g * R; h < (at.g + 1) * R; ++h)
      store_lines(to.o, {t.at.b, h, t.at.q0 + row}, out, step_, 1, p_.size.E);
  }
}

void DecayScan::forward(const Outputs& to, Executor* threads) {
  prepare();
  each(threads, p_.sequences, [&](std::int64_t s, int) {
    if (wants_tally(to)) decay_statistics(to, p_, tokens_[s]);
  });
  each(threads, groups_ > 1 ? heads() * most_parts_ : 0, [&](std::int64_t i, int thread) {
    const std::int64_t head = i / most_parts_, index = i % most_parts_;
    const Part at = part(head, index, rooms_[thread]);
    for (std::int64_t j = at.begin; j < at.end; ++j) add_key(at, j);
    std::copy_n(at.room.local.begin(), step_, total(head, index));
  });
  each_group(threads, [&](std::int64_t head, std::int64_t first, std::int64_t end, int thread) {
    ScanRoom& room = rooms_[thread];
    const Part whole = part(head, 0, room);
    const Tokens& t = whole.tokens;
    const auto begin = t.sees.begin(), last = begin + t.at.N;
    std::fill(room.base.begin(), room.base.end(), 0.0f);
    std::int64_t row = 0;
    if (first == 0) {  // rows that see nothing
      std::fill(room.local.begin(), room.local.end(), 0.0f);
      write_rows(whole, to, -1, row);
    }
    for (std::int64_t index = 0; index < first; ++index)
      fold(part(head, index, room), total(head, index));
    for (std::int64_t index = first; index < end; ++index) {
      const Part at = part(head, index, room);
      row = std::upper_bound(begin, last, at.begin) - begin;
      for (std::int64_t j = at.begin; j < at.end; ++j) {
        add_key(at, j);
        write_rows(at, to, j, row);
      }
      fold(at, room.local.data());
    }
  });
}

void DecayScan::add_row(const Part& at, const View& d_o, std::int64_t i) {
  const Tokens& t = at.tokens;
  const std::int64_t R = p_.heads_per_key();
  float *sum = at.room.out.data(), *line = at.room.line.data(), *local = at.room.local.data();
  std::fill_n(sum, step_, 0.0f);
  for (std::int64_t h = at.g * R; h < (at.g + 1) * R; ++h) {
    load_lines(line, step_, d_o, {t.at.b, h, t.at.q0 + i}, 1, p_.size.E);
    kernels_.blend(sum, 1, line, sum, step_);
  }
  kernels_.divide(sum, at.by[i], step_);
  kernels_.blend(local, 1, sum, local, step_);
}

/// local = what the part's rows send to its first key, moved on to the key before.
void DecayScan::walk_back(const Part& at, const Gradients& to, bool writes) {
  const Tokens& t = at.tokens;
  const ScanRoom& room = at.room;
  float *local = room.local.data(), *dv = room.out.data();
  const auto begin = t.sees.begin();
  std::int64_t row = std::upper_bound(begin, begin + t.at.N, at.end) - begin;
  std::fill_n(local, step_, 0.0f);
  for (std::int64_t j = at.end; j-- > at.begin;) {
    while (row > 0 && t.sees[row - 1] == j + 1) add_row(at, to.d_o, --row);
    if (writes) {
      const float by = powers_.of(t.key_at[at.end - 1] - t.key_at[j]);
      kernels_.blend(dv, by, room.base.data(), local, step_);
      store_lines(to.dv, {t.at.b, at.g, t.at.k0 + t.key_at[j]}, dv, step_, 1, p_.size.E);
    }
    if (j > 0) kernels_.scale(local, powers_.of(t.key_at[j] - t.key_at[j - 1]), step_);
  }
}

/// dq and dk are 0, and so is what a masked key or v_prev gets.
void DecayScan::clear(const Gradients& to, std::int64_t head) const {
  const Tokens& t = tokens_[head / p_.size.G];
  const std::int64_t g = head % p_.size.G, R = p_.heads_per_key(), D = p_.size.D, E = p_.size.E;
  for (std::int64_t h = g * R; h < (g + 1) * R; ++h)
    clear_lines(to.dq, {t.at.b, h, t.at.q0}, t.at.N, D);
  clear_lines(to.dk, {t.at.b, g, t.at.k0}, t.at.M, D);
  clear_lines(to.dv_prev, {t.at.b, g, t.at.k0}, t.at.M, E);
  std::int64_t kept = 0;
  for (std::int64_t j = 0; j < t.at.M; ++j) {
    if (kept < t.n && t.key_at[kept] == j) {
      ++kept;
    } else {
      clear_lines(to.dv, {t.at.b, g, t.at.k0 + j}, 1, E);
    }
  }
}

void DecayScan::backward(const Gradients& to, Executor* threads) {
  prepare();
  each(threads, heads(), [&](std::int64_t head, int) { clear(to, head); });
  each(threads, groups_ > 1 ? heads() * most_parts_ : 0, [&](std::int64_t i, int thread) {
    const std::int64_t head = i / most_parts_, index = i % most_parts_;
    if (index >= parts(head)) return;
    walk_back(part(head, index, rooms_[thread]), to, false);
    std::copy_n(rooms_[thread].local.begin(), step_, total(head, index));
  });
  each_group(threads, [&](std::int64_t head, std::int64_t first, std::int64_t end, int thread) {
    ScanRoom& room = rooms_[thread];
    std::fill(room.base.begin(), room.base.end(), 0.0f);
    for (std::int64_t index = parts(head); index-- > end;)
      fold(part(head, index, room), total(head, index));
    for (std::int64_t index = end; index-- > first;) {
      const Part at = part(head, index, room);
      walk_back(at, to, true);
      fold(at, room.local.data());
    }
  });
}

}  // namespace

std::size_t decay_workspace(const Problem& p, int threads) {
  Arena counting;
  DecayScan scan(counting, p, threads);
  return counting.used() + Arena::alignment;
}

void decay_forward(const Outputs& to, const Problem& p, std::span<std::byte> memory,
                   Executor* threads) {
  Arena arena(memory);
  DecayScan(arena, p, threads ? threads->threads() : 1).forward(to, threads);
}

void decay_backward(const Gradients& to, const Problem& p, std::span<std::byte> memory,
                    Executor* threads) {
  Arena arena(memory);
  DecayScan(arena, p, threads ? threads->threads() : 1).backward(to, threads);
}

}  // namespace foci::cpu
