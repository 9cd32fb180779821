// SPDX-License-Identifier: Apache-2.0
// The residual stream: x + scale branch and its layer norm in one pass over rows, and the way back,
// which leaves sums of the gradients of weight and bias block by block. A row lies in the registers
// of one warp, or of four where it has more than 1024 numbers.
#include "cuda/column_sums.cuh"

#include "cuda/fused.hpp"

#include "metric/arena.hpp"

#include <algorithm>

namespace foci::cuda {

namespace {

constexpr int norm_warps = 8, norm_threads = norm_warps * warp;
constexpr int norm_blocks = 528;  // of the way back: four a multiprocessor of the largest GPUs

/// What both ways look at; 16-bit numbers of one type where there are some.
struct Rows {
  std::int64_t rows;
  int columns;
  float epsilon;
  const float* x;      // the way back: with the branch in it
  const void* branch;  // nullptr: none
  const float* scale;  // of `of_a_scale` rows each; nullptr: 1
  std::int64_t of_a_scale;
  const float *weight, *bias;
  int branch_is_wide, y_is_wide;  // f32

  FOCI_DEVICE float scale_of(std::int64_t row) const {
    return scale ? scale[row / of_a_scale] : 1.0f;
  }
};
struct Made {
  float* x;
  void* y;
  float *mean, *rstd;
};
struct Back {
  const void* dy;
  const float* from_x;  // or nullptr
  const float *mean, *rstd;
  float* dx;
  void* dbranch;  // or nullptr
  float* sums;    // (blocks, 2, columns)
};

/// The sum over the threads of a row; every thread of the block calls it. room: a float a warp.
template <int warps>
FOCI_DEVICE float row_sum(float x, float* room) {
  x = warp_sum(x);
  if constexpr (warps > 1) {
    const int mine = int(threadIdx.x) / warp, first = mine / warps * warps;
    __syncthreads();  // what was there before has been read
    if (lane() == 0) room[mine] = x;
    __syncthreads();
    x = 0;
    FOCI_UNROLL
    for (int w = 0; w < warps; ++w) x += room[first + w];
  }
  return x;
}

template <DType narrow>
FOCI_DEVICE void load_either(float (&x)[eight], const void* from, std::int64_t at, int is_wide) {
  if (is_wide) {
    RawEight<DType::f32>::load(from, at).get(x);
  } else {
    RawEight<narrow>::load(from, at).get(x);
  }
}
template <DType narrow>
FOCI_DEVICE void store_either(void* to, std::int64_t at, const float (&x)[eight], int is_wide) {
  is_wide ? store_eight<DType::f32>(to, at, x) : store_eight<narrow>(to, at, x);
}

/// A thread's place in its row: `runs` times eight numbers, all threads' first ones side by side.
template <int runs, int warps>
struct Seat {
  static constexpr int threads = warps * warp, rows_a_block = norm_threads / threads;
  int row = int(threadIdx.x) / threads, seat = int(threadIdx.x) % threads;

