// SPDX-License-Identifier: Apache-2.0
// The forward pass of every weighting over every score, in float: a block has the queries of a tile
// and goes through the keys, tile by tile: scores, weights, weights times values. What a row is
// divided by and its statistics ride along, and the division comes last.
#include "cuda/tile_score.cuh"
#include "cuda/tile_sight.cuh"

namespace foci::cuda {
namespace tile {
namespace {

struct Forward {
  Work work;
  Rows to;
  Lines o;
};

/// softmax alone, softmax with statistics, and all others.
enum class Mode { softmax, measured, rescaled };

template <Score form, int W>
using ForwardTile = Tile<8, form == Score::weighted && W == 256 ? 4 : 8, W == 256 ? 2 : 4, W>;

/// Shared memory of a block. Weights lie where the keys were.
template <class T, Score form>
struct Room {
  float *q, *m, *k, *v, *bias;
  int *stands, *last_seen;

  static constexpr int metric_floats = form == Score::weighted ? T::row_floats : 0;
  static constexpr std::size_t bytes =
      sizeof(float) * (T::row_floats + metric_floats + 2 * T::column_floats) +
      sizeof(float) * (2 * T::columns + T::rows);
  static_assert(T::weights <= T::column_floats);

  FOCI_DEVICE Room() {
    q = reinterpret_cast<float*>(shared_memory());
    m = q + T::row_floats;
    k = m + metric_floats;
    v = k + T::column_floats;
    bias = v + T::column_floats;
    stands = reinterpret_cast<int*>(bias + T::columns);
    last_seen = stands + T::columns;
  }
};

/// What the rows of a tile see.
struct Sight {
  const Work& work;
  const Seat& seat;
  int i0, count;  // the tile's queries
  float scale;

  FOCI_DEVICE int reach(int row) const {
    return row < count ? work.shape.reach(seat.at, i0 + row) : 0;
  }
};

/// A row of softmax: a thread's part of its sums, relative to the largest score of the whole row.
struct SoftmaxRow {
  float top = -INFINITY, sum = 0;
  // measured alone
  float squares = 0, logs = 0;  // of e^2, (s - top) e
  float best = -INFINITY;       // the thread's own largest score
  int best_at = -1, n = 0;

  /// Becomes `other` if so: a choice of registers, where an index would ask for memory.
  FOCI_DEVICE void become(const SoftmaxRow& other, bool so) {
    top = so ? other.top : top, sum = so ? other.sum : sum;
    squares = so ? other.squares : squares, logs = so ? other.logs : logs;
    best_at = so ? other.best_at : best_at, n = so ? other.n : n;
  }
};

/// A row x of another weighting: a thread's part of its sums, in units of its own that keep squares
/// within the range of float.
struct RescaledRow {
  int power = 0;                         // the unit u is 2^power
  float sum = 0, squares = 0, logs = 0;  // of u|x|, (ux)^2, ux log2 ux
  float fades = 0;                       // decay: of the powers
  float best = 0;                        // largest |x|
  int best_at = -1, n = 0;

