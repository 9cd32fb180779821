// SPDX-License-Identifier: Apache-2.0
// What a user can get wrong about who is timed beside us and about foci theory, with the words the
// answer must hold.
#pragma once

#include "cli/bad_input.hpp"

namespace cli_test {

/// What is timed beside us.
inline std::vector<Bad> bad_contests() {
  const auto bench = [](const Words& more) { return Words{"bench", "--shape", "1,1,4,4"} + more; };
  return {
      {"unknown_peer", bench({"--peers", "naive,sgem"}), 2,
       "--peers does not know 'sgem'; did you mean sgemm?"},
      {"no_peer", bench({"--peers", "naive,"}), 2, "--peers does not know ''"},
      {"all_and_one", bench({"--peers", "all,naive"}), 2, "--peers all,naive: all stands alone"},
      {"no_turns", bench({"--turns", "0"}), 2, "--turns 0 is not a size"},
      {"endless_turns", bench({"--turns", "10001"}), 2, "--turns 10001 is more than 10000"},
      {"versus_nothing", bench({"--versus", " "}), 2, "--versus is empty"},
      {"versus_unknown", bench({"--versus", "metrc=dot"}), 2,
       "--versus cannot change 'metrc'; did you mean metric?"},
      {"versus_output", bench({"--versus", "json"}), 2, "--versus cannot change 'json'"},
      {"versus_value", bench({"--versus", "metric=dott"}), 2, "--metric does not know 'dott'"},
      {"versus_switch", bench({"--versus", "stats=2"}), 2, "--stats is a switch"},
      {"versus_misfit", bench({"--versus", "ridge=2"}), 2,
       "--ridge belongs to --metric key-covariance"},
      {"versus_heads", bench({"--versus", "kv-heads=3"}), 2, "--kv-heads 3 does not divide"},
      {"versus_refused", bench({"--peers", "none", "--versus", "weighting=decay"}), 2,
       "--versus weighting=decay: "},
      {"versus_not_here", bench({"--peers", "none", "--versus", "backend=cuda"}), 2,
       "--versus backend=cuda: backend cuda is not in this build"},
      {"bias_without_scores", bench({"--key-bias", "--weighting", "linear"}), 2,
       "has no scores to add a key_bias to"},
  };
}

/// What foci theory is asked.
inline std::vector<Bad> bad_theories() {
  return {
      {"decay_of_how_many", {"theory", "--weighting", "decay"}, 2, "decay needs --keys COUNT"},
      {"beta_of_decay",
       {"theory", "--weighting", "decay", "--keys", "4", "--beta", "2"},
       2,
       "--beta does not belong to decay; it is for identity, relu2, softmax"},
      {"spread_below_zero", {"theory", "--gamma", "-1"}, 2, "gamma is -1; it must be a finite"},
      {"linear_without_files", {"theory", "--weighting", "linear"}, 2, "needs --query FILE"},
      {"file_of_words",
       {"theory", "--weighting", "linear", "--query", FOCI_SOURCE_DIR "/README.md"},
       1,
       "README.md: line 1: '#' is no number"},
      {"full_metric_relu2",
       {"theory", "--metric", "key-covariance", "--weighting", "relu2"},
       2,
       "has a closed form with --weighting softmax alone"},
      {"curve_of_decay",
       {"theory", "--weighting", "decay", "--keys", "4", "--curve", "x.svg"},
       2,
       "--curve is drawn over gamma"},
      {"temperature_of_softmax",
       {"theory", "--temperature", "auto"},
       2,
       "--temperature does not belong to softmax"},
      {"temperature_of_even_weights",
       {"theory", "--metric", "key-covariance", "--temperature", "auto", "--gamma", "0"},
       2,
       "concentration is 1; it must be above 0 and below 1"},
      {"too_many_keys_to_draw",
       {"theory", "--simulate", "1000000000000"},
       2,
       "keys to simulate; at most 100000000"},
      {"curve_to_nowhere", {"theory", "--curve", "/nowhere/x.svg"}, 1, "cannot be written"},
  };
}

/// What its experiments are asked.
inline std::vector<Bad> bad_experiments() {
  return {
      {"unknown_experiment", {"theory", "--experiment", "elipse"}, 2, "did you mean ellipse?"},
      {"experiment_in_no_dimension",
       {"theory", "--experiment", "ellipse", "--dim", "0"},
       2,
       "dim is 0; it must be 1 to 64"},
      {"experiment_with_negative_noise",
       {"theory", "--experiment", "recovery", "--noise", "-1"},
       2,
       "noise is -1; it must be 0 or above"},
      {"experiment_with_a_million_keys",
       {"theory", "--experiment", "collapse", "--keys", "1000000"},
       2,
       "keys is 1000000; it must be 2 to 512"},
      {"experiment_of_one_run",
       {"theory", "--experiment", "weights", "--runs", "1"},
       2,
       "runs is 1; it must be 2 to 10000"},
      {"beta_of_an_experiment",
       {"theory", "--experiment", "weights", "--beta", "1"},
       2,
       "--beta does not belong to --experiment weights"},
      {"layers_of_an_ellipse",
       {"theory", "--experiment", "ellipse", "--layers", "3"},
       2,
       "--layers does not belong to --experiment ellipse"},
      {"svg_without_experiment", {"theory", "--svg", "x.svg"}, 2, "it needs --experiment NAME"},
      {"experiment_to_nowhere",
       {"theory", "--experiment", "covariance", "--runs", "2", "--svg", "/nowhere/x.svg"},
       1,
       "cannot be written"},
  };
}

}  // namespace cli_test
