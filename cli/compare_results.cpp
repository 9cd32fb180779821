// SPDX-License-Identifier: Apache-2.0
// results.json: measures with their statistics, and the verdict in words.
#include "cli/compare_doubts.hpp"
#include "cli/compare_parts.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace foci::cli {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// A measure with the series of every mechanism.
struct Measured {
  MeasureKind kind;
  std::int64_t n = 0;
  std::map<std::string, compare::Series> series;
  std::map<std::string, compare::Difference> against;
  std::vector<RecordFlag> flags;
};

void add_flags(std::vector<RecordFlag>& to, const std::vector<RecordFlag>& flags) {
  for (const RecordFlag& flag : flags) {
    if (std::find(to.begin(), to.end(), flag) == to.end()) to.push_back(flag);
  }
}

std::vector<float> digits_of(const RunFound& found, const std::string& record) {
  const auto digits = found.right.find(record);
  std::vector<float> samples;
  if (digits == found.right.end()) return samples;
  for (const char digit : digits->second) samples.push_back(float(digit - '0'));
  return samples;
}

/// Its standard error over samples; of shares that say none, the binomial one.
double error_of(const Record& record) {
  if (record.spread) return *record.spread;
  const bool counted = record.name.find("accuracy") != std::string::npos && record.n > 0;
  return counted ? std::sqrt(record.value * (1 - record.value) / double(record.n)) : 0;
}

Measured measured(const Comparison& all, const std::string& record) {
  Measured out{.kind = *measure_kind(record), .n = 0, .series = {}, .against = {}, .flags = {}};
  for (const ComparedMechanism& mechanism : all.mechanisms) {
    compare::Series& series = out.series[mechanism.name];
    for (const std::uint64_t seed : all.seeds) {
      const ComparedRun* run = find_run(all, mechanism.name, seed);
      const Record* found = run == nullptr ? nullptr : find_record(run->found, record);
      double value = found == nullptr ? nan : found->value;
      if (out.kind.is_error) value = 1 - value;
      series.values.push_back(value);
      series.errors.push_back(found == nullptr ? 0 : error_of(*found));
      series.samples.push_back(found == nullptr ? std::vector<float>()
                                                : digits_of(run->found, record));
      if (found == nullptr) continue;
      out.n = std::max(out.n, found->n);
      add_flags(out.flags, found->flags);
    }
  }
  return out;
}

/// The mean over corruptions, sample by sample where those are known.
std::optional<Measured> corruption_mean(const std::vector<Measured>& all) {
  Measured mean{
      .kind = *measure_kind("corruption_mean"), .n = 0, .series = {}, .against = {}, .flags = {}};
  int count = 0;
  for (const Measured& one : all) {
    if (!one.kind.is_error) continue;
    ++count;
    mean.n = std::max(mean.n, one.n);
    add_flags(mean.flags, one.flags);
    for (const auto& [name, series] : one.series) {
      compare::Series& to = mean.series[name];
      to.values.resize(series.values.size());
      to.samples.resize(series.values.size());
      to.errors.resize(series.values.size());
      for (std::size_t s = 0; s < series.values.size(); ++s) {
        to.values[s] += series.values[s];
        to.errors[s] = std::max(to.errors[s], series.errors[s]);
        to.samples[s].resize(std::max(to.samples[s].size(), series.samples[s].size()));
        // Digits of errors count what is right, as the values do.
        for (std::size_t i = 0; i < series.samples[s].size(); ++i)
          to.samples[s][i] += series.samples[s][i];
      }
    }
  }
  if (count < 2) return {};
  for (auto& [name, series] : mean.series) {
    for (double& value : series.values) value /= count;
    for (auto& samples : series.samples) {
      for (float& sample : samples) sample /= float(count);
    }
  }
  return mean;
}

