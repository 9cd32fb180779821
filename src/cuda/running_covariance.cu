// SPDX-License-Identifier: Apache-2.0
// A decoder's covariance: stretches of keys join the moments by Chan's formula, and a block whitens
// a token's key and its queries.
#include "cuda/running_covariance.cuh"

#include "cuda/whiten.cuh"

#include <algorithm>

namespace foci::cuda {

namespace {

constexpr int threads = 128;
constexpr std::int64_t part_keys = 256;  // of a long stretch
constexpr std::int64_t most_parts = 64;

/// Moments (heads) of all keys so far, and of a stretch, whose scatters are `step` apart.
struct Join {
  int D;
  int* count;
  double *mean, *scatter;
  const int* more_count;
  const double *more_mean, *more_scatter;
  std::int64_t step;
};

/// A block a row of a head's scatter; the mean and the count are left to advance_means.
__global__ void __launch_bounds__(threads) join_scatters(Join of) {
  const int head = int(blockIdx.x) / of.D, d = int(blockIdx.x) % of.D, D = of.D;
  const double n = of.count[head], more = of.more_count[head];
  if (more == 0) return;
  const double *mean = of.mean + std::int64_t(head) * D, *other = of.more_mean + head * D;
  const double weight = n * more / (n + more), gap = other[d] - mean[d];
  double* to = of.scatter + (std::int64_t(head) * D + d) * D;
  const double* from = of.more_scatter + head * of.step + d * D;
  for (int e = int(threadIdx.x); e <= d; e += threads)
    to[e] += from[e] + weight * gap * (other[e] - mean[e]);
}

/// A block a head.
__global__ void __launch_bounds__(threads) advance_means(Join of) {
  const int head = int(blockIdx.x), D = of.D;
  const double n = of.count[head], more = of.more_count[head];
  __syncthreads();
  for (int d = int(threadIdx.x); d < D && more > 0; d += threads) {
    double& mean = of.mean[std::int64_t(head) * D + d];
    mean += more / (n + more) * (of.more_mean[std::int64_t(head) * D + d] - mean);
  }
  if (threadIdx.x == 0) of.count[head] = int(n + more);
}

struct Take {
  StepTokens tokens;
  Field q;  // (B,H,n,D)
  const float *W, *centre;
  float *zk, *zq;  // (B,G,capacity,D) from the first token on, (B,H,n,D)
  std::int64_t capacity;
};

/// A block a token of a key head: it joins the cache, and z = W (x - centre) of its key and its
/// queries, a warp a row of W.
__global__ void __launch_bounds__(threads) take_tokens(Take of) {
  auto* lines = reinterpret_cast<double*>(shared_memory());  // (1 + R, D)
  const StepTokens& tokens = of.tokens;
  const int n = tokens.n, D = tokens.D, R = tokens.R;
  const int i = int(blockIdx.x) % n, g = int(blockIdx.x) / n % tokens.G;
  const int b = int(blockIdx.x) / n / tokens.G;
  const std::int64_t head = std::int64_t(b) * tokens.G + g;
  tokens.append(b, g, i);
  for (int x = int(threadIdx.x); x < (1 + R) * D; x += threads) {
    const int line = x / D, d = x % D;
    const float from = line == 0 ? tokens.k.load(b, g, i, d) : of.q.load(b, g * R + line - 1, i, d);
    lines[x] = double(from - of.centre[head * D + d]);
  }
  __syncthreads();
  for (int e = int(threadIdx.x) / warp; e < D; e += threads / warp) {
    const float* W = of.W + (head * D + e) * D;
    for (int line = 0; line <= R; ++line) {
      double sum = 0;
      for (int d = lane(); d <= e; d += warp) sum += double(W[d]) * lines[line * D + d];
      for (int step = warp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (lane() != 0) continue;
      float* to = line == 0 ? of.zk + (head * of.capacity + i) * D
                            : of.zq + ((head * R + line - 1) * n + i) * D;
      to[e] = float(sum);
    }
  }
}

}  // namespace

RunningCovariance::RunningCovariance(Arena& arena, const Problem& cache, std::int64_t most)
    : cache_(cache), period_(cache.metric<KeyCovariance>()->period), most_(most) {
  const auto& z = cache.size;
  const std::int64_t heads = z.B * z.G, D = z.D;
  count_ = arena.take<int>(heads).data();
  mean_ = arena.take<double>(heads, D).data();
  scatter_ = arena.take<double>(heads, D, D).data();
  W_ = arena.take<float>(heads, D, D).data();
  centre_ = arena.take<float>(heads, D).data();
  if (wants_room(int(D))) inverse_ = arena.take<double>(heads, D, D).data();
  status_ = arena.take<std::int32_t>(heads).data();
  zk_ = arena.take<float>(heads, z.M, D).data();
  zq_ = arena.take<float>(z.B, z.H, most, D).data();
  parts_ = std::clamp<std::int64_t>(parts(z.M, part_keys), 1, most_parts);
  more_.part_count = arena.take<int>(heads, parts_).data();
  more_.part_mean = arena.take<double>(heads, parts_, D).data();
  more_.scatter = arena.take<double>(heads, parts_, D, D).data();
  more_.count = arena.take<int>(heads).data();
  more_.mean = arena.take<double>(heads, D).data();
}

std::int64_t RunningCovariance::until_next(std::int64_t length) const {
  return period_ - length % period_;
}

Slots RunningCovariance::slots(std::int64_t keys) const {
  const auto& z = cache_.size;
  Slots of;
  of.shape = {.sequences = int(z.B),
              .H = int(z.H),
              .G = int(z.G),
              .N = 1,
              .M = int(keys),
              .D = int(z.D),
              .E = int(z.E),
              .longest_n = 1,
              .longest_m = int(keys)};
  of.B = int(z.B);
  return of;
}

/// Keys [begin, end) join the moments.
void RunningCovariance::learn(const View& k, std::int64_t begin, std::int64_t end, Stream stream) {
  const auto& z = cache_.size;
  const std::int64_t heads = z.B * z.G, D = z.D;
  if (begin == 0) fill(count_, 0, sizeof(int) * std::size_t(heads), stream);
  if (begin == 0) fill(mean_, 0, sizeof(double) * std::size_t(heads * D), stream);
  if (begin == 0) fill(scatter_, 0, sizeof(double) * std::size_t(heads * D * D), stream);
  if (begin == end) return;
  Moments of = more_;
  of.slots = slots(end - begin);
  of.k = Field(k.sliced(2, begin, end));
  of.part_keys = int(parts(end - begin, std::min(parts_, parts(end - begin, part_keys))));
  of.parts = int(parts(end - begin, of.part_keys));
  gather_moments(of, stream);
  const Join join{int(D), count_, mean_, scatter_, of.count, of.mean, of.scatter, of.parts * D * D};
  launch("decoder: covariance", join_scatters, {{unsigned(heads * D)}, {threads}}, stream, join);
  launch("decoder: mean of keys", advance_means, {{unsigned(heads)}, {threads}}, stream, join);
}

/// W, centre and lines of the keys before `length`, of which the cache has one more at least.
void RunningCovariance::renew(const View& k, std::int64_t length, Stream stream) {
  const std::int64_t D = cache_.size.D, end = length / period_ * period_;
  learn(k, known_, end, stream);
  known_ = end;
  chunk_ = length / period_;
  const auto* how = cache_.metric<KeyCovariance>();
  Factors of;
  of.slots = slots(length + 1);
  of.k = Field(k);
  of.count = count_;
  of.mean = mean_;
  of.scatter = scatter_;
  of.scatter_step = D * D;
  of.shrink = {how->ridge, *how->prior};
  of.W = W_;
  of.centre = centre_;
  of.inverse = inverse_;
  of.status = Field(View(status_, {cache_.size.B, cache_.size.G}));
  factor(of, stream);
  LineSet keys{slots(length), {W_, centre_, 1}, 1};
  keys.room = int(cache_.size.M);
  if (length > 0) whiten(zk_, Field(k), keys, stream);
}

Folded RunningCovariance::take(const Problem& step, const View& k, const StepTokens& tokens,
                               Stream stream) {
  const auto& z = step.size;
  const std::int64_t length = z.M - z.N;
  Take of{tokens, Field(step.from.q), W_, centre_, zk_ + length * z.D, zq_, cache_.size.M};
  const Grid grid{
      {unsigned(z.B * z.G * z.N)}, {threads}, sizeof(double) * std::size_t((1 + tokens.R) * z.D)};
  if (due(length)) renew(k, length, stream);
  launch("decoder: new tokens", take_tokens, grid, stream, of);
  taken_ = z.M;
  Folded lines;
  lines.score = Score::difference;
  lines.scale = float(step.c);
  lines.v = Field(step.from.v);
  lines.key_bias = Field(step.from.key_bias);
  lines.q = Field::of(zq_, {z.B, z.H, z.N, z.D});
  lines.k = Field::of(zk_, {z.B, z.G, cache_.size.M, z.D});
  return lines;
}

}  // namespace foci::cuda