  FOCI_DEVICE void become(const RescaledRow& other, bool so) {
    power = so ? other.power : power, sum = so ? other.sum : sum;
    squares = so ? other.squares : squares, logs = so ? other.logs : logs;
    fades = so ? other.fades : fades, best = so ? other.best : best;
    best_at = so ? other.best_at : best_at, n = so ? other.n : n;
  }
};

template <Mode mode>
struct RowOf {
  using type = SoftmaxRow;
};
template <>
struct RowOf<Mode::rescaled> {
  using type = RescaledRow;
};

/// A row that is done. a = x / by; sum and squares are those of |x| in some unit.
struct Facts {
  float by = 0;
  float lse = -INFINITY, sum = 0, squares = 0, entropy = 0, largest = 0;
  int largest_at = -1, n = 0;
};

FOCI_DEVICE void take_best(float& best, int& best_at, float x, int j) {
  if (best_at >= 0 && !(x > best)) return;
  best = x;
  best_at = j;
}

/// The larger of two, the lower place where they are equal.
FOCI_DEVICE void take_lower(float& best, int& best_at, float other, int at) {
  const bool first = best_at < 0 || (at < best_at && other == best);
  if (at < 0 || !(first || other > best)) return;
  best = other;
  best_at = at;
}
FOCI_DEVICE void best_across(float& best, int& best_at) {
  FOCI_UNROLL
  for (int step = across / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, best, step);
    const int at = __shfl_xor_sync(~0u, best_at, step);
    take_lower(best, best_at, other, at);
  }
}

FOCI_DEVICE int count_across(int n) {
  FOCI_UNROLL
  for (int step = across / 2; step > 0; step /= 2) n += __shfl_xor_sync(~0u, n, step);
  return n;
}

/// Scores to e^(s - top); a new top brings the sums along.
template <Mode mode, class T, Score form>
FOCI_DEVICE void weigh_tile(float (&s)[T::each_row][T::each_column],
                            SoftmaxRow (&rows)[T::each_row], Sums<T>& sums, const Sight& sight,
                            const Room<T, form>& room) {
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    SoftmaxRow& row = rows[r];
    const int reach = sight.reach(ty() + r * T::down);
    float most = row.top;
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) {
      const int j = tx() + c * across, stands = room.stands[j];
      const bool seen = stands < reach;
      s[r][c] = seen ? sight.scale * s[r][c] + room.bias[j] : -INFINITY;
      most = fmaxf(most, s[r][c]);
      if constexpr (mode == Mode::measured) {
        row.n += seen;
        if (seen) take_best(row.best, row.best_at, s[r][c], stands);
      }
    }
    most = max_across(most);
    const float top = most == -INFINITY ? 0 : most;  // -inf - -inf would be NaN
    const float fade = expf(row.top - top);
    if constexpr (mode == Mode::measured) {
      row.logs = row.sum == 0 ? 0 : fade * (row.logs + (row.top - top) * row.sum);
      row.squares *= fade * fade;
    }
    row.sum *= fade;
    row.top = most;
    sums.scale_row(r, fade);
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) {
      const float below = s[r][c] - top, e = expf(below);
      s[r][c] = e;
      row.sum += e;
      if constexpr (mode == Mode::measured) {
        row.squares += e * e;
        if (e > 0) row.logs += below * e;
      }
    }
  }
}

/// Calls f(score, row, stand) for what is seen; what is not becomes 0.
template <class T, Score form, class F>
FOCI_DEVICE void each_seen(float (&s)[T::each_row][T::each_column], const Sight& sight,
                           const Room<T, form>& room, const F& f) {
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    const int reach = sight.reach(ty() + r * T::down);
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) {
      const int j = tx() + c * across, stands = room.stands[j];
      s[r][c] = stands < reach ? f(sight.scale * s[r][c] + room.bias[j], r, stands) : 0;
    }
  }
}

/// Scores to x.
template <class T, Score form>
FOCI_DEVICE void take_values(float (&s)[T::each_row][T::each_column],
                             RescaledRow (&rows)[T::each_row], const Sight& sight,
                             const Room<T, form>& room) {
  const Weigh& how = sight.work.weigh;
  const auto fade = [&](int r, int stands) {
    const int last = room.last_seen[ty() + r * T::down];
    const float power = power_of_two(float(last - stands) * how.log2_rate);
    rows[r].fades += power;
    return power;
  };
  switch (how.kind) {
    case Kind::relu2:
      return each_seen<T>(s, sight, room, [](float x, int, int) {
        const float positive = x < 0 ? 0 : x;  // NaN stays NaN
        return positive * positive;
      });
    case Kind::decay:
      return each_seen<T>(s, sight, room,
                          [&](float, int r, int stands) { return fade(r, stands); });
    case Kind::decay_content:
      return each_seen<T>(s, sight, room,
                          [&](float x, int r, int stands) { return fade(r, stands) * x; });
    default:
      return each_seen<T>(s, sight, room, [](float x, int, int) { return x; });
  }
}

/// 2^power, and 0 far below.
FOCI_DEVICE float unit_of(int power) {
  return power < -126 ? 0 : __int_as_float((min(power, 127) + 127) << 23);
}