/// One number for all layers of what foci measure found by layer.
std::optional<Measured> over_layers(const Comparison& all, const std::string& name) {
  Measured out{.kind = *measure_kind(name), .n = 0, .series = {}, .against = {}, .flags = {}};
  const bool last = out.kind.group == "collapse";
  bool some = false;
  for (const ComparedMechanism& mechanism : all.mechanisms) {
    compare::Series& series = out.series[mechanism.name];
    for (const std::uint64_t seed : all.seeds) {
      const ComparedRun* run = find_run(all, mechanism.name, seed);
      const auto layers = run == nullptr ? std::vector<double>() : by_layer(run->found, name);
      double value = nan;
      if (!layers.empty()) value = last ? layers.back() : compare::summary_of(layers).mean;
      series.values.push_back(value);
      if (layers.empty()) continue;
      some = true;
      const Record* record =
          find_record(run->found, fmt::format("{} layer {}", name, layers.size() - 1));
      out.n = std::max(out.n, record->n);
      add_flags(out.flags, record->flags);
    }
  }
  return some ? std::optional(out) : std::nullopt;
}

/// Turns that differ a lot were timed beside other work: no speed of them is held against another.
bool is_disturbed(const Measured& one) {
  return std::any_of(one.flags.begin(), one.flags.end(),
                     [](const RecordFlag& flag) { return flag.name == "busy-machine"; });
}

std::vector<Measured> all_measured(const Comparison& all) {
  std::vector<Measured> out;
  for (const std::string& name : record_names(all)) out.push_back(measured(all, name));
  for (const char* name : {"concentration", "effective_keys", "cosine", "effective_rank"}) {
    if (auto one = over_layers(all, name)) out.push_back(std::move(*one));
  }
  if (auto mean = corruption_mean(out)) out.push_back(std::move(*mean));
  static const std::vector<std::string> groups = {
      "accuracy", "robustness", "corruption", "concentration", "collapse", "speed", "memory"};
  // What a score is held against comes before it, single corruptions behind their mean.
  const auto rank = [&](const Measured& m) {
    const int place = m.kind.name == "clean" ? 0 : m.kind.decides ? 1 : 2;
    return std::pair(std::find(groups.begin(), groups.end(), m.kind.group), place);
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Measured& a, const Measured& b) { return rank(a) < rank(b); });
  const std::string& baseline = all.mechanisms.front().name;
  std::vector<compare::Difference*> deciding;
  for (Measured& one : out) {
    for (std::size_t i = 1; i < all.mechanisms.size(); ++i) {
      const std::string& name = all.mechanisms[i].name;
      one.against[name] = compare::difference_of(one.series[name], one.series[baseline],
                                                 {.better = one.kind.better});
      if (is_disturbed(one)) one.against[name].verdict = compare::Verdict::unknown;
    }
    for (auto& [name, difference] : one.against) {
      if (one.kind.decides && difference.seeds >= compare::least_seeds)
        deciding.push_back(&difference);
    }
  }
  compare::adjust(deciding);
  return out;
}

constexpr double surely = 0.05, worth_telling = 0.05;

bool holds(const Measured& one, const compare::Difference& difference) {
  return one.kind.decides && difference.adjusted < surely &&
         (difference.verdict == compare::Verdict::better ||
          difference.verdict == compare::Verdict::worse);
}

std::string_view better_name(compare::Better better) {
  constexpr std::string_view names[] = {"higher", "lower", "neither"};
  return names[int(better)];
}

Json flags_json(const std::vector<RecordFlag>& flags) {
  Json list = Json::array();
  for (const RecordFlag& flag : flags)
    list.push_back({{"name", flag.name}, {"means", flag.means}, {"do", flag.remedy}});
  return list;
}

Json against_json(const Measured& one) {
  Json json = Json::object();
  for (const auto& [name, found] : one.against) {
    const bool sure = holds(one, found);
    std::string words = is_disturbed(one) ? "no verdict: timed on a busy machine"
                                          : compare::words_of(found, one.kind.unit);
    const bool told =
        found.verdict == compare::Verdict::better || found.verdict == compare::Verdict::worse;
    if (told && one.kind.decides && !sure) words += "; may be chance, counting all comparisons";
    json[name] = {{"difference", number_json(found.difference)},
                  {"low", number_json(found.low)},
                  {"high", number_json(found.high)},
                  {"seeds", found.seeds},
                  {"verdict", std::string(compare::name_of(found.verdict))},
                  {"p", found.p},
                  {"p_holm", one.kind.decides ? Json(found.adjusted) : Json()},
                  {"holds", sure},
                  {"words", words}};
  }
  return json;
}

