// SPDX-License-Identifier: Apache-2.0
// What every attack works on: rows of a batch, the model with its gradients and losses, and the
// rows that are over. A sample may have several rows (restarts, targets): it is over with one.
#pragma once

#include "attack/draws.hpp"
#include "attack/geometry.hpp"

#include <functional>
#include <utility>

namespace foci::attack {

/// A row begins from place `owner` of the batch; chance hangs on `draw`.
struct Rows {
  at::Tensor x, y, owner, draw;
  at::Tensor restart;  ///< (R) i64: how often it was begun before
  at::Tensor target;   ///< the class it is to become, where there is one
  std::int64_t size() const { return x.size(0); }
};
Rows selected(const Rows& rows, const at::Tensor& keep);

/// The length of a step over eps.
inline double step_share(const Pgd& how, Norm norm) {
  return how.step > 0 ? how.step : norm == Norm::linf ? 1.0 / 30 : 1.0 / 40;
}

/// One loss a row, which an attack makes larger.
using RowLoss = std::function<at::Tensor(const at::Tensor& logits, const Rows& rows)>;

struct Gradient {
  at::Tensor logits, loss, by_pixel;
};

/// A batch that is attacked, and what was found so far.
class Problem {
 public:
  /// images (B,C,H,W), labels (B), samples (B) i64 that chance hangs on.
  Problem(const Model& model, const Options& options, Rows rows);

  const Options& options() const { return options_; }
  Stream stream(std::uint64_t index) const { return Stream{options_.seed}.next(index); }

  /// Calls `work` with rows of the samples that are left, one for each turn, as many turns at once
  /// as fit into a batch.
  void restart(int times, const std::function<void(const Rows&)>& work);
  /// The same for each of so many classes that come next in the clean logits, for the goal alone
  /// where there is one.
  void aim(int targets, int restarts, const std::function<void(const Rows&)>& work);

  /// (R,K) without gradients, of the model that judges.
  at::Tensor logits(const at::Tensor& x) const;
  Gradient gradient(const at::Tensor& x, const Rows& rows, const RowLoss& loss) const;
  /// (R) bool.
  at::Tensor fooled(const at::Tensor& logits, const Rows& rows) const;
  /// Takes the images of fooled rows. Gives the rows that go on, undefined where all of them do.
  at::Tensor settle(const at::Tensor& fooled, const at::Tensor& x, const Rows& rows);
  /// The one that gradients come from.
  const Model& source() const { return options_.surrogate ? options_.surrogate : model_; }

  /// Those that hold when they are looked at once more.
  Found found(const at::Tensor& samples) const;

 private:
  using Work = std::function<void(const Rows&)>;
  void in_turns(int turns, int restarts, bool aimed, const Work& work);
  Rows turned(const at::Tensor& turns, int restarts, bool aimed);

  const Model& model_;
  const Options& options_;
  Rows rows_;
  at::Tensor goals_, order_;  // (B); classes by their clean logits (B,K)
  at::Tensor done_, images_;  // (B) bool, (B,C,H,W)
};

/// Larger is worse for the model: cross entropy, or away from it towards a goal.
at::Tensor cross_entropy(const at::Tensor& logits, const Rows& rows);
at::Tensor difference_of_logits(const at::Tensor& logits, const at::Tensor& y);
at::Tensor difference_of_logits(const at::Tensor& logits, const at::Tensor& y,
                                const at::Tensor& target);
/// The best of the others minus that of y; with a target z_t minus the best of the others.
at::Tensor margin(const at::Tensor& logits, const Rows& rows);

/// Every tensor without the rows that are over.
template <class... Tensors>
void keep_rows(const at::Tensor& keep, Tensors&... tensors) {
  ((tensors = tensors.index_select(0, keep)), ...);
}

void perturb(Problem& problem, const Noise& how);
void perturb(Problem& problem, const Fgsm& how);
void perturb(Problem& problem, const Pgd& how);
void perturb(Problem& problem, const Apgd& how);
void perturb(Problem& problem, const Fab& how);
void perturb(Problem& problem, const Square& how);
void perturb(Problem& problem, const Spsa& how);
void perturb(Problem& problem, const CarliniWagner& how);

/// A point of the ball to begin from: under linf and l2 on its surface.
at::Tensor drawn_start(const Rows& rows, const Stream& stream, Norm norm, double eps);

}  // namespace foci::attack