/// Brings the sums to another unit.
FOCI_DEVICE void change_unit(RescaledRow& row, int power) {
  const float ratio = unit_of(power - row.power);
  row.logs = ratio * (row.logs + float(power - row.power) * row.sum);
  row.sum *= ratio;
  row.squares = row.squares * ratio * ratio;
  row.power = power;
}

/// Squares of numbers between these stay within the range of float; a power of two brings others
/// there.
FOCI_DEVICE void choose_unit(RescaledRow& row) {
  const float size = row.best * unit_of(row.power);
  if (row.best == 0 || (size > 0x1p-50f && size < 0x1p50f) || !(row.best < INFINITY)) return;
  const int exponent = (__float_as_int(row.best) >> 23) - 127;
  change_unit(row, max(-126, min(126, -exponent)));
}

/// Scores to x, and its sums. (mode, for the name's sake, and sums: nothing to bring along.)
template <Mode mode, class T, Score form>
FOCI_DEVICE void weigh_tile(float (&s)[T::each_row][T::each_column],
                            RescaledRow (&rows)[T::each_row], Sums<T>&, const Sight& sight,
                            const Room<T, form>& room, bool logs) {
  take_values<T>(s, rows, sight, room);
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    RescaledRow& row = rows[r];
    const int reach = sight.reach(ty() + r * T::down);
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) {
      const int stands = room.stands[tx() + c * across];
      if (stands >= reach) continue;
      ++row.n;
      take_best(row.best, row.best_at, fabsf(s[r][c]), stands);
    }
    choose_unit(row);
    const float unit = unit_of(row.power);
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) {
      const float x = fabsf(s[r][c]) * unit;
      row.sum += x;
      row.squares += x * x;
      if (logs && x > 0) row.logs += x * __log2f(x);
    }
  }
}

/// The row's whole sums, in every thread of it.
template <Mode mode>
FOCI_DEVICE void join_across(SoftmaxRow& row) {
  row.sum = sum_across(row.sum);
  if constexpr (mode == Mode::measured) {
    row.squares = sum_across(row.squares);
    row.logs = sum_across(row.logs);
    row.n = count_across(row.n);
    best_across(row.best, row.best_at);
  }
}
template <Mode mode>
FOCI_DEVICE void join_across(RescaledRow& row) {
  FOCI_UNROLL
  for (int step = across / 2; step > 0; step /= 2) {
    RescaledRow other;
    other.power = __shfl_xor_sync(~0u, row.power, step);
    other.sum = __shfl_xor_sync(~0u, row.sum, step);
    other.squares = __shfl_xor_sync(~0u, row.squares, step);
    other.logs = __shfl_xor_sync(~0u, row.logs, step);
    other.best = __shfl_xor_sync(~0u, row.best, step);
    other.best_at = __shfl_xor_sync(~0u, row.best_at, step);
    // The unit of the larger one; both threads choose alike.
    const int power = other.best == row.best  ? max(row.power, other.power)
                      : other.best > row.best ? other.power
                                              : row.power;
    change_unit(row, power);
    change_unit(other, power);
    row.sum += other.sum;
    row.squares += other.squares;
    row.logs += other.logs;
    take_lower(row.best, row.best_at, other.best, other.best_at);
  }
  row.fades = sum_across(row.fades);
  row.n = count_across(row.n);
}

FOCI_DEVICE Facts facts_of(const SoftmaxRow& row, const Weigh&) {
  Facts facts;
  facts.by = facts.sum = row.sum;
  facts.squares = row.squares;
  facts.n = row.n;
  facts.largest_at = row.best_at;
  if (row.sum == 0) return facts;
  facts.lse = row.top + logf(row.sum);
  facts.entropy = logf(row.sum) - row.logs / row.sum;
  facts.largest = 1 / row.sum;
  return facts;
}
FOCI_DEVICE Facts facts_of(const RescaledRow& row, const Weigh& how) {
  Facts facts;
  facts.sum = row.sum;
  facts.squares = row.squares;
  facts.n = row.n;
  facts.largest_at = row.best_at;
  if (row.n == 0) return facts;
  if (how.kind == Kind::decay || how.kind == Kind::decay_content) {
    facts.by = row.fades;
  } else if (how.rescale == Rescale::length) {
    facts.by = float(row.n);
  } else if (how.rescale == Rescale::none) {
    facts.by = 1;
  } else {
    facts.by = (how.rescale == Rescale::l1 ? row.sum : sqrtf(row.squares)) / unit_of(row.power);
  }
  if (facts.by == 0) return facts;
  const float whole = facts.by * unit_of(row.power);  // the row's sum, where there is an entropy
  facts.entropy = logf(whole) - row.logs / (whole * log2_e);
  facts.largest = row.best / facts.by;
  return facts;
}