/// Those that the first table of a page has, beside those that decide.
bool is_key(const std::string& name) {
  return name == "clean" || name == "concentration" || name == "cosine" ||
         name == "train_per_second" || name == "peak_mebibytes";
}

Json measure_json(const Measured& one) {
  Json values = Json::object(), mean = Json::object(), deviation = Json::object();
  for (const auto& [name, series] : one.series) {
    values[name] = Json::array();
    for (const double value : series.values) values[name].push_back(number_json(value));
    const compare::Summary summary = compare::summary_of(series.values);
    mean[name] = number_json(summary.mean);
    deviation[name] = number_json(summary.deviation);
  }
  return {{"name", one.kind.name},
          {"title", one.kind.title},
          {"group", one.kind.group},
          {"unit", one.kind.unit},
          {"better", std::string(better_name(one.kind.better))},
          {"decides", one.kind.decides},
          {"key", one.kind.decides || is_key(one.kind.name)},
          {"about", one.kind.about},
          {"n", one.n},
          {"values", values},
          {"mean", mean},
          {"deviation", deviation},
          {"against", against_json(one)},
          {"flags", flags_json(one.flags)}};
}

Json runs_json(const Comparison& all) {
  Json list = Json::array();
  for (const ComparedRun& run : all.runs) {
    const RunState& s = run.state;
    list.push_back({{"mechanism", s.mechanism},
                    {"seed", s.seed},
                    {"state", s.state},
                    {"folder", s.folder},
                    {"step", s.step},
                    {"steps", s.steps},
                    {"per_second", s.per_second},
                    {"seconds", s.seconds},
                    {"stage", s.stage},
                    {"error", s.error}});
    if (!s.place.empty()) list.back()["place"] = s.place;
  }
  return list;
}

/// "Clean accuracy: layer-change better by 1.2 ± 0.4 points."
std::vector<std::string> findings_of(const std::vector<Measured>& all, bool sure) {
  std::vector<std::string> found;
  for (const Measured& one : all) {
    for (const auto& [name, difference] : one.against) {
      const bool told = difference.verdict == compare::Verdict::better ||
                        difference.verdict == compare::Verdict::worse;
      if (!one.kind.decides || !told || holds(one, difference) != sure) continue;
      found.push_back(fmt::format("{}: {} is {}", one.kind.title, name,
                                  compare::words_of(difference, one.kind.unit)));
    }
  }
  return found;
}

/// Of what decides, at least one difference has enough seeds.
bool tells_anything(const std::vector<Measured>& all) {
  for (const Measured& one : all) {
    for (const auto& [name, difference] : one.against) {
      if (one.kind.decides && difference.verdict != compare::Verdict::unknown) return true;
    }
  }
  return false;
}

std::string headline_of(const std::vector<Measured>& all, const Comparison& comparison) {
  const std::string& baseline = comparison.mechanisms.front().name;
  if (comparison.mechanisms.size() < 2)
    return fmt::format("{} alone: there is nothing to compare it with.", baseline);
  if (int(comparison.seeds.size()) < compare::least_seeds) {
    return fmt::format("{} seed{} cannot tell which mechanism is better; {} can.",
                       comparison.seeds.size(), comparison.seeds.size() == 1 ? "" : "s",
                       compare::least_seeds);
  }
  if (!tells_anything(all)) {
    const auto done =
        std::count_if(comparison.runs.begin(), comparison.runs.end(),
                      [](const ComparedRun& run) { return run.state.state == "done"; });
    return fmt::format("{} yet: {} of {} runs are done.",
                       done > 0 ? "No verdict" : "Nothing is measured", done,
                       comparison.runs.size());
  }
  std::vector<std::string> winners, losers;
  for (const ComparedMechanism& mechanism : comparison.mechanisms) {
    std::vector<std::string> better;
    bool worse = false;
    for (const Measured& one : all) {
      const auto found = one.against.find(mechanism.name);
      if (found == one.against.end() || !holds(one, found->second)) continue;
      if (found->second.verdict == compare::Verdict::better) better.push_back(one.kind.title);
      worse = worse || found->second.verdict == compare::Verdict::worse;
    }
    if (!better.empty()) winners.push_back(fmt::format("{} ({})", mechanism.name, listed(better)));
    if (worse) losers.push_back(mechanism.name);
  }
  if (!winners.empty())
    return fmt::format("Better than {} on this budget: {}.", baseline, listed(winners, "; "));
  const std::string none = fmt::format("No mechanism beat {} on this budget", baseline);
  return losers.empty() ? none + "." : fmt::format("{}; worse: {}.", none, listed(losers));
}

