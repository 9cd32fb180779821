// SPDX-License-Identifier: Apache-2.0
// The search for a scale, a block a search: the mean concentration of the last pass, then where to
// look next.
#include "cuda/match_dot.cuh"

namespace foci::cuda {

namespace {

constexpr int match_threads = 256;
/// log c is not looked for beyond this.
constexpr double farthest = 60;

enum class Task : int { begin, advance };

struct MatchArgs {
  ScaleMatch of;
  Task task;
};

/// Mean concentration over the rows that see a key; a NaN stays in its own row.
FOCI_DEVICE double mean_concentration(const ScaleMatch& of, int s, int g) {
  __shared__ double sums[match_threads];
  __shared__ int counts[match_threads];
  const Place at = of.shape.place(s);
  const int heads = of.shape.H / of.shape.G, me = int(threadIdx.x);
  double sum = 0;
  int rows = 0;
  for (int r = 0; r < heads; ++r) {
    const std::int64_t head = std::int64_t(at.b) * of.shape.H + g * heads + r;
    const float* row = of.concentration + head * of.shape.N + at.q0;
    for (int i = me; i < at.N; i += match_threads) {
      if (!(row[i] > 0)) continue;
      sum += double(row[i]);
      ++rows;
    }
  }
  sums[me] = sum, counts[me] = rows;
  for (int half = match_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (me < half) sums[me] += sums[me + half], counts[me] += counts[me + half];
  }
  __syncthreads();
  return counts[0] == 0 ? 1.0 : sums[0] / double(counts[0]);
}

/// excess: mean concentration at log c = search.at, minus the target; it falls as c grows.
FOCI_DEVICE void advance(ScaleSearch& search, double excess) {
  using Stage = ScaleSearch::Stage;
  const double at = search.at;
  if (search.stage == Stage::start)
    search.stage = excess < 0 ? Stage::falling : excess > 0 ? Stage::rising : Stage::done;
  if (search.stage == Stage::falling) {
    (excess < 0 ? search.high : search.low) = at;
    if (!(excess < 0)) search.stage = Stage::halving;
    if (excess < 0 && at <= -farthest) search.stage = Stage::done;
  } else if (search.stage == Stage::rising) {
    (excess > 0 ? search.low : search.high) = at;
    if (!(excess > 0)) search.stage = Stage::halving;
    if (excess > 0 && at >= farthest) search.stage = Stage::done;
  } else if (search.stage == Stage::halving) {
    (excess > 0 ? search.low : search.high) = at;
  }
  switch (search.stage) {
    case Stage::falling:
      search.at = at - search.step;
      break;
    case Stage::rising:
      search.at = at + search.step;
      break;
    case Stage::halving:
      search.at = (search.low + search.high) / 2;
      break;
    default:
      search.at = 0;  // c = 1: where it was, or where no scale serves
  }
  search.step *= 2;
}

__global__ void __launch_bounds__(match_threads) step_match(MatchArgs args) {
  const int index = int(blockIdx.x), s = index / args.of.shape.G, g = index % args.of.shape.G;
  ScaleSearch& search = args.of.searches[index];
  const double mean = mean_concentration(args.of, s, g);
  if (threadIdx.x != 0) return;
  if (args.task == Task::begin) search = {mean, 0, 0, 1, 0, ScaleSearch::Stage::start};
  if (args.task == Task::advance && search.stage != ScaleSearch::Stage::done)
    advance(search, mean - search.target);
  args.of.scales[index] = float(exp(search.at));
}

void run(const ScaleMatch& of, Task task, Stream stream) {
  launch("scale auto", step_match, {{unsigned(of.shape.sequences * of.shape.G)}, {match_threads}},
         stream, MatchArgs{of, task});
}

}  // namespace

ScaleMatch ScaleMatch::take(Arena& arena, const Shape& shape, int B) {
  ScaleMatch of;
  of.shape = shape;
  of.B = B;
  of.concentration = arena.take<float>(B, shape.H, shape.N).data();
  of.scales = arena.take<float>(shape.sequences, shape.G).data();
  of.searches = arena.take<ScaleSearch>(shape.sequences, shape.G).data();
  return of;
}

Rows ScaleMatch::rows() const {
  Rows rows;
  rows.concentration = Field::of(concentration, {B, shape.H, shape.N});
  return rows;
}

void begin_match(const ScaleMatch& of, Stream stream) { run(of, Task::begin, stream); }
void advance_match(const ScaleMatch& of, Stream stream) { run(of, Task::advance, stream); }

}  // namespace foci::cuda
