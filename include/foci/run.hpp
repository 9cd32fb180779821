// SPDX-License-Identifier: Apache-2.0
// What a training run is told and what it tells: the optimiser, the course of its rate, when it
// saves and judges, and a line for every step. No torch.
#pragma once

#include <foci/export.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace foci::dist {
class Group;
}

namespace foci::train {

enum class Algorithm { adamw, sgd };
struct OptimizerOptions {
  Algorithm algorithm = Algorithm::adamw;
  double weight_decay = 0.05;  ///< of matrices; biases, norms, positions and metrics have none
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adamw
  double momentum = 0.9;                              ///< sgd, Nesterov's
};

enum class Course { cosine, poly, constant };
struct Schedule {
  double rate = 1e-3, last = 1e-5;
  std::int64_t warmup = 0;  ///< steps from `start` up to the rate
  double start = 1e-6;
  std::int64_t steps = 0;  ///< in all
  Course course = Course::cosine;
  double power = 0.9;  ///< poly
};
FOCI_API double rate_at(const Schedule& schedule, std::int64_t step);

/// So many threads, 0 for as many as there are, of torch and of OpenBLAS, if its products are that
/// one's: torch tells OpenMP alone, and two runs of one thread would have four that wait for one
/// another.
FOCI_API void use_threads(int count);

/// Where a model is worked on.
struct Place {
  int threads = 0;             ///< torch's; 0: its own choice
  std::string device = "cpu";  ///< or cuda
  bool bf16 = false;           ///< of a model that is judged: RunOptions' of its training
};

/// Named numbers of an evaluation: "top1", "perplexity", "miou".
using Scores = std::map<std::string, double>;

struct RunOptions {
  std::string folder = {};  ///< empty: nothing is written
  bool resume = false;      ///< from the last checkpoint in it, from the start where there is none
  std::uint64_t seed = 0;
  std::int64_t accumulate = 1;      ///< batches a step
  std::int64_t evaluate_every = 0;  ///< steps; 0: at the end alone
  std::int64_t save_every = 0;      ///< steps; 0: at the end alone
  int keep = 2;                     ///< checkpoints
  OptimizerOptions optimizer = {};
  Schedule schedule = {};
  bool bf16 = false;  ///< products and attention in bf16, weights and their sums in f32
  double clip = 0;    ///< the gradients' length is cut to it; 0: not
  double ema = 0;     ///< decay of the parameters' average; 0: none
  /// Several processes, each with its part of every batch; rank 0 alone has the folder. May be
  /// absent.
  dist::Group* group = nullptr;
  /// Asked between steps and while the model is judged: true saves and ends. May be absent, and of
  /// several processes it is not asked.
  std::function<bool()> stops = {};
};

/// A step, once it is done. metrics.jsonl has them all.
struct Line {
  std::int64_t step = 0, steps = 0;       ///< the first is 1
  double loss = 0, rate = 0, length = 0;  ///< length: of the gradients, before it was cut
  double per_second = 0;                  ///< samples, or tokens of a text
  double left = 0;                        ///< seconds
  std::int64_t memory = 0;                ///< resident bytes; on a GPU the most that tensors had
  Scores scores = {};                     ///< where the step was evaluated
  std::string sample = {};                ///< a text that the model made there
};

/// What came out. `steps` counts from the start of the run, `seconds` those of this process.
struct Outcome {
  std::int64_t steps = 0;
  bool finished = false;  ///< false: told to stop before the last step was done and judged
  double loss = 0, seconds = 0, per_second = 0;
  Scores scores = {};
};

/// The folder of a run's last whole checkpoint; empty where there is none.
FOCI_API std::string last_checkpoint(const std::string& run);

/// Hears of every step; false saves and ends the run.
using Told = std::function<bool(const Line&)>;

}  // namespace foci::train
