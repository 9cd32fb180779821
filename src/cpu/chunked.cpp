// SPDX-License-Identifier: Apache-2.0
// Sizes, memory and what comes before the first chunk: tokens, metrics, divisors, peaks, totals.
#include "cpu/chunked_passes.hpp"

namespace foci::cpu {

namespace {

Map map_of(const Weighting& weighting) {
  const auto* how = std::get_if<Linear>(&weighting);
  if (!how) return Map::none;
  switch (how->feature) {
    case Feature::elu1:
      return Map::elu1;
    case Feature::relu:
      return Map::relu;
    case Feature::exp:
      return Map::exp;
  }
  return Map::none;
}

/// Longer chunks read and write the state less often, shorter ones meet fewer keys one by one.
std::int64_t chunk_of(std::int64_t width) { return width <= 96 ? 64 : 128; }

/// What rows are divided by where it depends on positions alone.
void find_divisors(float* by, const Tokens& tokens, const Weighting& weighting) {
  if (const auto* how = std::get_if<Decay>(&weighting)) decay_divisors(by, tokens, how->rate);
  const auto* how = std::get_if<Identity>(&weighting);
  for (std::int64_t i = 0; how && i < tokens.at.N; ++i) {
    const bool length = how->rescale == Rescale::length && tokens.sees[i] > 0;
    by[i] = length ? float(tokens.sees[i]) : 1.0f;
  }
}

}  // namespace

ChunkPlan::ChunkPlan(const Problem& problem, int threads) : p(&problem) {
  const auto& z = problem.size;
  D = z.D;
  E = z.E;
  R = problem.heads_per_key();
  map = map_of(problem.how.weighting);
  divides = map != Map::none;
  fades = std::holds_alternative<Decay>(problem.how.weighting);
  features = D + (problem.from.key_bias ? R : 0);
  d_step = padded(features, line_pad);
  e_step = padded(E, line_pad);
  chunk = chunk_of(std::max(D, E));
  part = 8 * chunk;
  state = matrix() + d_step;
  direct = !problem.how.causal;
  const std::int64_t heads = problem.sequences * z.G;
  const std::int64_t parts = blocks_of(problem.longest_m, part);
  if (heads > 0 && heads < threads && parts > 1)
    groups = int(std::min(blocks_of(threads, heads), parts));
}

ChunkRoom ChunkRoom::take(Arena& arena, const ChunkPlan& plan, bool backward) {
  const std::int64_t chunk = plan.chunk, widest = std::max(plan.D, plan.E);
  ChunkRoom room;
  for (auto* lines : {&room.keys, &room.q, &room.dk, &room.dq})
    *lines = arena.take<float>(chunk, plan.d_step);
  for (auto* lines : {&room.values, &room.out}) *lines = arena.take<float>(chunk, plan.e_step);
  for (auto* lines : {&room.d_o, &room.dv})
    *lines = arena.take<float>(backward, chunk, plan.e_step);
  for (auto* lines : {&room.keys_across, &room.values_across})
    *lines = arena.take<float>(widest, chunk);
  room.raw = arena.take<float>(chunk, plan.D);
  for (auto* block : {&room.scores, &room.pulls}) *block = arena.take<float>(chunk, chunk);
  for (auto* state : {&room.base, &room.local, &room.joined})
    *state = arena.take<float>(plan.state);
  room.across = arena.take<float>(backward, plan.E, plan.d_step);
  const bool walks = plan.map == Map::exp;
  room.peaks = arena.take<float>(walks, plan.part, plan.d_step);
  room.chunks = arena.take<Chunk>(walks ? plan.part : plan.part / chunk);
  for (auto* line : {&room.bias, &room.powers, &room.by}) *line = arena.take<float>(chunk);
  room.tallies = arena.take<Tally>(chunk);
  for (auto* line : {&room.fade, &room.line}) *line = arena.take<float>(plan.d_step);
  for (auto* line : {&room.visible, &room.from}) *line = arena.take<std::int64_t>(chunk);
  const bool looks = change_of(plan.p->how.metric).estimated || plan.p->metric<Jacobian>();
  for (auto* lines : {&room.lines, &room.others})
    *lines = arena.take<float>(looks, plan.p->longest_m, widest);
  return room;
}

KeyHead KeyHead::take(Arena& arena, const ChunkPlan& plan, bool backward) {
  const Problem& p = *plan.p;
  const std::int64_t parts = blocks_of(p.longest_m, plan.part);
  const std::int64_t row_parts = p.how.causal ? parts : blocks_of(p.longest_n, plan.part);
  KeyHead head;
  head.metric = DiagonalMetric::take(arena, p);
  head.peaks = arena.take<float>(plan.map == Map::exp, parts + 1, plan.d_step);
  const bool totals = plan.groups > 1 || !p.how.causal;
  head.totals = arena.take<float>(totals, std::max(parts, row_parts), plan.state);
  head.whole = arena.take<float>(!p.how.causal, plan.state);
  if (!backward) return head;
  head.sums = arena.take<float>(plan.divides, plan.R, p.longest_n);
  head.deltas = arena.take<double>(plan.divides, plan.R, p.longest_n);
  const bool shares = !p.metric<Dot>() && !head.metric.per_query;
  head.dm = arena.take<double>(shares, std::max({parts, row_parts, std::int64_t(1)}),
                               head.metric.heads(), plan.D);
  const bool turns = p.through && p.metric<Jacobian>();
  const bool gathers = turns || (p.through && change_of(p.how.metric).estimated);
  head.dq = arena.take<float>(turns, plan.R, p.longest_n, plan.D);
  head.dk = arena.take<float>(turns, p.longest_m, plan.D);
  for (auto* lines : {&head.dv, &head.dv_prev})
    *lines = arena.take<float>(gathers, p.longest_m, plan.E);
  return head;
}

ChunkPass::ChunkPass(Arena& arena, const Problem& problem, int threads, bool backward)
    : p_(problem),
      isa_(chosen()),
      plan_(problem, threads),
      powers_(Powers::take(arena, problem, plan_.chunk)),
      tokens_(arena.take<Tokens>(problem.sequences)),
      by_(arena.take<float>(!plan_.divides, problem.sequences, problem.longest_n)),
      heads_(arena.take<KeyHead>(problem.sequences, problem.size.G)),
      rooms_(arena.take<ChunkRoom>(threads)) {
  for (std::int64_t s = 0; s < problem.sequences; ++s)
    put(tokens_, s, Tokens::take(arena, problem));
  for (std::int64_t i = 0; i < heads(); ++i) put(heads_, i, KeyHead::take(arena, plan_, backward));
  for (int t = 0; t < threads; ++t) put(rooms_, t, ChunkRoom::take(arena, plan_, backward));
  jacobian_room_ = JacobianRoom::take(arena, problem, threads);
}

void ChunkPass::prepare(Executor* threads) {
  powers_.fill();
  for (std::int64_t s = 0; s < p_.sequences; ++s) {
    tokens_[s].place(p_, s);
    float* by = plan_.divides ? nullptr : by_.data() + s * p_.longest_n;
    if (by) find_divisors(by, tokens_[s], p_.how.weighting);
    for (std::int64_t g = 0; g < p_.size.G; ++g) {
      KeyHead& head = heads_[s * p_.size.G + g];
      head.tokens = &tokens_[s];
      head.by = by;
      head.g = g;
    }
  }
  each(threads, heads(), [&](std::int64_t i, int thread) { estimate(work(i, thread)); });
  for (std::int64_t i = 0; i < heads() && p_.metric<Jacobian>(); ++i)
    jacobian(i).forward(jacobian_room_, threads);
  if (plan_.map != Map::exp) return;
  each_part(threads, p_.longest_m, [](ChunkWork work, std::int64_t part) {
    if (part < work.parts()) work.find_peaks(part);
  });
  each(threads, heads(), [&](std::int64_t i, int thread) { work(i, thread).join_peaks(); });
}

JacobianEstimate ChunkPass::jacobian(std::int64_t head) {
  const ChunkWork at = work(head, 0);
  const Tokens& t = at.tokens();
  const std::int64_t g = at.head.g;
  return {at.head.metric, isa_, t.lines(p_.from.k, g, 0, t.n, plan_.D, at.room.lines.data()),
          t.lines(p_.from.v, g, 0, t.n, plan_.E, at.room.others.data())};
}

void ChunkPass::estimate(ChunkWork work) {
  const Tokens& tokens = work.tokens();
  DiagonalMetric& metric = work.head.metric;
  metric.tokens = &tokens;
  metric.g = work.head.g;
  if (metric.m.empty()) return;
  const float *v = nullptr, *v_prev = nullptr;
  if (change_of(p_.how.metric).estimated) {
    v = tokens.lines(p_.from.v, metric.g, 0, tokens.n, plan_.E, work.room.lines.data());
    v_prev = tokens.lines(p_.from.v_prev, metric.g, 0, tokens.n, plan_.E, work.room.others.data());
  }
  metric.estimate(v, v_prev);
}

void ChunkPass::total_keys(Executor* threads) {
  if (p_.how.causal && plan_.groups == 1) return;
  each_part(threads, p_.longest_m, [&](ChunkWork work, std::int64_t part) {
    const std::int64_t end = work.causal() ? group_begin(work, plan_.groups - 1) : work.parts();
    if (part >= end || work.direct()) return;
    work.total_keys(part);
    keep(total(work, part), work.room.local);
  });
  each(threads, heads(), [&](std::int64_t i, int thread) {
    ChunkWork at = work(i, thread);
    if (at.causal() || at.direct()) return;
    begin_group(at, at.parts());
    keep(at.head.whole, at.room.base);
  });
}

void ChunkPass::begin_group(ChunkWork& work, std::int64_t part) {
  std::fill(work.room.base.begin(), work.room.base.end(), 0.0f);
  for (std::int64_t before = 0; before < part; ++before)
    work.fold_keys(total(work, before), before);
}

namespace {

bool without_content(const Weighting& weighting) {
  const auto* how = std::get_if<Decay>(&weighting);
  return how && !how->content;
}

/// Whether scores are q' . k.
bool plain_products(const Metric& metric) {
  const auto* given = std::get_if<Given>(&metric);
  return !std::holds_alternative<KeyCovariance>(metric) &&
         !(given && given->extent == Extent::full) && metric::form_of(metric) == Form::product;
}

}  // namespace

bool chunked_serves(const Metric& metric, const Weighting& weighting) {
  if (without_content(weighting)) return true;
  if (!plain_products(metric)) return false;
  if (const auto* how = std::get_if<Identity>(&weighting))
    return how->rescale == Rescale::length || how->rescale == Rescale::none;
  return std::holds_alternative<Linear>(weighting) || std::holds_alternative<Decay>(weighting);
}

std::size_t chunked_workspace(const Problem& p, int threads) {
  return without_content(p.how.weighting) ? decay_workspace(p, threads)
                                          : chunk_backward_workspace(p, threads);
}

void chunked_forward(const Outputs& to, const Problem& p, std::span<std::byte> memory,
                     Executor* threads) {
  without_content(p.how.weighting) ? decay_forward(to, p, memory, threads)
                                   : chunk_forward(to, p, memory, threads);
}

void chunked_backward(const Gradients& to, const Problem& p, std::span<std::byte> memory,
                      Executor* threads) {
  without_content(p.how.weighting) ? decay_backward(to, p, memory, threads)
                                   : chunk_backward(to, p, memory, threads);
}

}  // namespace foci::cpu
