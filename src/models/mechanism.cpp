// SPDX-License-Identifier: Apache-2.0
// A layer's mechanism from the words of a command line.
#include <foci/models.hpp>

#include <foci/error.hpp>

#include <fmt/core.h>

#include <charconv>
#include <utility>

namespace foci::models {
namespace {

std::string taken(Settings& words, std::string_view name, std::string otherwise) {
  const auto found = words.find(name);
  if (found == words.end()) return otherwise;
  std::string value = std::move(found->second);
  words.erase(found);
  return value;
}

nn::Init init_of(const std::string& text) {
  constexpr std::pair<std::string_view, nn::Init> names[] = {{"identity", nn::Init::identity},
                                                             {"estimate", nn::Init::estimate},
                                                             {"random", nn::Init::random}};
  for (const auto& [name, value] : names) {
    if (text == name) return value;
  }
  throw InvalidArgument(
      fmt::format("init does not know '{}'; it is identity, estimate or random", text));
}

/// metric learned or learned-full: a parameter in the metric's place.
void learn(nn::AttentionOptions& layer, Settings& words, bool full) {
  nn::Learned learned;
  learned.extent = full ? Extent::full : Extent::diagonal;
  learned.init = init_of(taken(words, "init", "identity"));
  words["metric"] = "dot";
  const Options how = options_of(words);
  if (const auto* dot = std::get_if<Dot>(&how.metric)) learned.form = dot->form;
  layer.learned = learned;
  layer.how = how;
  layer.how.metric = Dot{};
}

/// scope running, in place of another scope.
void run(nn::AttentionOptions& layer, Settings& words) {
  nn::Running running;
  const std::string text = taken(words, "momentum", "0.99");
  const auto [end, fault] =
      std::from_chars(text.data(), text.data() + text.size(), running.momentum);
  if (fault != std::errc() || end != text.data() + text.size())
    throw InvalidArgument(fmt::format("momentum is '{}', which is no number", text));
  words.erase("scope");
  layer.running = running;
  layer.how = options_of(words);
}

/// The same without a metric: the weighting and its settings, causal, scale.
Settings without_metric(const Settings& words) {
  Settings left;
  for (const auto& [name, value] : words) {
    const auto of = owners(name);
    const Settings weighting{{"weighting", words.contains("weighting")
                                               ? words.find("weighting")->second
                                               : std::string("softmax")}};
    const bool general = of.empty() && name != "metric" && name != "metric_grad" &&
                         name != "allow_leak" && name != "init" && name != "momentum";
    bool goes = general;
    for (const std::string_view owner : of) goes = goes || owner == weighting.begin()->second;
    if (goes) left[name] = value;
  }
  return left;
}

}  // namespace

nn::AttentionOptions attention_of(const Mechanism& mechanism, std::int64_t index,
                                  std::int64_t depth) {
  const std::int64_t last = mechanism.last < 0 ? depth : mechanism.last;
  if (mechanism.first < 0 || last > depth || mechanism.first > last) {
    throw InvalidArgument(
        fmt::format("metric layers {}:{} of a model of {} layers", mechanism.first, last, depth));
  }
  nn::AttentionOptions layer;
  layer.lowest = index == 0;
  Settings words = mechanism.words;
  if (index < mechanism.first || index >= last) {
    layer.how = options_of(without_metric(words));
    return layer;
  }
  const std::string metric = words.contains("metric") ? words.find("metric")->second : "dot";
  if (metric == "random") words.emplace("layer", std::to_string(index));  // each its own draw
  const auto scope = words.find("scope");
  if (metric == "learned" || metric == "learned-full") {
    learn(layer, words, metric == "learned-full");
  } else if (scope != words.end() && scope->second == "running") {
    run(layer, words);
  } else {
    layer.how = options_of(words);
  }
  return layer;
}

}  // namespace foci::models
