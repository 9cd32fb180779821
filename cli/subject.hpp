// SPDX-License-Identifier: Apache-2.0
// One mechanism of ours at one shape, for timing: its result is checked first, then it can be run
// again and again on made tensors.
#pragma once

#include "cli/findings.hpp"
#include "cli/problem.hpp"
#include "cli/verbs.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace foci::cli {

class Subject {
 public:
  /// Checks a result of this kind against ref and throws NumericalError when it is off; then makes
  /// the tensors and runs once.
  Subject(const Timed& what, std::uint64_t seed);
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  /// The pass that is timed.
  void run();

  const Timed& what() const { return what_; }
  DType dtype() const { return what_.mechanism.dtype.value_or(DType::f32); }
  Executor& threads() { return threads_; }
  const Problem& problem() const { return problem_; }
  const Prepared& call() const { return *call_; }
  /// Forward 2 B H N M (D + E), backward 2.5 times that, half of it when causal.
  double flops() const;
  /// Whether it is what every other library computes: softmax of q k'/sqrt(D), no bias.
  bool is_plain() const;

  const Sizes& checked() const { return checked_; }
  const std::vector<Finding>& findings() const { return findings_; }
  const Finding& worst() const { return worst_; }
  /// Of the first run, with this process' tensors, workspace, code and threads.
  const std::optional<std::size_t>& peak_rss() const { return peak_rss_; }

 private:
  Problem made(const Sizes& sizes, const Options& how, std::uint64_t seed) const;
  std::vector<Finding> drawn(std::uint64_t seed);
  void check(std::uint64_t seed);
  bool is_timed(const Finding& finding) const;

  Timed what_;
  Executor threads_;
  Sizes checked_;
  std::vector<Finding> findings_;
  Finding worst_;
  Problem problem_;
  std::optional<Prepared> call_;
  std::optional<std::size_t> peak_rss_;
};

}  // namespace foci::cli
