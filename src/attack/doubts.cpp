// SPDX-License-Identifier: Apache-2.0
// Why a robust accuracy should not be believed: small experiments on the model, and signs in what
// the attacks found.
#include <foci/attack.hpp>

#include "attack/problem.hpp"

#include <ATen/core/grad_mode.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::attack {
namespace {

constexpr std::int64_t glanced_at = 16;  // images, where none are attacked

/// Images that the model gets right, a few of them.
struct Sample {
  const Model& model;
  at::Tensor images, labels;
  Options options;

  /// Share that is still right after one attack.
  double after(const Attack& attack, double eps) const {
    Options own = options;
    own.eps = eps;
    own.goals = at::Tensor();
    return run(model, images, labels, {attack}, own).accuracies[0];
  }
};

/// Calls `look` with places from..to, as many as go into a batch, until it says true.
template <class Look>
bool in_batches(const Sample& s, const Look& look) {
  for (std::int64_t i = 0; i < s.images.size(0); i += s.options.batch) {
    if (look(s.images.slice(0, i, i + s.options.batch), s.labels.slice(0, i, i + s.options.batch)))
      return true;
  }
  return false;
}

bool is_random(const Sample& s) {
  return in_batches(s, [&](const at::Tensor& images, const at::Tensor&) {
    const at::Tensor first = unit(s.model(images), Norm::l2);
    for (int i = 1; i < 5; ++i) {
      const at::Tensor logits = unit(s.model(images), Norm::l2);
      if (length_of(logits - first, Norm::l2).max().item<double>() > 1e-4) return true;
    }
    return false;
  });
}

bool gives_probabilities(const Sample& s) {
  return !in_batches(s, [&](const at::Tensor& images, const at::Tensor&) {
    const at::Tensor logits = s.model(images);
    return logits.max().item<double>() >= 1 + 1e-5 || logits.min().item<double>() <= -1e-5 ||
           (logits.sum(1) - 1).abs().max().item<double>() >= 1e-5;
  });
}

/// Share of the images whose every pixel has no slope.
double zero_gradients(const Sample& s) {
  const auto loss = [](const at::Tensor& logits, const Rows& rows) {
    return difference_of_logits(logits, rows.y);
  };
  double flat = 0;
  in_batches(s, [&](const at::Tensor& images, const at::Tensor& labels) {
    const at::Tensor zeros = at::zeros_like(labels);
    const Rows rows{images, labels, zeros, zeros, zeros, {}};
    const Gradient g = Problem(s.model, s.options, rows).gradient(images, rows, loss);
    flat += length_of(g.by_pixel, Norm::linf).eq(0).sum().item<double>();
    return false;
  });
  return flat / double(s.images.size(0));
}

/// A ball that holds every image there is.
double whole_box(const Sample& s) {
  const double pixels = double(s.images[0].numel());
  return s.options.norm == Norm::linf ? 1.0
         : s.options.norm == Norm::l2 ? std::sqrt(pixels)
                                      : pixels;
}

/// "linf 8/255", "l2 0.5".
std::string ball_text(const Options& options) {
  if (options.norm == Norm::linf) return fmt::format("linf {:.4g}/255", 255 * options.eps);
  return fmt::format("{} {:.4g}", options.norm == Norm::l2 ? "l2" : "l1", options.eps);
}

void try_attacks(std::vector<RecordFlag>& flags, const Sample& s) {
  const double eps = s.options.eps;
  const double few = s.after(Pgd{.steps = 10, .step = 2.5 / 10}, eps);
  const double many = s.after(Pgd{.steps = 40, .step = 2.5 / 40}, eps);
  // Under l1 the dense steps of PGD do little; AutoAttack's sparse ones speak for the gradient.
  const Apgd sparse{.loss = Loss::targeted, .targets = 5, .larger = true};
  const double there = s.options.norm == Norm::l1 ? s.after(sparse, eps) : 1;
  const double noise = s.after(Noise{}, eps), gradient = std::min({few, many, there});
  const double free = s.after(Apgd{}, whole_box(s));
  const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  const std::string at = ball_text(s.options);
  if (many > few + 0.02) {
    flags.push_back({"more-steps-worse",
                     fmt::format("at {} {} withstand 40 steps and {} withstand 10: the gradient "
                                 "does not lead where the loss grows",
                                 at, percent(many), percent(few)),
                     "attack with square and spsa, and through whatever hides the gradient"});
  }
  if (noise < gradient) {
    flags.push_back({"noise-beats-gradient",
                     fmt::format("at {} {} withstand noise and {} the gradient", at, percent(noise),
                                 percent(gradient)),
                     "the gradient is of no use here: trust black-box attacks alone"});
  }
  if (free > 0) {
    flags.push_back({"unbounded-eps",
                     fmt::format("{} withstand an attack that may paint any image", percent(free)),
                     "the attack fails, not the model's errors: look for masked gradients"});
  }
}

}  // namespace

