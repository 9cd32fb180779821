// SPDX-License-Identifier: Apache-2.0
// The page of foci theory: its flags, examples and words.
#include "cli/pages.hpp"

namespace foci::cli {
namespace {

Flags theory_flags() {
  constexpr std::string_view form_group = "What is asked", keys_group = "The keys",
                             experiment_group = "An experiment";
  return {{"weighting", "softmax|identity|relu2|linear|decay", "softmax", form_group,
           "how scores become weights"},
          {"metric", "dot|key-covariance", "dot", form_group,
           "key-covariance: softmax over the distances of normal keys, by their own covariance"},
          {"simulate", "COUNT", "0", form_group, "draw so many keys too; 0: none"},
          {"curve", "FILE", "", form_group,
           "an SVG of S for gamma from 0 to --gamma (4) and beta from -2 to 2; key-covariance: "
           "over the temperature"},
          {"beta", "NUMBER", "0", keys_group, "mean of the scores"},
          {"gamma", "NUMBER", "1", keys_group, "their standard deviation"},
          {"query", "FILE", "", keys_group, "linear: phi(q), numbers in a text file"},
          {"mean", "FILE", "", keys_group, "linear: of phi(k)"},
          {"covariance", "FILE", "", keys_group, "linear: of phi(k), row by row"},
          {"rate", "NUMBER", "0.9", keys_group, "decay: weight kept per step back"},
          {"keys", "COUNT", "many", keys_group,
           "how many there are; decay needs it, and an experiment has its own number"},
          {"dim", "COUNT", "64", keys_group,
           "key-covariance: directions; an experiment has its own number"},
          {"distance2", "NUMBER", "0", keys_group,
           "key-covariance: squared distance of the query to the keys' mean"},
          {"temperature", "NUMBER|auto", "1", keys_group,
           "key-covariance: 1/c; auto: where S is that of dot with scores of spread --gamma"},
          {"experiment", "ellipse|perturbed-query|recovery|weights|covariance|collapse", "",
           experiment_group, "a claim tried out on made data"},
          {"runs", "COUNT", "the experiment's", experiment_group,
           "draws that each number is a mean of"},
          {"noise", "NUMBER", "the experiment's", experiment_group,
           "ellipse, recovery: standard deviation of what is added to the values"},
          {"layers", "COUNT", "12", experiment_group, "collapse: how often the block is applied"},
          {"svg", "FILE", "", experiment_group, "its picture"},
          {"markdown", "", "", experiment_group, "its table as Markdown"}};
}

}  // namespace

VerbPage theory_page() {
  return {
      "theory",
      "Says how well attention can concentrate, in closed form and simulated, and tries out "
      "claims.",
      {{"relu2, checked with a million keys",
        "foci theory --weighting relu2 --beta -1 --gamma 3 --simulate 1000000"},
       {"a query at the mean of keys in 64 directions, their covariance as metric",
        "foci theory --metric key-covariance --dim 64 --distance2 0 --temperature 1"},
       {"curves over gamma as a picture", "foci theory --weighting identity --curve s.svg"},
       {"does an elliptical neighbourhood estimate better than a sphere?",
        "foci theory --experiment ellipse --svg ellipse.svg"}},
      together({theory_flags(), common_flags()}),
      {},
      {},
      {"Concentration is S = E|a| / sqrt(E a^2). A score is beta + gamma e, e normal; keys ~ N(mu, "
       "C) under a diagonal metric m have beta = "
       "c q.(m mu) and gamma^2 = c^2 (m q)' C (m q). Of n keys n S^2 count; the forms hold for "
       "many keys, and S is never below 1/sqrt(n).",
       "Experiments: ellipse, regression in spheres and ellipses; perturbed-query, the bound on "
       "how far the output moves with the query and a search for violations; recovery, whether "
       "layer-change and jacobian find a known variability; weights, over correlated keys; "
       "covariance, what key-covariance's metric needs to be near the true one; collapse, the "
       "tokens of attention applied again and again. Numbers are means over runs with their "
       "standard errors. docs/theory.md says more."}};
}

}  // namespace foci::cli