FOCI_DEVICE void write_facts(const Rows& to, const Facts& facts, const Seat& seat, int i,
                             const Shape& shape) {
  const int b = seat.at.b, h = seat.h, token = seat.at.q0 + i;
  const auto put_one = [&](const Field& field, float x) {
    if (field) field.store(x, b, h, token);
  };
  const bool focused = facts.largest != 0;
  const float n = float(facts.n);
  const float concentration = focused ? facts.sum / sqrtf(n * facts.squares) : 0;
  put_one(to.lse, facts.lse);
  put_one(to.concentration, concentration);
  put_one(to.effective_keys, n * concentration * concentration);
  put_one(to.entropy, facts.entropy);
  put_one(to.largest, facts.largest);
  if (to.largest_at) {
    const std::int64_t at = to.largest_at.offset(b, h, token);
    static_cast<std::int64_t*>(to.largest_at.data)[at] = facts.largest_at;
  }
  if (to.by) to.by[(std::int64_t(b) * shape.H + h) * shape.N + token] = facts.by;
}

/// What a tile knows of its keys from j0 on.
template <class T, Score form>
FOCI_DEVICE void note_keys(const Room<T, form>& room, const Work& work, const Seat& seat, int j0) {
  for (int j = int(threadIdx.x); j < T::columns; j += T::threads) {
    room.stands[j] = stand_of(work, seat.at, j0 + j);
    room.bias[j] = bias_of(work, seat.at, seat.h, seat.g, j0 + j);
  }
}

/// x / by as division rounds it, by one over it.
FOCI_DEVICE float divided(float x, float by, float over) {
  const float near = x * over;
  return near + over * fmaf(-near, by, x);
}

/// Divides and writes. Of the threads that share rows, thread r sees to the facts of row r.
template <Mode mode, class T>
FOCI_DEVICE void finish(const Forward& args, const Sight& sight, float* room,
                        typename RowOf<mode>::type (&rows)[T::each_row], Sums<T>& sums) {
  static_assert(T::each_row <= across);
  const Seat& seat = sight.seat;
  typename RowOf<mode>::type mine;
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    join_across<mode>(rows[r]);
    mine.become(rows[r], tx() == r);
  }
  const Facts facts = facts_of(mine, args.work.weigh);
  const int row = ty() + tx() * T::down;
  if (tx() < T::each_row && row < sight.count)
    write_facts(args.to, facts, seat, sight.i0 + row, args.work.shape);
  const float inverse = facts.by == 0 ? 0 : 1 / facts.by;
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    const float by = __shfl_sync(~0u, facts.by, r, across);
    const float over = __shfl_sync(~0u, inverse, r, across);
    FOCI_UNROLL
    for (int quad = 0; quad < T::quads; ++quad) {
      float4& o = sums.at[r][quad];
      o = make_float4(divided(o.x, by, over), divided(o.y, by, over), divided(o.z, by, over),
                      divided(o.w, by, over));
    }
  }
  if (!args.to.o) return;
  const std::int64_t from = args.o.of.offset(seat.at.b, seat.h, seat.at.q0 + sight.i0);
  store_lines<T>(args.o, from, sight.count, sums, room);
}

