// SPDX-License-Identifier: Apache-2.0
// Sums over the tokens of a decoder. A block has some columns of the values of a key head and goes
// through the new tokens: each joins the sums, then its query heads read them. e^x of keys is
// measured from the largest key so far, coordinate by coordinate.
#include "cuda/running.cuh"

#include <cmath>

namespace foci::cuda {
namespace running {
namespace {

using chunks::Divisor;
using chunks::Map;

constexpr int columns = 32, groups = 8, threads = columns * groups;

/// Lines of keys that the sums know: coordinates, then a bias a head, or 1 where positions are all.
struct Lines {
  int D, biases;
  FOCI_HD int count() const { return D + biases; }
};

FOCI_HD Lines lines_of(const Shape& shape, int content, Map map) {
  if (!content) return {0, 1};
  return {shape.D, map == Map::none ? shape.H / shape.G : 0};
}

/// Doubles of a block: sums (lines, columns), those of phi alone (D), peaks (D), facts.
enum Fact { weight, seen, last, facts };
FOCI_HD std::int64_t block_size(const Lines& lines) {
  return std::int64_t(lines.count()) * columns + 2 * lines.D + facts;
}
FOCI_HD int tiles_of(int E) { return (E + columns - 1) / columns; }

struct Args {
  Shape shape;
  StepTokens tokens;
  Field q, o;
  float scale;
  Map map;
  Divisor divisor;
  int content;
  double log2_rate;
  double* sums;  // (B, G, tiles, block_size)
};

/// A block's sums in shared memory, and what a token brings.
struct Room {
  Lines lines;
  double *sums, *alone, *peaks, *facts;
  double* phi;    // (lines) of the key, then of a query
  double* parts;  // (groups, columns)
  double* by;     // what a row is divided by
  float* m;       // (n, D) of the tokens, where they bring a metric

