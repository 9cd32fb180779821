// SPDX-License-Identifier: Apache-2.0
// Sums over the rows of a matrix as it lies in memory, or as the gradient of GELU leaves it, which
// is written on the way; and GELU itself.
#include "cuda/column_sums.cuh"

#include "cuda/fused.hpp"

#include "metric/arena.hpp"

#include <algorithm>

namespace foci::cuda {

namespace {

constexpr int sum_warps = 8, sum_threads = sum_warps * warp;
constexpr int sum_blocks = 1056;   // of a launch: eight a multiprocessor of the largest GPUs
constexpr int least_rows = 64;     // of a block
constexpr int rows_at_once = 4;    // of a thread
constexpr int finish_groups = 32;  // that share out the parts of a column
constexpr int gelu_runs = 2;       // of eight numbers, of a thread

/// Panels of columns, a warp wide at most and all alike, and how many parts rows are shared out to.
struct Panels {
  int columns, width, count, parts;
  std::int64_t rows, rows_a_part;

  Panels(std::int64_t all_rows, std::int64_t all_columns)
      : columns(int(all_columns)), rows(all_rows) {
    const int runs = columns / eight;
    width = int(foci::cuda::parts(runs, foci::cuda::parts(runs, warp)));
    count = int(foci::cuda::parts(runs, width));
    rows_a_part = std::max<std::int64_t>(least_rows,
                                         foci::cuda::parts(rows, std::max(1, sum_blocks / count)));
    parts = int(foci::cuda::parts(rows, rows_a_part));
  }
  static std::int64_t most_parts(std::int64_t columns) {
    return std::max(1, sum_blocks / Panels(0, columns).count);
  }
};

/// A matrix as it is.
template <DType type>
struct Numbers {
  const void* data;

  using Raw = RawEight<type>;
  FOCI_DEVICE Raw load(std::int64_t at) const { return Raw::load(data, at); }
  FOCI_DEVICE void add(float (&total)[eight], const Raw& raw, std::int64_t) const {
    float x[eight];
    raw.get(x);
    FOCI_UNROLL
    for (int i = 0; i < eight; ++i) total[i] += x[i];
  }
};

struct Bell {
  float below;    // Phi(x)
  float density;  // its derivative
};

/// Phi by Abramowitz and Stegun's 7.1.26, to 8e-8: the exponential is that of the density. Below 0
/// it is the tail itself, whose digits no difference takes. Exponents are kept finite.
FOCI_DEVICE Bell bell_of(float x) {
  constexpr float half_log2_e = 0.72134752044448f, by_root_2_pi = 0.39894228040143f;
  constexpr float slope = 0.3275911f * 0.70710678118655f;
  const float t = __fdividef(1.0f, fmaf(slope, fabsf(x), 1.0f));
  const float power = power_of_two(-half_log2_e * fminf(x * x, 400.0f));
  float sum = fmaf(1.061405429f, t, -1.453152027f);
  sum = fmaf(sum, t, 1.421413741f);
  sum = fmaf(sum, t, -0.284496736f);
  sum = fmaf(sum, t, 0.254829592f);
  const float tail = 0.5f * sum * t * power;
  return {x > 0 ? 1.0f - tail : tail, by_root_2_pi * power};
}

/// dx of GELU, which is written, and its sums.
template <DType type>
struct GeluSlope {
  const void *dy, *x;
  void* dx;

