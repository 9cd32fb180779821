// SPDX-License-Identifier: Apache-2.0
// The folder of an attack: what it was told, what every batch found, and the results as files.
#pragma once

#include "cli/torch/attack_plan.hpp"

#include <string>
#include <vector>

namespace foci::cli {

/// What one size of the ball came to.
struct Judged {
  Reach reach;
  std::vector<attack::Outcome> arms;  ///< as Attacked has them
  at::Tensor robust, images;          ///< (N) bool, (N,C,H,W): the worst case; on the processor
  double accuracy = 0;
};

class AttackFolder {
 public:
  /// Takes up an attack that was told the same; throws Misuse where it was another, FileError.
  AttackFolder(std::string path, const Json& told);
  /// Of one arm and one size of the ball; `done` hears of every batch.
  attack::Journal journal(const std::string& name,
                          const std::function<void(const attack::Step&)>& done) const;
  /// curve.json, curve.svg, samples.json, adversarial.safetensors and sheet.png, each whole.
  void write(const Attacked& subject, const std::vector<Judged>& judged, const Json& curve,
             std::int64_t rows) const;
  const std::string& path() const { return path_; }
  /// That an earlier call did.
  std::int64_t batches() const { return batches_; }

 private:
  std::string path_;
  std::int64_t batches_ = 0;
};

/// Shares by eps as a picture: one line for each arm and the worst of them.
std::string curve_svg(const Attacked& subject, const std::vector<Judged>& judged);

}  // namespace foci::cli
