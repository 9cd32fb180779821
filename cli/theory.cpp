// SPDX-License-Identifier: Apache-2.0
// foci theory: how well one query's attention can concentrate, in closed form, by simulation and as
// curves. Experiments are experiments.cpp's.
#include "cli/experiments.hpp"
#include "cli/misuse.hpp"
#include "cli/number_file.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/theory_curves.hpp"
#include "cli/verbs.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>
#include <foci/theory.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace foci::cli {
namespace {

using Strings = std::vector<std::string>;

/// The flags that say what a form is made of.
const std::map<std::string, Strings>& own_flags() {
  static const Strings scores = {"beta", "gamma"};
  static const std::map<std::string, Strings> all = {
      {"softmax", scores}, {"identity", scores},
      {"relu2", scores},   {"linear", {"query", "mean", "covariance"}},
      {"decay", {"rate"}}, {"key-covariance", {"dim", "distance2", "temperature"}}};
  return all;
}

std::string word_or(const Words& words, const char* flag, const char* standard) {
  const auto found = words.find(flag);
  return found == words.end() ? standard : found->second;
}

std::string kind_of(const Words& words) {
  if (word_or(words, "metric", "dot") == "dot") return word_or(words, "weighting", "softmax");
  if (word_or(words, "weighting", "softmax") != "softmax")
    throw Misuse("--metric key-covariance has a closed form with --weighting softmax alone");
  return "key-covariance";
}

/// Whether the temperature is the one that matches dot.
bool is_matched(const Words& words) { return word_or(words, "temperature", "1") == "auto"; }

void check_flags(const std::string& kind, const Words& words) {
  std::map<std::string, Strings> owners;  // of each flag
  for (const auto& [other, flags] : own_flags()) {
    for (const std::string& flag : flags) owners[flag].push_back(other);
  }
  const bool matched = is_matched(words);
  for (const auto& [flag, kinds] : owners) {
    if (words.count(flag) == 0 || std::find(kinds.begin(), kinds.end(), kind) != kinds.end())
      continue;
    if (flag == "gamma" && matched) continue;  // dot's
    throw Misuse(
        fmt::format("--{} does not belong to {}; it is for {}", flag, kind, listed(kinds)));
  }
  if (words.count("curve") > 0 && (kind == "decay" || kind == "linear")) {
    throw Misuse(
        "--curve is drawn over gamma for softmax, identity and relu2, and over the temperature for "
        "key-covariance");
  }
}

std::vector<double> numbers_in(const Words& words, const char* flag) {
  if (words.count(flag) == 0) {
    throw Misuse(fmt::format("--weighting linear needs --{} FILE", flag),
                 "files of numbers with spaces, commas or lines between them");
  }
  return numbers_of(words.at(flag));
}

theory::Form form_of(const std::string& kind, const Words& words) {
  const auto number = [&](const char* flag, const char* standard) {
    return to_number(word_or(words, flag, standard));
  };
  const theory::Scores scores{number("beta", "0"), number("gamma", "1")};
  if (kind == "softmax") return theory::Softmax{scores};
  if (kind == "identity") return theory::Identity{scores};
  if (kind == "relu2") return theory::Relu2{scores};
  if (kind == "decay") {
    if (words.count("keys") == 0) throw Misuse("--weighting decay needs --keys COUNT");
    return theory::Decay{number("rate", "0.9"), to_count(words.at("keys"))};
  }
  if (kind == "linear") {
    return theory::Linear{numbers_in(words, "query"), numbers_in(words, "mean"),
                          numbers_in(words, "covariance")};
  }
  theory::Ellipsoid form{to_count(word_or(words, "dim", "64")), number("distance2", "0"), 1};
  if (is_matched(words)) {
    const double dots = theory::concentration(theory::Softmax{scores});
    form.temperature = theory::temperature_at(dots, form.dim, std::span(&form.distance2, 1));
  } else {
    form.temperature = number("temperature", "1");
  }
  return form;
}

/// Of finitely many keys, and what the limit hides of them.
struct Finite {
  double effective = 0;
  std::string doubt;  ///< empty: none
};

Finite finite_of(double S, std::int64_t keys) {
  Finite of{double(keys) * S * S, {}};
  if (of.effective < 10) {
    of.doubt = fmt::format(
        "n S^2 is {:.3g}: the form holds for many keys; of {} keys S is never below {:.6g}",
        of.effective, keys, 1 / std::sqrt(double(keys)));
  }
  return of;
}

/// What makes a simulation say little; empty: nothing.
std::string doubt_of(const theory::Simulated& simulated, double S, std::int64_t draws) {
  const double error = simulated.standard_error, off = std::abs(simulated.concentration - S);
  if (error > 0.1 * simulated.concentration) {
    return fmt::format("the error of {} keys is {:.2g} of S, and unsure itself: raise --simulate",
                       draws, error / simulated.concentration);
  }
  if (error > 0 && off > 4 * error) {
    return fmt::format(
        "the simulation lies {:.2g} of its errors from the closed form: try another "
        "--seed, or raise --simulate",
        off / error);
  }
  return {};
}

}  // namespace

