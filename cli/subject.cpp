// SPDX-License-Identifier: Apache-2.0
// A mechanism that is about to be timed: checked on a shape that ref can do in f64 in a moment.
#include "cli/subject.hpp"

#include "cli/machine.hpp"
#include "cli/made.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <variant>

namespace foci::cli {
namespace {

constexpr double most_checked_work = 1e8;  // multiplications; beyond it a smaller shape is checked

constexpr std::int64_t fewest_heads = 8;  // in fewer numbers the naive formula is right by luck

constexpr std::uint64_t most_draws = 4;  // that are judged together when one alone is off

/// The shape itself with heads enough, or one of the same kind that ref can do in f64 in a moment.
Sizes checkable(const Sizes& s) {
  Sizes small = s;
  const double work = double(s.B * s.H) * double(s.N) * double(s.M) * double(s.D + s.E);
  if (work > most_checked_work) {
    small.B = 1;
    small.G = 1;
    small.H = s.H / s.G;
    small.N = std::min<std::int64_t>(s.N, 97);
    small.M = std::min<std::int64_t>(s.M, s.M == s.N ? 97 : 131);
  }
  small.B = std::max(small.B, (fewest_heads + small.H - 1) / small.H);
  return small;
}

}  // namespace

Subject::Subject(const Timed& what, std::uint64_t seed) : what_(what), threads_(what.threads) {
  check(seed);
  const Options& how = what_.mechanism.how;
  problem_ = converted(made(what_.sizes, how, seed), dtype());
  peak_rss_ = peak_resident([&] {
    call_.emplace(problem_, how, threads_, Wanted{.statistics = what_.stats, .gradients = true});
    if (what_.pass == Pass::backward) call_->forward();
    run();
  });
}

Problem Subject::made(const Sizes& sizes, const Options& how, std::uint64_t seed) const {
  Problem problem = made_problem(sizes, how, seed);
  if (what_.pass == Pass::forward) problem.tensors.erase("do");
  if (what_.key_bias) problem.tensors["key_bias"] = made_key_bias(sizes, seed);
  return problem;
}

/// Whether the pass that is timed writes this tensor.
bool Subject::is_timed(const Finding& finding) const {
  const bool gradient = finding.name[0] == 'd';
  if (gradient) return what_.pass != Pass::forward;
  return what_.pass != Pass::backward && (what_.stats || finding.name == "o");
}

std::vector<Finding> Subject::drawn(std::uint64_t seed) {
  const Options& how = what_.mechanism.how;
  Options ref = how;
  ref.backend = Backend::ref;
  const Problem rounded = converted(made(checked_, ref, seed), dtype());
  const Tensors ours = answers(rounded, how, threads_);
  const Tensors naive = answers(rounded, ref, threads_);
  const Tensors exact = answers(converted(rounded, DType::f64), ref, threads_);
  std::vector<Finding> findings = precision_findings(ours, naive, exact);
  std::erase_if(findings, [&](const Finding& f) { return !is_timed(f); });
  return findings;
}

void Subject::check(std::uint64_t seed) {
  checked_ = checkable(what_.sizes);
  findings_ = drawn(seed);
  for (std::uint64_t draw = 1; draw < most_draws && !cli::worst(findings_).passed; ++draw) {
    pool(findings_, drawn(seed + draw));
  }
  worst_ = cli::worst(findings_);
  if (worst_.passed) return;
  throw NumericalError(fmt::format("{} is off by {:g}, more than {:g}: not timed (see foci check)",
                                   worst_.name, worst_.error, worst_.tolerance));
}

void Subject::run() {
  if (what_.pass != Pass::backward) call_->forward();
  if (what_.pass != Pass::forward) call_->backward();
}

double Subject::flops() const {
  const Sizes& s = what_.sizes;
  const double forward = 2.0 * double(s.B * s.H) * double(s.N) * double(s.M) * double(s.D + s.E);
  const double times = what_.pass == Pass::forward ? 1 : what_.pass == Pass::backward ? 2.5 : 3.5;
  return forward * times * (what_.mechanism.how.causal ? 0.5 : 1.0);
}

bool Subject::is_plain() const {
  const Options& how = what_.mechanism.how;
  const Dot* dot = std::get_if<Dot>(&how.metric);
  return dot != nullptr && dot->form == Form::product && !what_.key_bias &&
         std::holds_alternative<Softmax>(how.weighting) &&
         std::holds_alternative<std::monostate>(how.scale);
}

}  // namespace foci::cli