std::vector<RecordFlag> doubts(const Model& model, const at::Tensor& images,
                               const at::Tensor& labels, const Options& options,
                               std::int64_t checked) {
  std::vector<RecordFlag> flags;
  const at::NoGradGuard without;
  const std::int64_t n = images.size(0);
  if (n < 1000) {
    flags.push_back({"few-samples",
                     fmt::format("{} images: a share is known to {:.1f} points either way", n,
                                 100 * std::sqrt(0.25 / double(n)) * 1.96),
                     "attack 1,000 or more"});
  }
  const std::int64_t looked_at = checked > 0 ? checked : glanced_at;
  const at::Tensor first = images.slice(0, 0, std::min(n, 4 * looked_at));
  const at::Tensor right = correct(model, first, labels.slice(0, 0, first.size(0)), options.batch)
                               .nonzero()
                               .squeeze(1)
                               .slice(0, 0, looked_at);
  if (right.size(0) == 0) return flags;
  const Sample s{model, first.index_select(0, right), labels.index_select(0, right), options};
  if (is_random(s)) {
    flags.push_back({"random-model", "the same image gives other logits each time",
                     "use the suite rand, which averages gradients (--eot)"});
  }
  if (gives_probabilities(s)) {
    flags.push_back({"probabilities", "the outputs are probabilities: their gradients vanish",
                     "give the attack the logits, before softmax"});
  }
  if (checked <= 0) return flags;
  if (const double share = zero_gradients(s); share > 0) {
    flags.push_back({"zero-gradients",
                     fmt::format("{:.1f} % of the images have no gradient at all", 100 * share),
                     "gradients are masked: look at square, or attack a smooth stand-in"});
  }
  try_attacks(flags, s);
  return flags;
}

std::vector<RecordFlag> doubts(const std::vector<Attack>& attacks, Norm norm) {
  std::vector<RecordFlag> flags;
  for (const Attack& attack : attacks) {
    const Pgd* how = std::get_if<Pgd>(&attack);
    if (how == nullptr) continue;
    const double share = step_share(*how, norm), reach = how->steps * share;
    if (reach >= 1 - 1e-9) continue;
    flags.push_back({"short-steps",
                     fmt::format("{} takes {} steps of eps/{:.4g}, {:.4g} eps in all: it cannot "
                                 "reach the edge of the ball from its middle",
                                 name_of(attack), how->steps, 1 / share, reach),
                     fmt::format("take {:.0f} steps or more, or an attack that sets its steps "
                                 "itself: apgd-ce",
                                 std::ceil(1 / share - 1e-9))});
  }
  return flags;
}

std::vector<RecordFlag> doubts(const Outcome& outcome, const std::vector<Attack>& attacks) {
  std::vector<RecordFlag> flags;
  const double n = double(outcome.by.size(0));
  const at::Tensor fresh = outcome.inherited.logical_not();  // gradients had their turn here
  bool white = false;
  for (std::size_t a = 0; a < attacks.size(); ++a) {
    if (!is_black_box(attacks[a])) white = true;
    if (!white || !is_black_box(attacks[a])) continue;
    const at::Tensor found = outcome.by.eq(std::int64_t(a)).logical_and(fresh);
    const double more = found.sum().item<double>() / n;
    if (more <= 0.002) continue;
    flags.push_back(
        {"black-box-beats-white-box",
         fmt::format("{} fooled {:.1f} % that gradients did not", name_of(attacks[a]), 100 * more),
         "gradients are masked: more queries and restarts, or an adaptive attack"});
  }
  if (outcome.rejected > 0) {
    flags.push_back({"rejected-images",
                     fmt::format("{} images left the ball or the range, or were no numbers, and "
                                 "were not counted",
                                 outcome.rejected),
                     "report it: an attack of foci should never make one"});
  }
  return flags;
}

}  // namespace foci::attack
