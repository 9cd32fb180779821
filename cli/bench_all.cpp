// SPDX-License-Identifier: Apache-2.0
// foci bench --all: every mechanism on the same made tensors, in one table.
#include "cli/findings.hpp"
#include "cli/machine.hpp"
#include "cli/made.hpp"
#include "cli/mechanism.hpp"
#include "cli/remarks.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/attention.hpp>
#include <foci/executor.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace foci::cli {
namespace {

constexpr int repetitions = 3;

struct Row {
  Options how;
  double error = 0, seconds = 0;
  std::size_t bytes = 0;
  double concentration = 0, effective_keys = 0;
};

std::string title(const Options& how) {
  const Json flags = resolved(how, 1);
  return fmt::format(
      "{}{} x {}{}{}", metric_name(how.metric),
      flags.value("form", "") == "distance" ? " (distance)" : "", weighting_name(how.weighting),
      flags.value("content", false) ? " (content)" : "", how.causal ? ", causal" : "");
}

Options options_for(const std::string& metric, const std::string& weighting, const BenchAll& verb) {
  Words words = {{"metric", metric}, {"weighting", weighting}};
  words["seed"] = std::to_string(verb.common.seed);
  if (verb.causal || weighting == "decay") words["causal"] = "true";
  Options how = options_of(words);
  how.backend = verb.backend;
  return how;
}

bool is_refused(const std::vector<Support>& refused, const Options& how) {
  return std::any_of(refused.begin(), refused.end(), [&](const Support& cell) {
    return cell.metric == metric_name(how.metric) &&
           cell.weighting == weighting_name(how.weighting);
  });
}

/// Every metric with every weighting. Decay alone ignores the metric, so it stands once, and with
/// content for every metric; dot stands as Euclidean attention too.
std::vector<Row> rows_for(const BenchAll& verb, const std::vector<Support>& refused) {
  std::vector<std::string> metrics, weightings;
  for (const Flag& flag : find_verb("attend")->flags) {
    if (flag.name == "metric") metrics = choices(flag.values);
    if (flag.name == "weighting") weightings = choices(flag.values);
  }
  std::vector<Row> rows;
  for (const std::string& weighting : weightings) {
    for (const std::string& metric : metrics) {
      Options how = options_for(metric, weighting, verb);
      if (is_refused(refused, how)) continue;
      auto* decay = std::get_if<Decay>(&how.weighting);
      if (decay && metric == "dot") rows.push_back({.how = how});
      if (decay) decay->content = true;
      rows.push_back({.how = how});
      if (metric != "dot" || weighting != "softmax") continue;
      how.metric = Dot{.form = Form::distance};
      rows.push_back({.how = how});
    }
  }
  return rows;
}

/// The pairs that no backend of this build takes.
std::vector<Support> refused_pairs() {
  std::vector<Support> refused;
  for (const Support& cell : support()) {
    if (cell.backend == "ref" && !cell.supported) refused.push_back(cell);
  }
  return refused;
}

double mean_of(const Tensor& tensor) {
  const auto values = tensor.values();
  return std::accumulate(values.begin(), values.end(), 0.0) /
         double(std::max<std::size_t>(values.size(), 1));
}

void measure(Row& row, const BenchAll& verb, Executor& threads) {
  using Clock = std::chrono::steady_clock;
  Problem made = made_problem(verb.sizes, row.how, verb.common.seed);
  made.tensors.erase("do");
  const Problem problem = converted(made, verb.dtype);
  Options ref = row.how;
  ref.backend = Backend::ref;
  const Tensors exact = answers(converted(problem, DType::f64), ref, threads);
  Prepared call(problem, row.how, threads, {.statistics = true, .gradients = false});
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = Clock::now();
    call.forward();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    row.seconds = i == 0 ? seconds : std::min(row.seconds, seconds);
  }
  row.error = distance(call.tensors().at("o"), exact.at("o"));
  row.bytes = call.bytes();
  row.concentration = mean_of(exact.at("concentration"));
  row.effective_keys = mean_of(exact.at("effective_keys"));
}