  FOCI_DEVICE explicit Room(const Args& args)
      : lines(lines_of(args.shape, args.content, args.map)) {
    sums = reinterpret_cast<double*>(shared_memory());
    alone = sums + lines.count() * columns;
    peaks = alone + lines.D;
    facts = peaks + lines.D;
    phi = facts + running::facts;
    parts = phi + lines.count();
    by = parts + threads;
    m = reinterpret_cast<float*>(by + 1);
  }
  static std::size_t bytes(const Lines& lines, const StepTokens& tokens) {
    return sizeof(double) * std::size_t(block_size(lines) + lines.count() + threads + 1) +
           (tokens.v_prev.data ? StepTokens::room(tokens.n, tokens.D) : 0);
  }
};

/// Where a block stands.
struct Seat {
  int b, g, e0;
  int column, group;  // the thread's
  FOCI_DEVICE explicit Seat(const Args& args) {
    const int tiles = tiles_of(args.shape.E);
    e0 = int(blockIdx.x) % tiles * columns;
    g = int(blockIdx.x) / tiles % args.shape.G, b = int(blockIdx.x) / tiles / args.shape.G;
    column = int(threadIdx.x) % columns, group = int(threadIdx.x) / columns;
  }
};

FOCI_DEVICE double feature(Map map, double x) {
  if (map == Map::elu1) return x > 0 ? x + 1 : exp(x);
  if (map == Map::relu) return x < 0 ? 0 : x;
  return x;
}

/// phi of key i of the step; where peaks rise, the sums of before shrink.
FOCI_DEVICE void take_features(const Args& args, const Room& room, const Seat& seat, int i) {
  const Lines& lines = room.lines;
  const StepTokens& tokens = args.tokens;
  for (int f = int(threadIdx.x); f < lines.count(); f += threads) {
    double x = 1;
    if (f < lines.D) {
      x = double(tokens.k.load(seat.b, seat.g, i, f));
    } else if (args.content) {
      const int h = seat.g * lines.biases + f - lines.D;
      x = tokens.bias ? double(tokens.bias.load(seat.b, tokens.key_head_bias ? seat.g : h, i))
                      : 0.0;
    }
    room.phi[f] = f < lines.D && args.map != Map::exp ? feature(args.map, x) : x;
    if (args.map != Map::exp) continue;
    const double before = room.facts[seen] > 0 ? room.peaks[f] : double(chunks::far_below);
    const double peak = x > before ? x : before, shrink = exp(before - peak);
    room.phi[f] = exp(x - peak);
    room.peaks[f] = peak;
    room.alone[f] *= shrink;
    for (int c = 0; c < columns && shrink != 1; ++c) room.sums[f * columns + c] *= shrink;
  }
}

/// Key i of the step joins. Barriers before and after are its own.
FOCI_DEVICE void join(const Args& args, const Room& room, const Seat& seat, int i) {
  const int e = seat.e0 + seat.column, j = args.shape.M - args.shape.N + i;
  __syncthreads();
  take_features(args, room, seat, i);
  __syncthreads();
  const double fade =
      args.log2_rate == 0 ? 1.0 : exp2((double(j) - room.facts[last]) * args.log2_rate);
  const bool fades = room.facts[seen] > 0 && fade != 1;
  const double v = e < args.shape.E ? double(args.tokens.v.load(seat.b, seat.g, i, e)) : 0.0;
  for (int f = seat.group; f < room.lines.count(); f += groups) {
    double& sum = room.sums[f * columns + seat.column];
    sum = (fades ? sum * fade : sum) + room.phi[f] * v;
  }
  for (int d = int(threadIdx.x); d < room.lines.D; d += threads) room.alone[d] += room.phi[d];
  __syncthreads();
  if (threadIdx.x != 0) return;
  room.facts[weight] = (fades ? room.facts[weight] * fade : room.facts[weight]) + 1;
  room.facts[seen] += 1;
  room.facts[last] = double(j);
}

/// phi of query i of head h, and what its row is divided by. For a whole block.
FOCI_DEVICE void ask(const Args& args, const Room& room, const Seat& seat, int h, int i) {
  const Lines& lines = room.lines;
  const int thread = int(threadIdx.x);
  __syncthreads();
  for (int f = thread; f < lines.count(); f += threads) {
    const int own = h - seat.g * lines.biases + lines.D;
    double x = !args.content || f == own ? 1.0 : 0.0;
    if (f < lines.D) {
      const float q = args.q.load(seat.b, h, i, f);
      x = double(args.scale) * double(args.tokens.v_prev ? q * room.m[i * lines.D + f] : q);
    }
    if (f < lines.D && args.map != Map::exp) x = feature(args.map, x);
    room.phi[f] = args.map == Map::exp ? x + room.peaks[f] : x;
  }
  __syncthreads();
  if (args.map == Map::exp) {
    double top = 2 * double(chunks::far_below);
    for (int d = 0; d < lines.D; ++d) top = fmax(top, room.phi[d]);
    __syncthreads();
    for (int d = thread; d < lines.D; d += threads) room.phi[d] = exp(room.phi[d] - top);
    __syncthreads();
  }
  if (thread != 0) return;
  double by = args.divisor == Divisor::powers   ? room.facts[weight]
              : args.divisor == Divisor::length ? room.facts[seen]
                                                : 1.0;
  if (args.divisor == Divisor::sum) {
    by = 0;
    for (int d = 0; d < lines.D; ++d) by += room.phi[d] * room.alone[d];
  }
  *room.by = room.facts[seen] > 0 ? by : 0.0;
}

FOCI_DEVICE void answer(const Args& args, const Room& room, const Seat& seat, int h, int i) {
  double sum = 0;
  for (int f = seat.group; f < room.lines.count(); f += groups)
    sum += room.phi[f] * room.sums[f * columns + seat.column];
  room.parts[threadIdx.x] = sum;
  __syncthreads();
  const int e = seat.e0 + seat.column;
  if (seat.group != 0 || e >= args.shape.E) return;
  for (int group = 1; group < groups; ++group) sum += room.parts[group * columns + seat.column];
  args.o.store(*room.by == 0 ? 0.0f : float(sum / *room.by), seat.b, h, i, e);
}

__global__ void __launch_bounds__(threads) run_tokens(Args args) {
  const Room room(args);
  const Seat seat(args);
  const StepTokens& tokens = args.tokens;
  const std::int64_t size = block_size(room.lines);
  double* kept = args.sums + std::int64_t(blockIdx.x) * size;
  for (int x = int(threadIdx.x); x < size; x += threads) room.sums[x] = kept[x];
  if (tokens.v_prev) tokens.find_metric(room.m, seat.b, seat.g, seat.e0 == 0);
  __syncthreads();
  for (int i = 0; i < tokens.n; ++i) {
    if (tokens.to_k && seat.e0 == 0) tokens.append(seat.b, seat.g, i);
    if (tokens.keeps(seat.b, i)) join(args, room, seat, i);
    for (int h = seat.g * tokens.R; h < (seat.g + 1) * tokens.R; ++h) {
      ask(args, room, seat, h, i);
      __syncthreads();
      answer(args, room, seat, h, i);
    }
  }
  __syncthreads();
  for (int x = int(threadIdx.x); x < size; x += threads) kept[x] = room.sums[x];
}

}  // namespace
}  // namespace running

std::int64_t RunningSums::size(const Problem& p) {
  if (!chunked_serves(p)) return 0;
  Shape shape;
  shape.H = int(p.size.H), shape.G = int(p.size.G), shape.D = int(p.size.D);
  const auto how = chunks::how_of(p.how.weighting);
  return p.size.B * p.size.G * running::tiles_of(int(p.size.E)) *
         running::block_size(running::lines_of(shape, how.content, how.map));
}

RunningSums::RunningSums(const Problem& p, const Shape& shape, double* sums)
    : shape_(shape), sums_(sums) {
  const auto how = chunks::how_of(p.how.weighting);
  map_ = how.map, divisor_ = how.divisor, content_ = how.content;
  if (const auto* decay = std::get_if<Decay>(&p.how.weighting)) log2_rate_ = std::log2(decay->rate);
}

void RunningSums::forward(const Field& q, float scale, const Field& o, const StepTokens& tokens,
                          Stream stream) const {
  using namespace running;
  const Args args{shape_, tokens, q, o, scale, map_, divisor_, content_, log2_rate_, sums_};
  const auto blocks = std::int64_t(shape_.sequences) * shape_.G * tiles_of(shape_.E);
  const std::size_t room = Room::bytes(lines_of(shape_, content_, map_), tokens);
  launch("decoder: running sums", run_tokens, {{unsigned(blocks)}, {threads}, room}, stream, args);
}

StepTokens last_keys(const Problem& p) {
  const auto& z = p.size;
  const Inputs& from = p.from;
  const std::int64_t begin = z.M - z.N;
  StepTokens tokens;
  tokens.n = int(z.N), tokens.G = int(z.G), tokens.R = int(z.H / z.G);
  tokens.D = int(z.D), tokens.E = int(z.E);
  tokens.k = Field(from.k.sliced(2, begin, z.M));
  tokens.v = Field(from.v.sliced(2, begin, z.M));
  if (from.key_mask) tokens.mask = Field(from.key_mask.sliced(1, begin, z.M));
  if (from.key_bias) tokens.bias = Field(from.key_bias.sliced(2, begin, z.M));
  tokens.key_head_bias = from.key_bias && from.key_bias.shape[1] != z.H;
  return tokens;
}

}  // namespace foci::cuda
