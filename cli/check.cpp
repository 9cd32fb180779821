// SPDX-License-Identifier: Apache-2.0
// foci check: the same tensors through a backend and through ref in f64; gradients against
// differences of the forward pass; answers in a file against ref. The doubt ends here or is
// printed.
#include "cli/findings.hpp"
#include "cli/made.hpp"
#include "cli/metadata.hpp"
#include "cli/remarks.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/attention.hpp>
#include <foci/executor.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace foci::cli {
namespace {

/// Beyond this many multiplications a forward pass is too slow to repeat for every difference.
constexpr double most_work = 4e7;

struct Checked {
  std::optional<Safetensors> file;
  Problem problem;  // f64, nothing rounded yet
  Options how;
  DType dtype = DType::f32;
  int threads = 1;
};

Checked subject_of(const Check& verb) {
  Checked subject;
  if (!verb.in) {
    subject.how = verb.mechanism.how;
    subject.dtype = verb.mechanism.dtype.value_or(DType::f32);
    subject.problem = made_problem(verb.sizes, subject.how, verb.common.seed);
    return subject;
  }
  subject.file.emplace(*verb.in);
  const Mechanism mechanism = completed(verb.mechanism, *subject.file, *verb.in);
  subject.how = mechanism.how;
  subject.dtype = mechanism.dtype.value_or(dtype_of_q(*subject.file));
  subject.problem = read_problem(*subject.file, *verb.in, subject.how, DType::f64);
  Options ref = subject.how;  // nothing is rounded yet, and f64 is not for every backend
  ref.backend = Backend::ref;
  need(subject.problem.inputs(), ref);
  if (!subject.problem.view("do")) {
    subject.problem.tensors["do"] = made_gradient(subject.problem.sizes(), verb.common.seed);
  }
  return subject;
}

double work_of(const Problem& problem) {
  const Sizes s = problem.sizes();
  return double(s.B * s.H) * double(s.N) * double(s.M) * double(s.D + s.E);
}

/// Why differences of the forward pass say nothing here; empty when they do.
std::string no_differences(const Checked& subject, const Tensor& o) {
  const auto values = o.values();
  if (!std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }))
    return "o holds NaN or infinity";
  if (work_of(subject.problem) > most_work)
    return "these tensors are too large to repeat the forward pass so often";
  return "";
}

std::vector<Finding> findings_of(const Checked& subject, const Common& common, Executor& threads,
                                 Remarks& remarks) {
  Progress progress("check", "parts", common.json || common.quiet ? Show::nothing : Show::progress);
  const Problem rounded = converted(subject.problem, subject.dtype);
  Options ref = subject.how;
  ref.backend = Backend::ref;
  const Tensors ours = answers(rounded, subject.how, threads);
  progress.at(1, 4);
  const Tensors naive = answers(rounded, ref, threads);
  progress.at(2, 4);
  const Tensors exact = answers(converted(rounded, DType::f64), ref, threads);
  progress.at(3, 4);
  std::vector<Finding> findings = precision_findings(ours, naive, exact);
  const auto add = [&](const std::vector<Finding>& more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  remarks.add_for_rows(exact.at("o"));
  const std::string why_not = no_differences(subject, exact.at("o"));
  if (why_not.empty()) {
    add(difference_findings(subject.problem, subject.how, threads, common.seed));
  } else {
    add({{.name = "gradients", .against = "finite differences", .note = why_not}});
  }
  if (subject.file && subject.dtype == DType::f64) {
    add(answer_findings(exact, *subject.file, subject.how));
  }
  return findings;
}

bool is_compared(const Finding& finding) { return finding.note.empty(); }

Json json_of(const Finding& finding) {
  return {{"name", finding.name},
          {"against", finding.against},
          {"error", finding.error},
          {"naive_error", finding.naive_error},
          {"tolerance", finding.tolerance},
          {"passed", finding.passed},
          {"compared", is_compared(finding)},
          {"note", finding.note}};
}

/// All that was compared agrees, and something was.
bool has_passed(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), is_compared) &&
         std::all_of(findings.begin(), findings.end(), [](const auto& f) { return f.passed; });
}

std::string verdict(const std::vector<Finding>& findings) {
  if (std::none_of(findings.begin(), findings.end(), is_compared))
    return painted("FAILED: nothing could be compared", Paint::bad);
  return has_passed(findings) ? painted("passed", Paint::good) : painted("FAILED", Paint::bad);
}

void print_result(const Checked& subject, const std::vector<Finding>& findings, const Check& verb,
                  const Remarks& remarks) {
  const Sizes s = subject.problem.sizes();
  if (verb.common.json) {
    const Finding& top = worst(findings);
    Json tensors = Json::array();
    for (const Finding& finding : findings) tensors.push_back(json_of(finding));
    print_json({{"shape", {s.B, s.H, s.N, s.D}},
                {"options", resolved(subject.how, s.D)},
                {"backend", backend_name(subject.how, subject.dtype)},
                {"dtype", std::string(name_of(subject.dtype))},
                {"threads", subject.threads},
                {"error", top.error},
                {"naive_error", top.naive_error},
                {"tolerance", top.tolerance},
                {"passed", has_passed(findings)},
                {"tensors", tensors},
                {"flags", remarks.json()}});
    return;
  }
  remarks.print();
  if (verb.common.quiet) return;
  fmt::print("{}\n{} {} against ref f64 on {}, q {}\n", described(subject.how, s.D),
             backend_name(subject.how, subject.dtype), name_of(subject.dtype),
             verb.in ? shown(*verb.in) : "made tensors",
             to_string(subject.problem.view("q").sizes()));
  Table table({"tensor", "against", "error", "naive error", "tolerance", ""});
  for (const Finding& finding : findings) {
    if (!is_compared(finding)) continue;
    table.add({finding.name, finding.against, number_text(finding.error),
               finding.against == "ref f64" ? number_text(finding.naive_error) : "",
               number_text(finding.tolerance), finding.passed ? "pass" : "FAIL"});
  }
  table.print();
  for (const Finding& finding : findings) {
    if (is_compared(finding)) continue;
    fmt::print("not compared: {} with {}: {}\n", finding.name, finding.against, finding.note);
  }
  fmt::print("{}\n", verdict(findings));
}

}  // namespace

int run(const Check& verb) {
  Remarks remarks;
  Checked subject = subject_of(verb);
  Executor threads(verb.common.threads);
  subject.threads = threads.threads();
  const auto findings = findings_of(subject, verb.common, threads, remarks);
  remarks.add_for(subject.how);
  print_result(subject, findings, verb, remarks);
  return has_passed(findings) ? 0 : 1;
}

}  // namespace foci::cli