/// The rows of one tile, from query i0 on.
template <Score form, int W, Mode mode>
FOCI_DEVICE void attend_tile(const Forward& args, const Seat& seat, int i0, int last) {
  using T = ForwardTile<form, W>;
  const Room<T, form> room;
  const Work& work = args.work;
  const int count = min(T::rows, last - i0);
  const Sight sight{work, seat, i0, count, work.template scale<form>(seat.s, seat.g)};
  const auto within = [&](int row) { return row < count; };
  const auto kept = [&](int column) { return room.stands[column] != nowhere; };
  const int token = seat.at.q0 + i0, keys = sight.reach(count - 1);
  __syncthreads();  // the tile before is done
  load_lines<T, T::rows>(room.q, work.q, work.q.of.offset(seat.at.b, seat.h, token), within);
  if constexpr (form == Score::weighted)
    load_lines<T, T::rows>(room.m, work.m, work.m.of.offset(seat.at.b, seat.h, token), within);
  if (work.fades()) find_last_seen(room.last_seen, work, seat.at, i0, count);
  note_keys(room, work, seat, 0);
  typename RowOf<mode>::type rows[T::each_row];
  Sums<T> sums;
  sums.clear();
  for (int j0 = 0; j0 < keys; j0 += T::columns) {
    __syncthreads();
    if (work.scored())
      load_lines<T, T::columns>(room.k, work.k,
                                key_offset(work, work.k.of, seat.at, seat.c, seat.g, j0), kept);
    load_lines<T, T::columns>(room.v, work.v, work.v.of.offset(seat.at.b, seat.g, seat.at.k0 + j0),
                              kept);
    __syncthreads();
    float s[T::each_row][T::each_column] = {};
    if (work.scored()) score_lines<T, form>(s, room.q, room.k, room.m, work.shape);
    __syncthreads();  // the keys are done: weights take their place
    if constexpr (mode == Mode::rescaled) {
      weigh_tile<mode, T, form>(s, rows, sums, sight, room, bool(args.to.entropy));
    } else {
      weigh_tile<mode, T, form>(s, rows, sums, sight, room);
    }
    put<T>(room.k, s);
    __syncthreads();
    note_keys(room, work, seat, j0 + T::columns);
    gather<T>(sums, room.k, room.v);
  }
  finish<mode, T>(args, sight, room.q, rows, sums);
}

template <Score form, int W, Mode mode>
__global__ void __launch_bounds__(8 * across, W == 64    ? 3
                                              : W == 128 ? 2
                                                         : 1) attend_kernel(Forward args) {
  const Seat seat = seat_of(args.work);
  if (elsewhere(args.work, seat.s, seat.g)) return;
  const Span span = span_of(args.work, seat.at, seat.s, seat.c);
  const int rows = ForwardTile<form, W>::rows;
  for (int i0 = span.first + seat.part * rows; i0 < span.last; i0 += args.work.parts * rows)
    attend_tile<form, W, mode>(args, seat, i0, span.last);
}

template <Score form, int W>
void launch_forward(Forward args, bool measured, Stream stream) {
  using T = ForwardTile<form, W>;
  args.work = work_of(args.work.shape, args.work.folded, args.work.weigh, T::rows);
  const Grid grid{dim3(unsigned(query_blocks(args.work))), dim3(T::threads), Room<T, form>::bytes};
  if (args.work.weigh.kind != Kind::softmax) {
    launch("tile_forward", attend_kernel<form, W, Mode::rescaled>, grid, stream, args);
  } else if (measured) {
    launch("tile_forward", attend_kernel<form, W, Mode::measured>, grid, stream, args);
  } else {
    launch("tile_forward", attend_kernel<form, W, Mode::softmax>, grid, stream, args);
  }
}

}  // namespace
}  // namespace tile

void tile_forward(const Shape& shape, const Folded& folded, const Weigh& weigh, const Rows& to,
                  Stream stream) {
  tile::Forward args{{shape, folded, weigh, {}, {}, {}, {}, 1}, to, {}};
  if (to.o.data) args.o = tile::lines_of(to.o, 4, shape.E);
  const bool measured = to.concentration.data || to.effective_keys.data || to.entropy.data ||
                        to.largest.data || to.largest_at.data;
  tile::with_form(shape, folded, [&](auto form, auto width) {
    tile::launch_forward<form(), width()>(args, measured, stream);
  });
}

}  // namespace foci::cuda