Json json_of(const BenchAll& verb, const std::vector<Row>& rows,
             const std::vector<Support>& refused, const Remarks& remarks) {
  const Sizes& s = verb.sizes;
  Json mechanisms = Json::array();
  for (const Row& row : rows) {
    mechanisms.push_back({{"metric", metric_name(row.how.metric)},
                          {"weighting", weighting_name(row.how.weighting)},
                          {"options", resolved(row.how, s.D)},
                          {"backend", backend_name(row.how, verb.dtype)},
                          {"supported", true},
                          {"why_not", ""},
                          {"error", row.error},
                          {"seconds", row.seconds},
                          {"peak_bytes", row.bytes},
                          {"concentration", row.concentration},
                          {"effective_keys", row.effective_keys}});
  }
  for (const Support& cell : refused) {
    mechanisms.push_back({{"metric", cell.metric},
                          {"weighting", cell.weighting},
                          {"supported", false},
                          {"why_not", cell.why_not}});
  }
  return {{"shape", {s.B, s.H, s.N, s.D}},
          {"kv_heads", s.G},
          {"keys", s.M},
          {"values", s.E},
          {"tensors", made_means},
          {"seed", verb.common.seed},
          {"dtype", std::string(name_of(verb.dtype))},
          {"backend", verb.backend == Backend::automatic
                          ? "automatic"
                          : backend_name({.backend = verb.backend}, verb.dtype)},
          {"machine", machine_text()},
          {"commit", commit_text()},
          {"mechanisms", mechanisms},
          {"flags", remarks.json()}};
}

void print_result(const BenchAll& verb, const std::vector<Row>& rows,
                  const std::vector<Support>& refused, const Remarks& remarks) {
  const Sizes& s = verb.sizes;
  if (!verb.common.quiet) {
    fmt::print("{}\n", made_means);
    fmt::print("shape {},{},{},{}, {} keys, seed {}, {} on {}\n\n", s.B, s.H, s.N, s.D, s.M,
               verb.common.seed, name_of(verb.dtype), machine_text());
  }
  Table table(
      {"mechanism", "backend", "error", "time", "memory", "concentration", "effective keys"});
  for (const Row& row : rows) {
    table.add({title(row.how), backend_name(row.how, verb.dtype), number_text(row.error),
               seconds_text(row.seconds), bytes_text(row.bytes),
               fmt::format("{:.3f}", row.concentration),
               fmt::format("{:.1f}", row.effective_keys)});
  }
  table.print();
  for (const Support& cell : refused) {
    fmt::print("refused: {} x {}: {}\n", cell.metric, cell.weighting, cell.why_not);
  }
  remarks.print();
  if (verb.common.quiet) return;
  fmt::print(
      "\nConcentration is 1 when a query spreads its weight evenly over the n keys it sees and\n"
      "1/sqrt(n) when one key takes all; effective keys says the same as a number of keys.\n"
      "Error is the largest difference of o from the same tensors in f64; time is the forward "
      "pass\n"
      "with statistics, best of {}, where ref runs linear and decay row by row as it does "
      "softmax;\n"
      "memory is the tensors and the workspace.\n",
      repetitions);
}

}  // namespace

int run(const BenchAll& verb) {
  Remarks remarks;
  const auto refused = refused_pairs();
  auto rows = rows_for(verb, refused);
  Executor threads(verb.common.threads);
  {
    const bool hidden = verb.common.json || verb.common.quiet;
    Progress progress("bench", "mechanisms", hidden ? Show::nothing : Show::progress);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      progress.now(title(rows[i].how));
      progress.at(std::int64_t(i), std::int64_t(rows.size()));
      measure(rows[i], verb, threads);
    }
  }
  if (verb.common.json) {
    print_json(json_of(verb, rows, refused, remarks));
  } else {
    print_result(verb, rows, refused, remarks);
  }
  return 0;
}

}  // namespace foci::cli
