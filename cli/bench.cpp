// SPDX-License-Identifier: Apache-2.0
// foci bench: checks a mechanism's result, then times it in turn with textbook softmax attention.
#include "cli/findings.hpp"
#include "cli/machine.hpp"
#include "cli/made.hpp"
#include "cli/mechanism.hpp"
#include "cli/naive.hpp"
#include "cli/remarks.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/error.hpp>
#include <foci/executor.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

namespace foci::cli {
namespace {

constexpr double most_checked_work = 1e8;  // multiplications; beyond it a smaller shape is checked
constexpr int fewest = 5, most = 100;
constexpr double enough_seconds = 2;

using Task = std::function<void()>;

struct Times {
  std::vector<double> seconds;
  double best() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double spread() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2] - sorted[0];
  }
};

struct Result {
  Sizes checked;
  std::vector<Finding> findings;
  Finding worst;
  Times ours;
  std::optional<Times> naive;
  std::size_t bytes = 0;
  int threads = 1;
};

std::string pass_name(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "both";
}

double flops(const Bench& verb) {
  const Sizes& s = verb.sizes;
  const double forward = 2.0 * double(s.B * s.H) * double(s.N) * double(s.M) * double(s.D + s.E);
  const double times = verb.pass == Pass::forward ? 1 : verb.pass == Pass::backward ? 2.5 : 3.5;
  return forward * times * (verb.mechanism.how.causal ? 0.5 : 1.0);
}

double gflops(const Bench& verb, const Times& times) { return flops(verb) / times.best() / 1e9; }

/// The shape itself, or one of the same kind that ref can do in f64 in a moment.
Sizes checkable(const Sizes& s) {
  const double work = double(s.B * s.H) * double(s.N) * double(s.M) * double(s.D + s.E);
  if (work <= most_checked_work) return s;
  Sizes small = s;
  small.B = 1;
  small.G = 1;
  small.H = s.H / s.G;
  small.N = std::min<std::int64_t>(s.N, 97);
  small.M = std::min<std::int64_t>(s.M, s.M == s.N ? 97 : 131);
  return small;
}

/// Whether the pass that is timed writes this tensor.
bool is_timed(const Finding& finding, const Bench& verb) {
  const bool gradient = finding.name[0] == 'd';
  if (gradient) return verb.pass != Pass::forward;
  return verb.pass != Pass::backward && (verb.stats || finding.name == "o");
}

void check(Result& result, const Bench& verb, DType dtype, Executor& threads) {
  Options ref = verb.mechanism.how;
  ref.backend = Backend::ref;
  result.checked = checkable(verb.sizes);
  Problem made = made_problem(result.checked, ref, verb.common.seed);
  if (verb.pass == Pass::forward) made.tensors.erase("do");
  const Problem rounded = converted(made, dtype);
  const Tensors ours = answers(rounded, verb.mechanism.how, threads);
  const Tensors naive = answers(rounded, ref, threads);
  const Tensors exact = answers(converted(rounded, DType::f64), ref, threads);
  result.findings = precision_findings(ours, naive, exact);
  std::erase_if(result.findings, [&](const Finding& f) { return !is_timed(f, verb); });
  result.worst = worst(result.findings);
  if (result.worst.passed) return;
  throw NumericalError(fmt::format("{} is off by {:g}, more than {:g}: not timed (see foci check)",
                                   result.worst.name, result.worst.error, result.worst.tolerance));
}

