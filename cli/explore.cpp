// SPDX-License-Identifier: Apache-2.0
// The weights are asked of the library too: o is linear in v, so its gradient with respect to v,
// for a gradient of o that is 1 in the first place, is the row of weights.
#include "cli/explore.hpp"

#include "cli/misuse.hpp"
#include "cli/problem.hpp"
#include "cli/suggest.hpp"

#include <foci/executor.hpp>

#include <fmt/core.h>

#include <array>
#include <cmath>

namespace foci::cli {
namespace {

constexpr std::size_t most_keys = 1024, most_width = 256;
constexpr std::string_view known[] = {"metric",  "form",      "normalize", "reduce",     "scope",
                                      "ridge",   "prior",     "period",    "floor",      "layer",
                                      "seed",    "weighting", "feature",   "rate",       "content",
                                      "rescale", "scale",     "causal",    "allow-leak", "dtype"};

/// Its words as if they had stood on the command line.
Words words_in(const Json& asked) {
  Words words;
  const auto found = asked.find("words");
  if (found == asked.end()) return words;
  if (!found->is_object()) throw Misuse("words are no object of flags");
  for (const auto& [name, value] : found->items()) {
    if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
      throw Misuse(fmt::format("the explorer has no flag '{}'{}", shown(name),
                               suggestion(name, {std::begin(known), std::end(known)})));
    }
    if (!value.is_string()) throw Misuse(fmt::format("the flag '{}' needs a text", name));
    const std::string text = value.get<std::string>();
    for (const Flag& flag : find_verb("attend")->flags) {
      if (flag.name != name) continue;
      if (!flag.values.empty())
        check_value(flag, text);
      else if (text != "true" && text != "false")
        throw Misuse(fmt::format("'{}' is true or false", name));
    }
    words[name] = text;
  }
  return words;
}

/// Rows of numbers as a tensor (1,1,rows,width) in double.
Tensor tensor_in(const Json& asked, const char* name) {
  const auto found = asked.find(name);
  const bool whole = found != asked.end() && found->is_array() && !found->empty() &&
                     found->front().is_array() && !found->front().empty();
  if (!whole) throw Misuse(fmt::format("{} needs rows of numbers", name));
  const std::size_t rows = found->size(), width = found->front().size();
  if (rows > most_keys || width > most_width) {
    throw Misuse(fmt::format("{} is {} x {}; the explorer takes {} x {} at most", name, rows, width,
                             most_keys, most_width));
  }
  Tensor tensor(DType::f64, {1, 1, std::int64_t(rows), std::int64_t(width)});
  auto* to = tensor.data<double>();
  for (const Json& row : *found) {
    if (!row.is_array() || row.size() != width) {
      throw Misuse(fmt::format("{} has rows that are not all {} numbers long", name, width));
    }
    for (const Json& number : row) {
      if (!number.is_number()) throw Misuse(fmt::format("{} holds what is no number", name));
      *to++ = number.get<double>();
    }
  }
  return tensor;
}

Problem problem_in(const Json& asked, const Options& how) {
  Problem problem;
  for (const char* name : {"q", "k", "v"}) problem.tensors[name] = tensor_in(asked, name);
  if (uses_v_prev(how.metric)) problem.tensors["v_prev"] = tensor_in(asked, "v_prev");
  const Sizes sizes = problem.sizes();
  if (sizes.N != 1) throw Misuse(fmt::format("q has {} rows; the explorer takes one", sizes.N));
  problem.tensors["do"] = Tensor(DType::f64, {1, 1, 1, sizes.E});
  problem.tensors["do"].data<double>()[0] = 1;
  return problem;
}

/// The metric as a matrix: m on its diagonal, or P; the identity for dot.
Json matrix_of(const std::map<std::string, Tensor>& answered, const Options& how, std::int64_t D) {
  const auto found = answered.find("metric");
  const std::vector<double> numbers =
      found == answered.end() ? std::vector<double>() : found->second.values();
  const bool full = is_full(how.metric);
  Json rows = Json::array();
  for (std::int64_t i = 0; i < D; ++i) {
    Json row = Json::array();
    for (std::int64_t j = 0; j < D; ++j) {
      const double diagonal = numbers.empty() ? 1 : numbers[std::size_t(i)];
      row.push_back(full ? numbers[std::size_t(i * D + j)] : i == j ? diagonal : 0);
    }
    rows.push_back(row);
  }
  return rows;
}

std::string command_of(const Words& words) {
  std::string command = "foci attend --in tensors.safetensors --out answer.safetensors";
  for (const auto& [name, text] : words) {
    if (text == "true")
      command += fmt::format(" --{}", name);
    else if (text != "false")
      command += fmt::format(" --{} {}", name, text);
  }
  return command;
}

}  // namespace

Json explore(const Json& asked) {
  if (!asked.is_object()) throw Misuse("the question is no JSON object");
  const Words words = words_in(asked);
  const Options how = options_of(words);
  const Problem problem =
      converted(problem_in(asked, how), dtype_of_words(words).value_or(DType::f64));
  const Sizes sizes = problem.sizes();
  Executor threads(1);
  const auto answered = answers(problem, how, threads);
  Json answer;
  for (const char* name : {"concentration", "effective_keys", "entropy", "largest", "lse"}) {
    const auto found = answered.find(name);
    if (found != answered.end()) answer[name] = found->second.values().at(0);
  }
  for (const char* name : {"largest_at", "scale"}) {
    const auto found = answered.find(name);
    if (found != answered.end()) answer[name] = found->second.values().at(0);
  }
  answer["o"] = answered.at("o").values();
  Json weights = Json::array();
  const std::vector<double> dv = answered.at("dv").values();
  for (std::int64_t j = 0; j < sizes.M; ++j) weights.push_back(dv[std::size_t(j * sizes.E)]);
  answer["weights"] = weights;
  answer["metric"] = matrix_of(answered, how, sizes.D);
  answer["options"] = resolved(how, sizes.D);
  answer["command"] = command_of(words);
  return answer;
}

}  // namespace foci::cli