  FOCI_DEVICE int column(int run) const { return (seat + run * threads) * eight; }
};

template <DType narrow, int runs, int warps>
__global__ void __launch_bounds__(norm_threads) norm_rows(Rows of, Made to) {
  __shared__ float room[norm_warps];
  const Seat<runs, warps> my;
  const std::int64_t row = std::int64_t(blockIdx.x) * my.rows_a_block + my.row;
  const std::int64_t begin = row * of.columns;
  const auto has = [&](int run) { return row < of.rows && my.column(run) < of.columns; };
  float x[runs][eight] = {}, sum = 0;
  FOCI_UNROLL
  for (int n = 0; n < runs; ++n) {
    if (has(n)) RawEight<DType::f32>::load(of.x, begin + my.column(n)).get(x[n]);
  }
  if (of.branch) {
    const float scale = row < of.rows ? of.scale_of(row) : 0.0f;
    FOCI_UNROLL
    for (int n = 0; n < runs; ++n) {
      if (!has(n)) continue;
      float more[eight];
      load_either<narrow>(more, of.branch, begin + my.column(n), of.branch_is_wide);
      FOCI_UNROLL
      for (int i = 0; i < eight; ++i) x[n][i] = fmaf(scale, more[i], x[n][i]);
      store_eight<DType::f32>(to.x, begin + my.column(n), x[n]);
    }
  }
  FOCI_UNROLL
  for (int n = 0; n < runs; ++n) {
    FOCI_UNROLL
    for (int i = 0; i < eight; ++i) sum += x[n][i];
  }
  const float mean = row_sum<warps>(sum, room) / float(of.columns);
  float squares = 0;
  FOCI_UNROLL
  for (int n = 0; n < runs; ++n) {
    if (!has(n)) continue;
    FOCI_UNROLL
    for (int i = 0; i < eight; ++i) squares += (x[n][i] - mean) * (x[n][i] - mean);
  }
  const float variance = row_sum<warps>(squares, room) / float(of.columns);
  const float rstd = rsqrtf(variance + of.epsilon);
  FOCI_UNROLL
  for (int n = 0; n < runs; ++n) {
    if (!has(n)) continue;
    float weight[eight], bias[eight];
    RawEight<DType::f32>::load(of.weight, my.column(n)).get(weight);
    RawEight<DType::f32>::load(of.bias, my.column(n)).get(bias);
    FOCI_UNROLL
    for (int i = 0; i < eight; ++i) x[n][i] = fmaf((x[n][i] - mean) * rstd, weight[i], bias[i]);
    store_either<narrow>(to.y, begin + my.column(n), x[n], of.y_is_wide);
  }
  if (my.seat != 0 || row >= of.rows) return;
  to.mean[row] = mean;
  to.rstd[row] = rstd;
}

/// Adds up what the rows of a block have of each column: parts (rows_a_block, columns) in shared
/// memory, sums (columns).
template <int runs, int warps>
FOCI_DEVICE void join_rows(const float (&mine)[runs][eight], int columns, float* sums) {
  const Seat<runs, warps> my;
  auto* parts = reinterpret_cast<float*>(shared_memory());
  __syncthreads();
  FOCI_UNROLL
  for (int n = 0; n < runs; ++n) {
    if (my.column(n) < columns)
      store_eight<DType::f32>(parts, my.row * columns + my.column(n), mine[n]);
  }
  __syncthreads();
  for (int c = int(threadIdx.x); c < columns; c += norm_threads) {
    float sum = 0;
    FOCI_UNROLL
    for (int r = 0; r < my.rows_a_block; ++r) sum += parts[r * columns + c];
    sums[c] = sum;
  }
}

/// With h the normalised row and g = dy weight: dx = rstd (g - mean(g) - h mean(g h)).
template <DType narrow, int runs, int warps>
__global__ void __launch_bounds__(norm_threads) pull_rows(Rows of, Back to) {
  __shared__ float room[norm_warps];
  const Seat<runs, warps> my;
  float dweight[runs][eight] = {}, dbias[runs][eight] = {};
  const std::int64_t step = std::int64_t(gridDim.x) * my.rows_a_block;
  for (std::int64_t first = std::int64_t(blockIdx.x) * my.rows_a_block; first < of.rows;
       first += step) {
    const std::int64_t row = first + my.row, begin = row * of.columns;
    const auto has = [&](int run) { return row < of.rows && my.column(run) < of.columns; };
    float h[runs][eight] = {}, g[runs][eight] = {}, dx[runs][eight] = {};
    FOCI_UNROLL
    for (int n = 0; n < runs; ++n) {
      if (!has(n)) continue;
      const std::int64_t at = begin + my.column(n);
      RawEight<DType::f32>::load(of.x, at).get(h[n]);
      load_either<narrow>(g[n], to.dy, at, of.y_is_wide);
      if (to.from_x) RawEight<DType::f32>::load(to.from_x, at).get(dx[n]);
    }
    const float mean = row < of.rows ? to.mean[row] : 0.0f;
    const float rstd = row < of.rows ? to.rstd[row] : 0.0f;
    float sum = 0, along = 0;
    FOCI_UNROLL
    for (int n = 0; n < runs; ++n) {
      if (!has(n)) continue;
      float weight[eight];
      RawEight<DType::f32>::load(of.weight, my.column(n)).get(weight);
      FOCI_UNROLL
      for (int i = 0; i < eight; ++i) {
        h[n][i] = (h[n][i] - mean) * rstd;
        dweight[n][i] = fmaf(g[n][i], h[n][i], dweight[n][i]);
        dbias[n][i] += g[n][i];
        g[n][i] *= weight[i];
        sum += g[n][i];
        along = fmaf(g[n][i], h[n][i], along);
      }
    }
    sum = row_sum<warps>(sum, room) / float(of.columns);
    along = row_sum<warps>(along, room) / float(of.columns);
    const float scale = to.dbranch && row < of.rows ? of.scale_of(row) : 1.0f;
    FOCI_UNROLL
    for (int n = 0; n < runs; ++n) {
      if (!has(n)) continue;
      const std::int64_t at = begin + my.column(n);
      FOCI_UNROLL
      for (int i = 0; i < eight; ++i)
        dx[n][i] = fmaf(rstd, g[n][i] - sum - h[n][i] * along, dx[n][i]);
      store_eight<DType::f32>(to.dx, at, dx[n]);
      if (!to.dbranch) continue;
      FOCI_UNROLL
      for (int i = 0; i < eight; ++i) dx[n][i] *= scale;
      store_either<narrow>(to.dbranch, at, dx[n], of.branch_is_wide);
    }
  }
  float* const sums = to.sums + std::int64_t(blockIdx.x) * 2 * of.columns;
  join_rows<runs, warps>(dweight, of.columns, sums);
  join_rows<runs, warps>(dbias, of.columns, sums + of.columns);
}

/// Calls f with the runs of a thread and the warps of a row as constants.
template <class F>
void with_seats(int columns, F&& f) {
  const auto call = [&](auto runs, auto warps) { f(runs, warps); };
  const auto one = std::integral_constant<int, 1>{};
  const auto two = std::integral_constant<int, 2>{};
  const auto three = std::integral_constant<int, 3>{};
  const auto four = std::integral_constant<int, 4>{};
  if (columns <= 256) return call(one, one);
  if (columns <= 512) return call(two, one);
  if (columns <= 768) return call(three, one);
  if (columns <= 1024) return call(four, one);
  columns <= 3072 ? call(three, four) : call(four, four);
}

int rows_a_block(int columns) { return columns <= 1024 ? norm_warps : norm_warps / 4; }

int blocks_back(std::int64_t rows, int columns) {
  return int(std::min<std::int64_t>(norm_blocks, parts(rows, rows_a_block(columns))));
}

const float* floats(const View& view) { return static_cast<const float*>(view.data); }

Rows rows_of(const fused::Residual& from, const View& x, const View& y) {
  Rows of{};
  of.rows = from.x.shape[0], of.columns = int(from.x.shape[1]);
  of.epsilon = from.epsilon;
  of.x = floats(x);
  of.branch = from.branch.data;
  of.scale = floats(from.scale);
  if (from.scale) of.of_a_scale = std::max<std::int64_t>(1, of.rows / from.scale.shape[0]);
  of.weight = floats(from.weight), of.bias = floats(from.bias);
  of.branch_is_wide = from.branch.dtype == DType::f32, of.y_is_wide = y.dtype == DType::f32;
  return of;
}

/// Calls f with the 16-bit type and the seats of a row as constants.
template <class F>
void with_kernel(const Rows& of, const View& branch, const View& y, F&& f) {
  const bool f16 = branch.dtype == DType::f16 || y.dtype == DType::f16;
  with_seats(of.columns, [&](auto runs, auto warps) {
    f16 ? f(std::integral_constant<DType, DType::f16>{}, runs, warps)
        : f(std::integral_constant<DType, DType::bf16>{}, runs, warps);
  });
}

}  // namespace

void add_norm(const fused::Normed& to, const fused::Residual& from, StreamHandle stream) {
  const Rows of = rows_of(from, from.x, to.y);
  const Made made{static_cast<float*>(to.x.data), to.y.data, static_cast<float*>(to.mean.data),
                  static_cast<float*>(to.rstd.data)};
  with_kernel(of, from.branch, to.y, [&](auto narrow, auto runs, auto warps) {
    launch("layer norm", norm_rows<decltype(narrow)::value, runs(), warps()>,
           {{unsigned(parts(of.rows, rows_a_block(of.columns)))}, {norm_threads}},
           static_cast<Stream>(stream), of, made);
  });
}

void add_norm_backward(const fused::NormGradients& to, const fused::Residual& from,
                       const fused::Normed& saved, const Run& run) {
  const Rows of = rows_of(from, from.branch ? saved.x : from.x, to.dy);
  const int blocks = blocks_back(of.rows, of.columns);
  metric::Arena arena(run.memory);
  auto* const sums = arena.take<float>(blocks, 2, of.columns).data();
  const Back back{to.dy.data,
                  floats(to.from_x),
                  floats(saved.mean),
                  floats(saved.rstd),
                  static_cast<float*>(to.dx.data),
                  to.dbranch.data,
                  sums};
  const auto stream = static_cast<Stream>(run.stream);
  const std::size_t room = sizeof(float) * std::size_t(rows_a_block(of.columns) * of.columns);
  with_kernel(of, from.branch, to.dy, [&](auto narrow, auto runs, auto warps) {
    launch("layer norm, backward", pull_rows<decltype(narrow)::value, runs(), warps()>,
           {{unsigned(blocks)}, {norm_threads}, room}, stream, of, back);
  });
  finish_sums({sums, blocks, 2 * of.columns, static_cast<float*>(to.dweight.data),
               static_cast<float*>(to.dbias.data), of.columns},
              stream);
}

std::size_t fused_workspace(std::int64_t columns) {
  metric::Arena norm;
  norm.take<float>(norm_blocks, 2, columns);
  return std::max(norm.used(), sums_workspace(columns)) + metric::Arena::alignment;
}

}  // namespace foci::cuda
