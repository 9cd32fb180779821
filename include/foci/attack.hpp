// SPDX-License-Identifier: Apache-2.0
// Adversarial attacks on any function from images to logits. Pixels lie in [0,1]; what a model does
// with them first (normalising) is its own. Chance hangs on seed and sample alone, so results do
// not change with the batch or with what was done before. Only samples that are still right are
// attacked, and one that is fooled is left alone at once.
#pragma once

#include <foci/export.h>
#include <foci/record.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace foci::attack {

/// images (B,C,H,W) in [0,1] to logits (B,K), differentiable.
using Model = std::function<at::Tensor(const at::Tensor& images)>;

enum class Norm { linf, l2, l1 };

/// Control: points of the ball, drawn `draws` times.
struct Noise {
  int draws = 10;
};
/// Goodfellow et al.: one step of length eps.
struct Fgsm {};
/// Madry et al.; with momentum Dong et al.'s. `step` is a share of eps; 0: 1/30, under l2 and l1
/// 1/40.
struct Pgd {
  int steps = 40, restarts = 1;
  double step = 0, momentum = 0;
};
/// Croce and Hein's. `targeted`: one after another the classes that come next in the clean logits.
/// `larger`: from 3 eps over 2 eps to eps, l1 alone.
enum class Loss { ce, dlr, targeted };
struct Apgd {
  Loss loss = Loss::ce;
  int iterations = 100, restarts = 1, targets = 9;
  double rho = 0.75;
  bool larger = false;
};
/// Croce and Hein's way along the boundary; targets 0: to the nearest class each time.
struct Fab {
  int iterations = 100, restarts = 1, targets = 0;
  double alpha_max = 0.1, eta = 1.05, beta = 0.9;
};
/// Andriushchenko et al.: squares drawn at random, no gradient.
struct Square {
  int queries = 5000, restarts = 1;
  double share = 0.8;    ///< of the image that the first squares cover
  bool rescale = false;  ///< the schedule of 10,000 queries shrinks to this many
};
/// Uesato et al.: the gradient from differences along random signs, then Adam.
struct Spsa {
  int iterations = 40, pairs = 128;
  double delta = 0.01, rate = 0.01;
};
/// Carlini and Wagner's, l2 alone; a sample is fooled once one within eps was found.
struct CarliniWagner {
  int searches = 9, iterations = 1000;
  double rate = 0.01, constant = 1e-3, confidence = 0;
};
using Attack = std::variant<Noise, Fgsm, Pgd, Apgd, Fab, Square, Spsa, CarliniWagner>;

/// "noise", "fgsm", "pgd", "mpgd", "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square",
/// "spsa", "cw".
FOCI_API std::string name_of(const Attack& attack);
/// With the defaults above. Throws InvalidArgument with all names.
FOCI_API Attack attack_of(std::string_view name);
/// That use no gradient: noise, square, spsa.
FOCI_API bool is_black_box(const Attack& attack);

/// AutoAttack's: standard, plus, rand. `eot`: gradients that are averaged.
struct Suite {
  std::vector<Attack> attacks = {};
  int eot = 1;
};
FOCI_API Suite suite_of(std::string_view name, Norm norm);

struct Options {
  Norm norm = Norm::linf;
  double eps = 8.0 / 255;
  std::uint64_t seed = 0;
  std::int64_t batch = 250;  ///< images at once
  int eot = 1;               ///< gradients of a random model that are averaged
  /// The class (N) that each is to become; undefined: any other than its own. One that is of its
  /// goal's class already is left out of what is counted.
  at::Tensor goals = {};
  /// Gradients come from this one, and the model alone judges; empty: its own.
  Model surrogate = {};
};

/// What `samples` (of a batch of still right ones) became.
struct Found {
  at::Tensor samples;         ///< (F) i64: those that are fooled
  at::Tensor images;          ///< (F,C,H,W)
  std::int64_t rejected = 0;  ///< left the range or the ball, or were no numbers: not counted
};

/// One attack on one batch. `samples` (B) i64 are numbers that chance hangs on; goals, where there
/// are any, are those of the batch.
FOCI_API Found fool(const Model& model, const at::Tensor& images, const at::Tensor& labels,
                    const at::Tensor& samples, const Attack& attack, const Options& options);

/// Where a suite stands: a batch of an attack, and how many samples are still right.
struct Step {
  std::size_t attack = 0;
  std::int64_t batch = 0, batches = 0, robust = 0;
};
/// What was done before is taken from `recall`, what is done goes to `keep`.
struct Journal {
  std::function<std::optional<Found>(const Step&)> recall = {};
  std::function<void(const Step&, const Found&)> keep = {};
};

/// On the processor, wherever the model is.
struct Outcome {
  at::Tensor clean;                ///< (N) bool: right before any attack
  at::Tensor robust;               ///< (N) bool: right after all
  at::Tensor by;                   ///< (N) i64: the attack that fooled it, -1: none
  at::Tensor inherited;            ///< (N) bool: fooled by what was known of a smaller ball
  at::Tensor images;               ///< (N,C,H,W): fooling ones, else the clean ones
  std::vector<double> accuracies;  ///< share still right after each attack
  std::int64_t rejected = 0;
};
/// One after another, each on what is still right. What `known`, of a smaller ball, found counts.
FOCI_API Outcome run(const Model& model, const at::Tensor& images, const at::Tensor& labels,
                     const std::vector<Attack>& attacks, const Options& options,
                     const Journal& journal = {}, const Outcome* known = nullptr);

/// Right or not, (N) bool, `batch` at once and without gradients.
FOCI_API at::Tensor correct(const Model& model, const at::Tensor& images, const at::Tensor& labels,
                            std::int64_t batch = 250);

/// What makes a robust accuracy doubtful, each with what it means and what to do. `checked` samples
/// at most are attacked for it, in the ball of options.eps; 0: only what costs next to nothing.
FOCI_API std::vector<RecordFlag> doubts(const Model& model, const at::Tensor& images,
                                        const at::Tensor& labels, const Options& options,
                                        std::int64_t checked = 100);
/// Those of the attacks themselves: steps that are too few and too short to reach the ball's edge.
FOCI_API std::vector<RecordFlag> doubts(const std::vector<Attack>& attacks, Norm norm);
/// Those that an outcome shows itself.
FOCI_API std::vector<RecordFlag> doubts(const Outcome& outcome, const std::vector<Attack>& attacks);

/// (B): length of (B,...) in the norm.
FOCI_API at::Tensor length_of(const at::Tensor& x, Norm norm);

}  // namespace foci::attack
