// SPDX-License-Identifier: Apache-2.0
// What foci attack was told: balls, attacks, and the models that gradients come from.
#pragma once

#include "cli/torch/run_folder.hpp"

#include <foci/attack.hpp>
#include <foci/classifier.hpp>

#include <string>
#include <vector>

namespace foci::cli {

/// One size of the ball.
struct Reach {
  double eps = 0;
  std::string text;  ///< "linf 8/255", "l2 0.5"
};

/// One way to attack: a model whose gradients are used, and the attacks.
struct Arm {
  std::string name;  ///< empty where there is one alone
  attack::Model model, surrogate;
  std::vector<attack::Attack> attacks;
};

struct AttackPlan {
  attack::Options options;
  std::vector<Reach> reaches;  ///< ascending
  std::string suite;           ///< or the attacks' names
  std::vector<attack::Attack> attacks;
  std::string goal;  ///< as it was told; empty: any class but the image's own
  std::int64_t count = 1000, check = 100, sheet = 8;
};

/// Throws Misuse.
AttackPlan attack_plan(const Words& words, const Common& common);

/// The run that is attacked.
struct Attacked {
  Words words;                ///< of the run, with those that say otherwise here
  std::string weights;        ///< file
  std::string plain_weights;  ///< of the run that --plain names
  attack::Model model;
  train::Pixels pixels;       ///< on the processor
  at::Tensor images, labels;  ///< the same where the model is
  std::vector<Arm> arms;
  std::int64_t classes = 0;
};
/// Throws Misuse, FileError.
Attacked open_attacked(const Attack& verb, const RunConfig& config, const AttackPlan& plan);

}  // namespace foci::cli