Json verdict_json(const std::vector<Measured>& all, const Comparison& comparison) {
  int comparisons = 0;
  for (const Measured& one : all) {
    for (const auto& [name, difference] : one.against)
      comparisons += one.kind.decides && difference.seeds >= compare::least_seeds;
  }
  Json sentences = Json::array();
  for (const std::string& text : findings_of(all, true)) sentences.push_back(text + ".");
  for (const std::string& text : findings_of(all, false))
    sentences.push_back(text + ", which may be chance among so many comparisons.");
  for (const Measured& one : all) {
    if (one.kind.decides || (one.kind.group != "speed" && one.kind.group != "memory")) continue;
    for (const auto& [name, difference] : one.against) {
      const double base =
          compare::summary_of(one.series.at(comparison.mechanisms.front().name).values).mean;
      if (difference.verdict == compare::Verdict::unknown ||
          difference.verdict == compare::Verdict::same ||
          std::abs(difference.difference) < worth_telling * std::abs(base))
        continue;
      sentences.push_back(fmt::format("{}: {} is {}.", one.kind.title, name,
                                      compare::words_of(difference, one.kind.unit)));
    }
  }
  if (comparisons > 0) {
    sentences.push_back(fmt::format(
        "{} comparison{} made; a mechanism counts as better or worse where Holm's procedure over "
        "all of them leaves less than {:.0f} % for chance, and intervals are of 95 %.",
        comparisons, comparisons == 1 ? " was" : "s were", 100 * surely));
  }
  return {{"headline", headline_of(all, comparison)},
          {"sentences", sentences},
          {"comparisons", comparisons}};
}

}  // namespace

Json results_json(const Comparison& comparison) {
  const std::vector<Measured> all = all_measured(comparison);
  Json json{{"schema", 1}};
  json.update(comparison.facts);
  json["seeds"] = comparison.seeds;
  json["mechanisms"] = Json::array();
  for (const ComparedMechanism& mechanism : comparison.mechanisms) {
    json["mechanisms"].push_back({{"name", mechanism.name},
                                  {"about", mechanism.about},
                                  {"baseline", &mechanism == &comparison.mechanisms.front()},
                                  {"control", mechanism.control},
                                  {"words", Json(mechanism.words)}});
  }
  json["runs"] = runs_json(comparison);
  json["measures"] = Json::array();
  std::vector<RecordFlag> flags;
  for (const Measured& one : all) {
    json["measures"].push_back(measure_json(one));
    add_flags(flags, one.flags);
  }
  json["verdict"] = verdict_json(all, comparison);
  json["curves"] = curves_json(comparison);
  json["layers"] = layers_json(comparison);
  json["maps"] = maps_json(comparison);
  json["ellipses"] = ellipses_json(comparison);
  json["figures"] = Json::array();
  Json list = comparison.facts.value("flags", Json::array());
  for (const Json& flag : {still_falling(comparison), known_by_heart(comparison)}) {
    if (!flag.is_null()) list.push_back(flag);
  }
  for (const Json& flag : flags_json(flags)) list.push_back(flag);
  json["flags"] = list;
  return json;
}

}  // namespace foci::cli