  struct Raw {
    RawEight<type> dy, x;
  };
  FOCI_DEVICE Raw load(std::int64_t at) const {
    return {RawEight<type>::load(dy, at), RawEight<type>::load(x, at)};
  }
  FOCI_DEVICE void add(float (&total)[eight], const Raw& raw, std::int64_t at) const {
    float d[eight], from[eight];
    raw.dy.get(d);
    raw.x.get(from);
    FOCI_UNROLL
    for (int i = 0; i < eight; ++i) {
      const Bell bell = bell_of(from[i]);
      d[i] *= fmaf(from[i], bell.density, bell.below);
      total[i] += d[i];
    }
    store_eight<type>(dx, at, d);
  }
};

/// A block a panel of a part: warps take rows in turn and meet at the end.
template <class Source>
__global__ void __launch_bounds__(sum_threads) sum_rows(Source from, Panels of, float* to) {
  __shared__ float met[sum_warps][warp * eight];
  const int run = int(blockIdx.x) * of.width + lane(), mine = int(threadIdx.x) / warp;
  const bool works = lane() < of.width && run * eight < of.columns;
  const std::int64_t first = std::int64_t(blockIdx.y) * of.rows_a_part;
  const std::int64_t last = min(first + of.rows_a_part, of.rows);
  float total[eight] = {};
  for (std::int64_t row = first + mine; works && row < last; row += sum_warps * rows_at_once) {
    typename Source::Raw raw[rows_at_once];
    const auto place = [&](int n) { return (row + n * sum_warps) * of.columns + run * eight; };
    FOCI_UNROLL
    for (int n = 0; n < rows_at_once; ++n) {
      if (row + n * sum_warps < last) raw[n] = from.load(place(n));
    }
    FOCI_UNROLL
    for (int n = 0; n < rows_at_once; ++n) {
      if (row + n * sum_warps < last) from.add(total, raw[n], place(n));
    }
  }
  FOCI_UNROLL
  for (int i = 0; i < eight; ++i) met[mine][i * warp + lane()] = total[i];
  __syncthreads();
  const int i = mine;  // a warp's lanes add up one of each thread's eight
  float sum = 0;
  FOCI_UNROLL
  for (int w = 0; w < sum_warps; ++w) sum += met[w][i * warp + lane()];
  if (works) to[std::int64_t(blockIdx.y) * of.columns + run * eight + i] = sum;
}

__global__ void __launch_bounds__(finish_groups* warp) finish_columns(PartSums of) {
  __shared__ float met[finish_groups][warp];
  const int column = int(blockIdx.x) * warp + lane(), group = int(threadIdx.x) / warp;
  float sum = 0;
  if (column < of.columns) {
    for (int part = group; part < of.parts; part += finish_groups)
      sum += of.sums[std::int64_t(part) * of.columns + column];
  }
  met[group][lane()] = sum;
  __syncthreads();
  if (group != 0 || column >= of.columns) return;
  sum = 0;
  FOCI_UNROLL
  for (int g = 0; g < finish_groups; ++g) sum += met[g][lane()];
  (column < of.split ? of.first[column] : of.second[column - of.split]) = sum;
}

template <class Source>
void sum_up(const Source& source, const Panels& panels, const View& to, const Run& run) {
  metric::Arena arena(run.memory);
  auto* const sums = arena.take<float>(panels.parts, panels.columns).data();
  const auto stream = static_cast<Stream>(run.stream);
  launch("sums of columns", sum_rows<Source>,
         {{unsigned(panels.count), unsigned(panels.parts)}, {sum_threads}}, stream, source, panels,
         sums);
  auto* const first = static_cast<float*>(to.data);
  finish_sums({sums, panels.parts, panels.columns, first, nullptr, panels.columns}, stream);
}

template <DType type>
__global__ void __launch_bounds__(sum_threads)
    apply_gelu(const void* from, void* to, std::int64_t count) {
  const std::int64_t first = (std::int64_t(blockIdx.x) * gelu_runs * sum_threads + threadIdx.x);
  RawEight<type> raw[gelu_runs];
  const auto place = [&](int n) { return (first + n * sum_threads) * eight; };
  FOCI_UNROLL
  for (int n = 0; n < gelu_runs; ++n) {
    if (place(n) < count) raw[n] = RawEight<type>::load(from, place(n));
  }
  FOCI_UNROLL
  for (int n = 0; n < gelu_runs; ++n) {
    if (place(n) >= count) continue;
    float x[eight];
    raw[n].get(x);
    FOCI_UNROLL
    for (int i = 0; i < eight; ++i) x[i] *= bell_of(x[i]).below;
    store_eight<type>(to, place(n), x);
  }
}

/// Calls f with a floating type of at most 32 bits as a constant.
template <class F>
void with_type(DType type, F&& f) {
  if (type == DType::f32) return f(std::integral_constant<DType, DType::f32>{});
  if (type == DType::f16) return f(std::integral_constant<DType, DType::f16>{});
  f(std::integral_constant<DType, DType::bf16>{});
}
/// The same of 16 bits.
template <class F>
void with_narrow_type(DType type, F&& f) {
  if (type == DType::f16) return f(std::integral_constant<DType, DType::f16>{});
  f(std::integral_constant<DType, DType::bf16>{});
}

}  // namespace

void finish_sums(const PartSums& sums, Stream stream) {
  launch("sums of columns", finish_columns,
         {{unsigned(parts(sums.columns, warp))}, {finish_groups * warp}}, stream, sums);
}

void column_sums(const View& to, const View& from, const Run& run) {
  const Panels panels(from.shape[0], from.shape[1]);
  with_type(from.dtype,
            [&](auto type) { sum_up(Numbers<decltype(type)::value>{from.data}, panels, to, run); });
}

void gelu(const View& to, const View& from, StreamHandle stream) {
  const std::int64_t runs = from.count() / eight;
  with_narrow_type(from.dtype, [&](auto type) {
    launch("GELU", apply_gelu<decltype(type)::value>,
           {{unsigned(parts(runs, gelu_runs * sum_threads))}, {sum_threads}},
           static_cast<Stream>(stream), static_cast<const void*>(from.data), to.data, from.count());
  });
}

void gelu_backward(const fused::GeluGradients& to, const View& x, const Run& run) {
  const Panels panels(x.shape[0], x.shape[1]);
  with_narrow_type(x.dtype, [&](auto type) {
    sum_up(GeluSlope<decltype(type)::value>{to.dy.data, x.data, to.dx.data}, panels, to.dx_sum,
           run);
  });
}

std::size_t sums_workspace(std::int64_t columns) {
  metric::Arena arena;
  arena.take<float>(Panels::most_parts(columns), columns);
  return arena.used();
}

}  // namespace foci::cuda