double timed(const Task& task) {
  const auto begin = std::chrono::steady_clock::now();
  task();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Ours and the peer in turn, so that whatever slows the machine slows both.
void repeat(Result& result, const Task& ours, const Task& peer, Progress& progress) {
  ours();
  if (peer) peer();
  if (peer) result.naive.emplace();
  double spent = 0;
  for (int i = 0; i < most && (i < fewest || spent < enough_seconds); ++i) {
    result.ours.seconds.push_back(timed(ours));
    spent += result.ours.seconds.back();
    if (peer) result.naive->seconds.push_back(timed(peer));
    const int about = int(enough_seconds * (i + 1) / spent);
    progress.at(i + 1, std::clamp(about, std::max(fewest, i + 1), most));
  }
}

template <class T>
Task naive_task(NaiveAttention<T>& naive, Pass pass) {
  return [&naive, pass] {
    if (pass != Pass::backward) naive.forward();
    if (pass != Pass::forward) naive.backward();
  };
}

void time(Result& result, const Bench& verb, DType dtype, Executor& threads) {
  const Options& how = verb.mechanism.how;
  Problem problem = converted(made_problem(verb.sizes, how, verb.common.seed), dtype);
  if (verb.pass == Pass::forward) problem.tensors.erase("do");
  Prepared call(problem, how, threads, {.statistics = verb.stats, .gradients = true});
  call.forward();
  const Task ours = [&] {
    if (verb.pass != Pass::backward) call.forward();
    if (verb.pass != Pass::forward) call.backward();
  };
  result.bytes = call.bytes();
  const bool hidden = verb.common.json || verb.common.quiet;
  Progress progress("bench", "repetitions", hidden ? Show::nothing : Show::progress);
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (4 * NaiveAttention<double>::matrix_bytes(verb.sizes, threads.threads()) > memory) {
    return repeat(result, ours, {}, progress);
  }
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  const Problem same = converted(problem, wide);
  if (wide == DType::f64) {
    NaiveAttention<double> naive(same, how, threads);
    return repeat(result, ours, naive_task(naive, verb.pass), progress);
  }
  NaiveAttention<float> naive(same, how, threads);
  repeat(result, ours, naive_task(naive, verb.pass), progress);
}

Json json_of(const Bench& verb, const Result& result, DType dtype, const Remarks& remarks) {
  const Sizes& s = verb.sizes;
  const Sizes& c = result.checked;
  Json peers = Json::object();
  if (result.naive) {
    peers["naive"] = {{"seconds", result.naive->best()}, {"gflops", gflops(verb, *result.naive)}};
  }
  Json tensors = Json::object();
  for (const Finding& f : result.findings) {
    tensors[f.name] = {
        {"error", f.error}, {"naive_error", f.naive_error}, {"tolerance", f.tolerance}};
  }
  return {{"shape", {s.B, s.H, s.N, s.D}},
          {"kv_heads", s.G},
          {"keys", s.M},
          {"values", s.E},
          {"metric", metric_name(verb.mechanism.how.metric)},
          {"weighting", weighting_name(verb.mechanism.how.weighting)},
          {"options", resolved(verb.mechanism.how, s.D)},
          {"backend", backend_name(verb.mechanism.how.backend)},
          {"dtype", std::string(name_of(dtype))},
          {"pass", pass_name(verb.pass)},
          {"causal", verb.mechanism.how.causal},
          {"stats", verb.stats},
          {"threads", result.threads},
          {"seconds", result.ours.best()},
          {"spread", result.ours.spread()},
          {"repetitions", result.ours.seconds.size()},
          {"gflops", gflops(verb, result.ours)},
          {"peak_bytes", result.bytes},
          {"error", result.worst.error},
          {"naive_error", result.worst.naive_error},
          {"checked_shape", {c.B, c.H, c.N, c.D}},
          {"tensors", tensors},
          {"peers", peers},
          {"machine", machine_text()},
          {"commit", commit_text()},
          {"flags", remarks.json()}};
}

void print_result(const Bench& verb, const Result& result, DType dtype, const Remarks& remarks) {
  const Sizes& s = verb.sizes;
  if (!verb.common.quiet) {
    fmt::print("{}\n{} {} {}, {} pass{}, {} heads on {}, {} queries, {} keys, {} thread{}\n",
               described(verb.mechanism.how, s.D), backend_name(verb.mechanism.how.backend),
               name_of(dtype), machine_text(), pass_name(verb.pass),
               verb.pass == Pass::both ? "es" : "", s.B * s.H, s.B * s.G, s.N, s.M, result.threads,
               result.threads == 1 ? "" : "s");
  }
  Table table({"", "best", "spread", "GFLOP/s", "memory"});
  table.add({backend_name(verb.mechanism.how.backend), seconds_text(result.ours.best()),
             seconds_text(result.ours.spread()), number_text(gflops(verb, result.ours)),
             bytes_text(result.bytes)});
  if (result.naive) {
    table.add({"naive softmax dot", seconds_text(result.naive->best()),
               seconds_text(result.naive->spread()), number_text(gflops(verb, *result.naive)), ""});
  }
  table.print();
  remarks.print();
  if (verb.common.quiet) return;
  if (result.naive) {
    fmt::print("{:.2f} times the speed of naive softmax dot attention\n",
               result.naive->best() / result.ours.best());
  }
  const Sizes& c = result.checked;
  fmt::print("checked against ref f64 on shape {},{},{},{}: {} off by {:.3g} (naive {:.3g})\n", c.B,
             c.H, c.N, c.D, result.worst.name, result.worst.error, result.worst.naive_error);
}

}  // namespace

int run(const Bench& verb) {
  Remarks remarks;
  const DType dtype = verb.mechanism.dtype.value_or(DType::f32);
  Executor threads(verb.common.threads);
  Result result;
  result.threads = threads.threads();
  check(result, verb, dtype, threads);
  time(result, verb, dtype, threads);
  remarks.add_for(verb.mechanism.how);
  if (verb.common.json) {
    print_json(json_of(verb, result, dtype, remarks));
  } else {
    print_result(verb, result, dtype, remarks);
  }
  return 0;
}

}  // namespace foci::cli
