// SPDX-License-Identifier: Apache-2.0
// A decoder's cache on the device. A step of few tokens is one launch where its kind has one;
// anything else is a forward call of its queries over the cache. What the metric's estimate was
// before is carried from step to step.
#include "cuda/decode.hpp"

#include "cuda/decode.cuh"
#include "cuda/diagonal.cuh"
#include "cuda/full_metric.cuh"
#include "cuda/running.cuh"
#include "cuda/running_covariance.cuh"
#include "cuda/split_keys.cuh"
#include "metric/arena.hpp"
#include "metric/key_covariance.hpp"

#include <foci/error.hpp>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace foci::cuda {

using metric::Arena;
using metric::Problem;

namespace {

constexpr int append_threads = 128;
constexpr std::int64_t most_queries = 512;  // of a call: longer steps take several

constexpr std::int64_t most_at_once = 16;  // tokens of a step that is one launch

/// A block a token of a key head.
__global__ void __launch_bounds__(append_threads) append_tokens(StepTokens of) {
  const int head = int(blockIdx.x) / of.n;
  of.append(head / of.G, head % of.G, int(blockIdx.x) % of.n);
}

bool takes_bias(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return !std::holds_alternative<Linear>(weighting) && (!decay || decay->content);
}

bool carries(const Problem& p) {
  return p.metric<LayerChange>() || p.metric<Flat>() || p.metric<Jacobian>();
}

/// dot, and what its own tokens tell at once.
bool takes_products(const Problem& p) {
  const bool simple = p.metric<Dot>() || p.metric<LayerChange>() || p.metric<Flat>();
  return simple && metric::form_of(p.how.metric) == Form::product;
}

bool wants_statistics(const Outputs& to) {
  return to.concentration || to.effective_keys || to.entropy || to.largest || to.largest_at;
}

Shape shape_of(const Problem& p) {
  const auto& z = p.size;
  return {.sequences = int(z.B),
          .H = int(z.H),
          .G = int(z.G),
          .N = int(z.N),
          .M = int(z.M),
          .D = int(z.D),
          .E = int(z.E),
          .longest_n = int(z.N),
          .longest_m = int(z.M),
          .causal = 1};
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
      for (double** sums : {&carried.sums, &next_sums})
        *sums = arena.take<double>(z.B, heads, z.D).data();
      for (int** counts : {&carried.counts, &next_counts})
        *counts = arena.take<int>(z.B, heads).data();
    }
    arrived = arena.take<int>(SplitKeys::counters(cache)).data();
    if (cache.metric<KeyCovariance>() && std::holds_alternative<Softmax>(cache.how.weighting))
      covariance.emplace(arena, cache, std::min(z.M, most_at_once));
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
        for (const std::int64_t M : {std::max(n, std::min<std::int64_t>(64, all)), cache.size.M}) {
          const Problem p = problem(n, M);
          Arena split;
          if (n <= most_at_once) SplitKeys(split, p, shape_of(p));
          most = std::max({most, carried_workspace(p, carried), split.used() + Arena::alignment});
        }
      }
    }
    return most + most_waves();
  }

  /// What lines of keys take more over fewer keys than over all: a wave of them may be fuller.
  std::size_t most_waves() const {
    if (!cache.metric<KeyCovariance>()) return 0;
    const auto& z = cache.size;
    const std::int64_t bytes = z.B * z.G * z.M * z.D * std::int64_t(sizeof(float));
    return std::size_t(std::min(FullMetric::standard_wave, chunks(z.M) * bytes));
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

  /// Tokens [begin, end) of a step after `length` others.
  StepTokens tokens_of(const Inputs& from, std::int64_t begin, std::int64_t end,
                       std::int64_t length) const {
    const auto& z = cache.size;
    const std::int64_t n = end - begin;
    StepTokens of;
    of.n = int(n), of.G = int(z.G), of.R = int(z.H / z.G), of.D = int(z.D), of.E = int(z.E);
    of.k = Field(from.k.sliced(2, begin, end));
    of.v = Field(from.v.sliced(2, begin, end));
    of.mask = Field(sliced(from.key_mask, 1, begin, end));
    of.bias = Field(sliced(from.key_bias, 2, begin, end));
    of.to_k = Field(k.sliced(2, length, length + n));
    of.to_v = Field(v.sliced(2, length, length + n));
    of.to_mask = Field(mask.sliced(1, length, length + n));
    of.to_bias = Field(sliced(bias, 2, length, length + n));
    of.key_head_bias = from.key_bias && from.key_bias.shape[1] != z.H;
    return of;
  }

  void append(const StepTokens& of) const {
    const auto blocks = cache.size.B * cache.size.G * of.n;
    launch("decoder: new tokens", append_tokens, {{unsigned(blocks)}, {append_threads}}, nullptr,
           of);
  }

  /// Whether one launch does a step.
  bool goes_at_once(const Outputs& to, const Problem& p) const {
    if (p.size.N > most_at_once || !takes_products(p) || wants_statistics(to)) return false;
    return running > 0 || (SplitKeys::few_rows(p, shape_of(p)) && !few_keys_serve(p));
  }

  /// The whole step: tokens join the cache and the metric's mean, and their queries attend.
  void attend_at_once(const Outputs& to, const Problem& p, StepTokens tokens) {
    if (carried.any) {
      const auto* change = p.metric<LayerChange>();
      tokens.flat = !change;
      tokens.normalize = change ? change->normalize : p.metric<Flat>()->normalize;
      tokens.v_prev = Field(p.from.v_prev);
      tokens.sums = carried.sums, tokens.counts = carried.counts;
      tokens.next_sums = next_sums, tokens.next_counts = next_counts;
      tokens.metric = Field(to.metric);
      std::swap(carried.sums, next_sums), std::swap(carried.counts, next_counts);
    }
    Arena arena(room);
    const Folded folded = plain_lines(p);
    if (running > 0) {
      RunningSums(p, shape_of(p), carried.rows)
          .forward(folded.q, folded.scale, Field(to.o), tokens, nullptr);
    } else {
      SplitKeys(arena, p, shape_of(p)).step(folded, rows(to), tokens, arrived, nullptr);
    }
  }

  /// Whether the moments of ended chunks serve a step.
  bool goes_by_chunks(const Outputs& to, const Problem& p) const {
    return covariance && !masked && p.size.N <= most_at_once && !wants_statistics(to) &&
           SplitKeys::few_rows(p, shape_of(p)) && !few_keys_serve(p);
  }

  void attend_chunk(const Outputs& to, const Problem& p, const StepTokens& tokens) {
    if (covariance->due(p.size.M - p.size.N)) append(tokens);
    Arena arena(room);
    const Folded folded = covariance->take(p, k, tokens, nullptr);
    SplitKeys(arena, p, shape_of(p)).step(folded, rows(to), {}, arrived, nullptr);
  }

  static Rows rows(const Outputs& to) { return {.o = Field(to.o), .lse = Field(to.lse)}; }

  /// As many tokens as a call takes.
  void attend(const Outputs& to, const Problem& tokens, std::int64_t begin, std::int64_t end,
              std::int64_t length, bool careful = false) {
    const Inputs& from = tokens.from;
    masked |= bool(from.key_mask), biased |= bool(from.key_bias);
    Problem p = problem(end - begin, length + end - begin);
    p.from.q = from.q.sliced(2, begin, end);
    p.from.v_prev = sliced(from.v_prev, 2, begin, end);
    p.from.metric = from.metric;
    const bool rows = !p.full && from.metric && from.metric.shape[2] == tokens.size.N;
    if (rows) p.from.metric = from.metric.sliced(2, begin, end);
    Outputs part = rows_of(to, begin, end);
    const StepTokens arriving = tokens_of(from, begin, end, length);
    by_chunks = goes_by_chunks(part, p);
    if (by_chunks) return attend_chunk(part, p, arriving);
    if (goes_at_once(part, p)) return attend_at_once(part, p, arriving);
    append(arriving);
    if (carried_workspace(p, carried) > room.size())
      throw DeviceError("cuda: a decoder's step asks for more room than it has");
    if (careful && p.metric<Given>()) part.status = View(status, {p.size.B, p.size.G});
    if (careful && p.metric<KeyCovariance>())
      part.status = View(status, {p.size.B, p.size.G, chunks(p.size.M)});
    carried_forward(part, p, {.memory = room}, carried);
  }

  /// How many of `n` tokens after `length` others a call takes.
  std::int64_t at_once(std::int64_t n, std::int64_t length) const {
    n = std::min(n, most_queries);
    const bool few = covariance && !masked && n <= most_at_once;
    return few ? std::min(n, covariance->until_next(length)) : n;
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
    const std::int64_t each = by_chunks ? 1 : chunks(length + 1);
    std::vector<std::int32_t> raises(std::size_t(z.B * z.G * each));
    std::vector<std::uint8_t> keep(std::size_t(z.B * z.M));
    synchronize();
    copy_to_host(raises.data(), by_chunks ? covariance->status() : status,
                 raises.size() * sizeof(std::int32_t));
    copy_to_host(keep.data(), mask.data, keep.size());
    for (std::int64_t head = 0; head < z.B * z.G; ++head) {
      const std::int64_t b = head / z.G, g = head % z.G;
      const std::int64_t n = std::count(&keep[b * z.M], &keep[b * z.M] + length, 1);
      const std::int64_t chunk = how && !by_chunks ? metric::chunk_of(n, how->period) : 0;
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
  double* next_sums = nullptr;  // what a launch that reads carried.sums leaves in their stead
  int* next_counts = nullptr;
  int* arrived = nullptr;  // of SplitKeys
  std::optional<RunningCovariance> covariance;
  bool by_chunks = false;               // whether the last call went by it
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
  if (of.covariance) of.covariance->reset();
  fill(of.arrived, 0, std::size_t(SplitKeys::counters(of.cache)) * sizeof(int), nullptr);
  fill(of.carried.rows, 0, std::size_t(of.running) * sizeof(double), nullptr);
  if (!of.carried.sums) return;
  fill(of.carried.sums, 0, std::size_t(z.B * of.heads * z.D) * sizeof(double), nullptr);
  fill(of.carried.counts, 0, std::size_t(z.B * of.heads) * sizeof(int), nullptr);
}

void Decoding::step(const Outputs& to, const Problem& tokens, std::int64_t begin, std::int64_t end,
                    std::int64_t length) {
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t n = state_->at_once(end - i, length + i - begin);
    state_->attend(to, tokens, i, i + n, length + i - begin);
    i += n;
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
