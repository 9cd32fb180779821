// SPDX-License-Identifier: Apache-2.0
// A decoder's cache on the device. A step is a forward call of its queries over the cache: what the
// metric's estimate was before is carried from step to step.
#include "cuda/decode.hpp"

#include "cuda/decode.cuh"
#include "cuda/launch.cuh"
#include "cuda/running.cuh"
#include "metric/arena.hpp"
#include "metric/key_covariance.hpp"

#include <foci/error.hpp>

#include <algorithm>
#include <vector>

namespace foci::cuda {

using metric::Arena;
using metric::Problem;

namespace {

constexpr int append_threads = 128;
constexpr std::int64_t most_queries = 512;  // of a call: longer steps take several

struct Append {
  Field k, v, mask, bias;              // tokens: (B,G,n,D) (B,G,n,E) (B,n) (B,G|H,n)
  Field to_k, to_v, to_mask, to_bias;  // the cache from the first of them on
  int n, G, R, D, E;
  int key_head_bias;
};

/// A block a token of a key head.
__global__ void __launch_bounds__(append_threads) append_tokens(Append of) {
  const int i = int(blockIdx.x) % of.n, g = int(blockIdx.x) / of.n % of.G;
  const int b = int(blockIdx.x) / of.n / of.G;
  for (int d = int(threadIdx.x); d < of.D; d += append_threads)
    of.to_k.store(of.k.load(b, g, i, d), b, g, i, d);
  for (int e = int(threadIdx.x); e < of.E; e += append_threads)
    of.to_v.store(of.v.load(b, g, i, e), b, g, i, e);
  for (int r = int(threadIdx.x); r < of.R && of.to_bias; r += append_threads) {
    const int h = g * of.R + r;
    of.to_bias.store(of.bias ? of.bias.load(b, of.key_head_bias ? g : h, i) : 0.0f, b, h, i);
  }
  if (g != 0 || threadIdx.x != 0) return;
  const bool kept =
      !of.mask || static_cast<const std::uint8_t*>(of.mask.data)[of.mask.offset(b, i)] != 0;
  static_cast<std::uint8_t*>(of.to_mask.data)[of.to_mask.offset(b, i)] = kept;
}

bool takes_bias(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return !std::holds_alternative<Linear>(weighting) && (!decay || decay->content);
}

bool carries(const Problem& p) {
  return p.metric<LayerChange>() || p.metric<Flat>() || p.metric<Jacobian>();
}

View sliced(const View& view, int axis, std::int64_t begin, std::int64_t end) {
  return view ? view.sliced(axis, begin, end) : view;
}

}  // namespace

struct Decoding::State {
  explicit State(const Problem& p) : cache(p) {
    Arena counting;
    take(counting);
    memory = static_cast<std::byte*>(allocate(counting.used() + Arena::alignment));
    bytes = counting.used() + Arena::alignment;
    Arena arena(std::span<std::byte>(memory, bytes));
    take(arena);
  }
  ~State() { release(memory); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void take(Arena& arena) {
    const auto& z = cache.size;
    const DType type = cache.from.q.dtype;
    const auto lines = [&](std::int64_t width) {
      const std::int64_t shape[] = {z.B, z.G, z.M, width};
      return View(arena.take<std::byte>(z.B, z.G, z.M, width, size_of(type)).data(), type, shape);
    };
    k = lines(z.D), v = lines(z.E);
    mask = View(arena.take<std::uint8_t>(z.B, z.M).data(), {z.B, z.M});
    if (takes_bias(cache.how.weighting))
      bias = View(arena.take<float>(z.B, z.H, z.M).data(), {z.B, z.H, z.M});
    if (carries(cache)) {
      carried.any = 1;
      heads = cache.metric<Jacobian>() ? z.H : z.G;
      carried.sums = arena.take<double>(z.B, heads, z.D).data();
      carried.counts = arena.take<int>(z.B, heads).data();
    }
    if (cache.full) status = arena.take<std::int32_t>(z.B, z.G, chunks(z.M)).data();
    running = RunningSums::size(cache);
    if (running > 0) carried.rows = arena.take<double>(running).data();
    room = arena.take<std::byte>(most_room());
  }

  /// Room for a call of any number of queries, masked and biased or not; over few keys, which are
  /// worked on in double, and over all there will ever be.
  std::size_t most_room() {
    const std::int64_t all = std::min(cache.size.M, most_queries);
    std::size_t most = 0;
    for (const bool some : {true, false}) {
      masked = some, biased = some && bias;
      for (std::int64_t n = 1; n <= all; n = n < 64 ? n + 1 : std::max(n + 1, all)) {
        for (const std::int64_t M : {std::max(n, std::min<std::int64_t>(64, all)), cache.size.M})
          most = std::max(most, carried_workspace(problem(n, M), carried));
      }
    }
    return most;
  }

  /// n queries after M - n tokens, all of their shapes.
  Problem problem(std::int64_t n, std::int64_t M) const {
    Problem p = cache;
    const auto& z = cache.size;
    p.size.N = p.longest_n = n;
    p.size.M = p.longest_m = M;
    p.on_device = true;
    const std::int64_t queries[] = {z.B, z.H, n, z.D}, values[] = {z.B, z.G, n, z.E};
    p.from = {};
    p.from.q = View(nullptr, cache.from.q.dtype, queries);
    p.from.v_prev = View(nullptr, cache.from.q.dtype, values);
    p.from.k = k.sliced(2, 0, M);
    p.from.v = v.sliced(2, 0, M);
    if (masked) p.from.key_mask = mask.sliced(1, 0, M);
    if (biased) p.from.key_bias = bias.sliced(2, 0, M);
    const std::int64_t given[] = {z.B, z.G, cache.full ? z.D : n, z.D};
    if (p.metric<Given>()) p.from.metric = View(nullptr, DType::f32, given);
    return p;
  }

  void append(const Inputs& from, std::int64_t begin, std::int64_t end, std::int64_t length) {
    const auto& z = cache.size;
    const std::int64_t n = end - begin;
    Append of;
    of.k = Field(from.k.sliced(2, begin, end));
    of.v = Field(from.v.sliced(2, begin, end));
    of.mask = Field(sliced(from.key_mask, 1, begin, end));
    of.bias = Field(sliced(from.key_bias, 2, begin, end));
    of.to_k = Field(k.sliced(2, length, length + n));
    of.to_v = Field(v.sliced(2, length, length + n));
    of.to_mask = Field(mask.sliced(1, length, length + n));
    of.to_bias = Field(sliced(bias, 2, length, length + n));
    of.n = int(n), of.G = int(z.G), of.R = int(z.H / z.G), of.D = int(z.D), of.E = int(z.E);
    of.key_head_bias = from.key_bias && from.key_bias.shape[1] != z.H;
    launch("decoder: new tokens", append_tokens, {{unsigned(z.B * z.G * n)}, {append_threads}},
           nullptr, of);
  }

  /// As many tokens as a call takes.
  void attend(const Outputs& to, const Problem& tokens, std::int64_t begin, std::int64_t end,
              std::int64_t length, bool careful = false) {
    const Inputs& from = tokens.from;
    masked |= bool(from.key_mask), biased |= bool(from.key_bias);
    append(from, begin, end, length);
    Problem p = problem(end - begin, length + end - begin);
    p.from.q = from.q.sliced(2, begin, end);
    p.from.v_prev = sliced(from.v_prev, 2, begin, end);
    p.from.metric = from.metric;
    const bool rows = !p.full && from.metric && from.metric.shape[2] == tokens.size.N;
    if (rows) p.from.metric = from.metric.sliced(2, begin, end);
    if (carried_workspace(p, carried) > room.size())
      throw DeviceError("cuda: a decoder's step asks for more room than it has");
    Outputs part = rows_of(to, begin, end);
    if (careful && p.metric<Given>()) part.status = View(status, {p.size.B, p.size.G});
    if (careful && p.metric<KeyCovariance>())
      part.status = View(status, {p.size.B, p.size.G, chunks(p.size.M)});
    carried_forward(part, p, {.memory = room}, carried);
  }

  /// Full metrics of M tokens.
  std::int64_t chunks(std::int64_t M) const {
    const auto* how = cache.metric<KeyCovariance>();
    return how ? metric::chunk_count(M, how->period) : 1;
  }

  /// Throws where the metric of token `length` could not be factored.
  void expect_sound(std::int64_t length) const {
    const auto& z = cache.size;
    const auto* how = cache.metric<KeyCovariance>();
    const std::int64_t each = chunks(length + 1);
    std::vector<std::int32_t> raises(std::size_t(z.B * z.G * each));
    std::vector<std::uint8_t> keep(std::size_t(z.B * z.M));
    synchronize();
    copy_to_host(raises.data(), status, raises.size() * sizeof(std::int32_t));
    copy_to_host(keep.data(), mask.data, keep.size());
    for (std::int64_t head = 0; head < z.B * z.G; ++head) {
      const std::int64_t b = head / z.G, g = head % z.G;
      const std::int64_t n = std::count(&keep[b * z.M], &keep[b * z.M] + length, 1);
      const std::int64_t chunk = how ? metric::chunk_of(n, how->period) : 0;
      if (raises[head * each + chunk] <= metric::most_raises) continue;
      if (!how) throw InvalidArgument(metric::not_semidefinite(b, g));
      throw NumericalError(metric::unfactorable(b, g, n, how->ridge));
    }
  }

  static Outputs rows_of(Outputs to, std::int64_t begin, std::int64_t end) {
    const std::int64_t N = to.o.shape[2];
    for (View* view : {&to.lse, &to.concentration, &to.effective_keys, &to.entropy, &to.largest,
                       &to.largest_at, &to.o})
      *view = sliced(*view, 2, begin, end);
    if (to.metric && to.metric.shape[2] == N) to.metric = to.metric.sliced(2, begin, end);
    return to;
  }

  const Problem& cache;
  std::byte* memory = nullptr;
  std::size_t bytes = 0;
  View k, v, mask, bias;           // (B,G,capacity,D) (B,G,capacity,E) (B,capacity) (B,H,capacity)
  std::int32_t* status = nullptr;  // (B,G,chunks so far) key-covariance, where somebody asks
  Carried carried;
  std::int64_t heads = 0, running = 0;  // of what is carried
  bool masked = false, biased = false;  // whether any token has been
  std::span<std::byte> room;
};

Decoding::Decoding(const Problem& cache) : state_(std::make_unique<State>(cache)) { reset(); }
Decoding::~Decoding() = default;

void Decoding::reset() {
  State& of = *state_;
  const auto& z = of.cache.size;
  of.masked = of.biased = false;
  fill(of.carried.rows, 0, std::size_t(of.running) * sizeof(double), nullptr);
  if (!of.carried.sums) return;
  fill(of.carried.sums, 0, std::size_t(z.B * of.heads * z.D) * sizeof(double), nullptr);
  fill(of.carried.counts, 0, std::size_t(z.B * of.heads) * sizeof(int), nullptr);
}

void Decoding::step(const Outputs& to, const Problem& tokens, std::int64_t begin, std::int64_t end,
                    std::int64_t length) {
  for (std::int64_t i = begin; i < end; i += most_queries) {
    const std::int64_t n = std::min(most_queries, end - i);
    state_->attend(to, tokens, i, i + n, length + i - begin);
  }
}

void Decoding::careful_step(const Outputs& to, const Problem& tokens, std::int64_t begin,
                            std::int64_t end, std::int64_t length) {
  const bool careful = state_->status != nullptr;
  if (careful) state_->attend(to, tokens, begin, begin + 1, length, true);
  if (careful) state_->expect_sound(length);
  const std::int64_t done = careful ? 1 : 0;
  step(to, tokens, begin + done, end, length + done);
}

}  // namespace foci::cuda
