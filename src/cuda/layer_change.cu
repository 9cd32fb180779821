// SPDX-License-Identifier: Apache-2.0
// The lower median digit by digit: floats that are not negative are ordered like their bits, so
// eight rounds of counting by four bits find it. And d|v - v_prev| to v and v_prev, d|0| = 0.
#include "cuda/layer_change.cuh"

namespace foci::cuda {

namespace {

constexpr int median_warps = 8, digits = 16, digit_bits = 4;

struct Median {
  TokenMean mean;
  int* chosen;
};

/// The bits of a token's change in this thread's column.
struct Column {
  const Terms& of;
  Terms::Span at;
  int head, d;

  FOCI_DEVICE unsigned bits(int j) const {
    const int token = at.first + j;
    return __float_as_uint(
        fabsf(of.x.load(at.b, head, token, d) - of.y.load(at.b, head, token, d)));
  }
  FOCI_DEVICE double exact(int j) const {
    const int token = at.first + j;
    return fabs(double(of.x.load(at.b, head, token, d)) - double(of.y.load(at.b, head, token, d)));
  }
};

/// The bits of the number with `rank` smaller ones (or equal ones before it); rank becomes its
/// rank among its equals. counts (16, 32) in shared memory; a column a lane, tokens by warps.
FOCI_DEVICE unsigned select_bits(const Column& column, bool works, int& rank, int* counts) {
  const int w = int(threadIdx.x) / warp, x = lane();
  unsigned found = 0;
  for (int shift = 32 - digit_bits; shift >= 0; shift -= digit_bits) {
    for (int digit = w; digit < digits; digit += median_warps) counts[digit * warp + x] = 0;
    __syncthreads();
    for (int j = w; works && j < column.at.count; j += median_warps) {
      if (!column.of.counts(column.at, j)) continue;
      const unsigned bits = column.bits(j);
      if (std::uint64_t(bits) >> (shift + digit_bits) ==
          std::uint64_t(found) >> (shift + digit_bits))
        atomicAdd(&counts[(bits >> shift & (digits - 1)) * warp + x], 1);
    }
    __syncthreads();
    int digit = 0;
    while (digit + 1 < digits && rank >= counts[digit * warp + x]) {
      rank -= counts[digit * warp + x];
      ++digit;
    }
    found |= unsigned(digit) << shift;
    __syncthreads();
  }
  return found;
}

/// The token that is rank-th among those with these bits, to *to; counts (8, 32). True for the
/// thread that found it.
FOCI_DEVICE bool find_token(const Column& column, bool works, unsigned bits, int rank, int* counts,
                            int* to) {
  const int w = int(threadIdx.x) / warp, x = lane(), count = column.at.count;
  const int length = (count + median_warps - 1) / median_warps;
  const int first = w * length, last = min(first + length, count);
  int equal = 0;
  for (int j = first; works && j < last; ++j)
    equal += column.of.counts(column.at, j) && column.bits(j) == bits;
  counts[w * warp + x] = equal;
  __syncthreads();
  for (int before = 0; before < w; ++before) rank -= counts[before * warp + x];
  if (!works || rank < 0 || rank >= equal) return false;
  for (int j = first; j < last; ++j) {
    if (!column.of.counts(column.at, j) || column.bits(j) != bits) continue;
    if (rank-- == 0) *to = j;
  }
  return true;
}

/// A block 32 columns of a sequence and head.
__global__ void __launch_bounds__(median_warps* warp) median_lines(Median args) {
  __shared__ int counts[digits * warp];
  __shared__ int kept;
  const TokenMean& mean = args.mean;
  const int panels = (mean.D + warp - 1) / warp;
  const int line = int(blockIdx.x) / panels, d = int(blockIdx.x) % panels * warp + lane();
  const int s = line / mean.of.heads, head = line % mean.of.heads;
  const Column column{mean.of, mean.of.span(mean.shape, s), head, d};
  if (threadIdx.x == 0) kept = 0;
  __syncthreads();
  int mine = 0;
  for (int j = int(threadIdx.x); j < column.at.count; j += median_warps * warp)
    mine += mean.of.counts(column.at, j);
  atomicAdd(&kept, mine);
  __syncthreads();
  const int n = kept;
  const bool works = d < mean.D && n > 0;
  int rank = (n - 1) / 2;
  const unsigned bits = select_bits(column, works, rank, counts);
  const std::int64_t at = std::int64_t(line) * mean.D + d;
  if (threadIdx.x < warp && d < mean.D) {
    args.chosen[at] = -1;
    mean.sums[at] = n > 0 ? double(__uint_as_float(bits)) * double(n) : 0.0;
    if (d % warp == 0) mean.counts[line] = n;
  }
  __syncthreads();
  int* chosen = args.chosen + at;
  if (find_token(column, works, bits, rank, counts, chosen) && mean.wide)
    mean.sums[at] = column.exact(*chosen) * double(n);
}

/// A block some tokens of a sequence and head.
constexpr int tokens_a_block = 32;

__global__ void __launch_bounds__(line_threads) pull_tokens(ChangeGradient of) {
  const TokenMean& mean = of.mean;
  const int blocks = (mean.shape.longest_m + tokens_a_block - 1) / tokens_a_block, D = mean.D;
  const int line = int(blockIdx.x) / blocks, first = int(blockIdx.x) % blocks * tokens_a_block;
  const int s = line / mean.of.heads, head = line % mean.of.heads;
  const Place place = mean.shape.place(s);
  const Terms::Span at = mean.of.span(mean.shape, s);
  const std::int64_t row0 = mean.first_row(s, head, place);
  const int count = min(tokens_a_block, at.count - first);
  for (int x = int(threadIdx.x); x < count * D; x += line_threads) {
    const int j = first + x / D, d = x % D, token = at.first + j;
    const float apart = mean.of.x.load(at.b, head, token, d) - mean.of.y.load(at.b, head, token, d);
    const int row = mean.prefix ? max(0, j - at.ahead) : 0;
    bool gets = mean.of.counts(at, j) && (!mean.prefix || place.N > 0);
    if (of.chosen) gets = gets && of.chosen[(std::int64_t(s) * mean.of.heads + head) * D + d] == j;
    const float amount = gets ? of.dm[(row0 + row) * D + d] : 0.0f;
    const float change = apart > 0 ? amount : apart < 0 ? -amount : 0.0f;
    if (of.dv) of.dv.store(of.so_far.load(at.b, head, token, d) + change, at.b, head, token, d);
    if (of.dv_prev) of.dv_prev.store(-change, at.b, head, token, d);
  }
}

}  // namespace

void sum_up_median(const TokenMean& mean, int* chosen, Stream stream) {
  const auto lines = std::int64_t(mean.shape.sequences) * mean.of.heads;
  launch("median of layer-change", median_lines,
         {{unsigned(lines * parts(mean.D, warp))}, {median_warps * warp}}, stream,
         Median{mean, chosen});
}

void pull_change(const ChangeGradient& of, Stream stream) {
  if (!of.dv.data && !of.dv_prev.data) return;
  const Shape& shape = of.mean.shape;
  const auto blocks =
      std::int64_t(shape.sequences) * of.mean.of.heads * parts(shape.longest_m, tokens_a_block);
  launch("gradient of layer-change", pull_tokens, {{unsigned(blocks)}, {line_threads}}, stream, of);
}

}  // namespace foci::cuda