int run(const Theory& verb) {
  const Words& words = verb.words;
  if (words.count("experiment") > 0) return run_experiment(verb);
  refuse_experiment_flags(words);
  const std::string kind = kind_of(words);
  check_flags(kind, words);
  const theory::Form form = form_of(kind, words);
  const double S = theory::concentration(form);
  const std::int64_t draws = to_count(word_or(words, "simulate", "0"));
  std::optional<theory::Simulated> simulated;
  if (draws > 0) simulated = theory::simulate(form, draws, verb.common.seed);
  std::optional<Finite> finite;
  if (words.count("keys") > 0) {
    const std::int64_t keys = to_count(words.at("keys"));
    if (keys < 1) throw Misuse(fmt::format("--keys {} is below 1", keys));
    finite = finite_of(S, keys);
    if (kind == "decay") finite->doubt.clear();  // exact for every number of keys
  }
  Json result{{"form", kind}, {"concentration", S}, {"effective_fraction", S * S}};
  result["simulated"] = simulated ? Json(simulated->concentration) : Json();
  result["standard_error"] = simulated ? Json(simulated->standard_error) : Json();
  const std::string doubt = simulated ? doubt_of(*simulated, S, draws) : "";
  if (!doubt.empty()) result["doubt"] = doubt;
  if (finite) result["effective_keys"] = finite->effective;
  const auto* ellipsoid = std::get_if<theory::Ellipsoid>(&form);
  if (is_matched(words)) result["temperature"] = ellipsoid->temperature;
  if (words.count("curve") > 0) {
    const auto curves = ellipsoid
                            ? curves_over_temperature(ellipsoid->dim)
                            : curves_over_gamma(kind, to_number(word_or(words, "gamma", "4")));
    result["curves"] = json_of(kind, curves);
    write_picture(words.at("curve"), report::draw(chart_of(kind, curves)));
  }
  if (verb.common.json) {
    print_json(result);
    return 0;
  }
  fmt::print("concentration      {:.6g}\neffective fraction {:.6g}\n", S, S * S);
  if (is_matched(words)) fmt::print("temperature        {:.6g}\n", ellipsoid->temperature);
  if (finite) fmt::print("effective keys     {:.6g}\n", finite->effective);
  if (simulated) {
    fmt::print("simulated          {:.6g} ± {:.2g}\n", simulated->concentration,
               simulated->standard_error);
    if (!doubt.empty() && !verb.common.quiet) fmt::print("{}\n", doubt);
  }
  if (finite && !finite->doubt.empty() && !verb.common.quiet) fmt::print("{}\n", finite->doubt);
  if (words.count("curve") > 0 && !verb.common.quiet) fmt::print("{}\n", words.at("curve"));
  return 0;
}

}  // namespace foci::cli
