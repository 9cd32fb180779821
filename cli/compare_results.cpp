// SPDX-License-Identifier: Apache-2.0
// results.json: measures with their statistics, and the verdict in words.
#include "cli/compare_doubts.hpp"
#include "cli/compare_measured.hpp"
#include "cli/compare_parts.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::cli {
namespace {

constexpr double worth_telling = 0.05;

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

/// By mechanism and seed the names of flags; empty where there are none at all.
Json flagged_json(const ComparedMeasure& one) {
  Json json = Json::object();
  if (one.flags.empty()) return json;
  for (const auto& [name, series] : one.series) {
    std::vector<std::set<std::string>> seeds(series.values.size());
    const auto found = one.flagged.find(name);
    if (found != one.flagged.end())
      std::copy(found->second.begin(), found->second.end(), seeds.begin());
    json[name] = seeds;
  }
  return json;
}

/// Each flag once, with the titles of the measures that it stands at.
Json placed_flags(const std::vector<ComparedMeasure>& all) {
  std::vector<RecordFlag> flags;
  for (const ComparedMeasure& one : all) add_flags(flags, one.flags);
  Json list = flags_json(flags);
  for (std::size_t i = 0; i < flags.size(); ++i) {
    Json& titles = list[i]["measures"] = Json::array();
    for (const ComparedMeasure& one : all) {
      if (std::find(one.flags.begin(), one.flags.end(), flags[i]) != one.flags.end())
        titles.push_back(one.kind.title);
    }
  }
  return list;
}

Json against_json(const ComparedMeasure& one) {
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

Json measure_json(const ComparedMeasure& one) {
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
          {"flags", flags_json(one.flags)},
          {"flagged", flagged_json(one)}};
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
std::vector<std::string> findings_of(const std::vector<ComparedMeasure>& all, bool sure) {
  std::vector<std::string> found;
  for (const ComparedMeasure& one : all) {
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
bool tells_anything(const std::vector<ComparedMeasure>& all) {
  for (const ComparedMeasure& one : all) {
    for (const auto& [name, difference] : one.against) {
      if (one.kind.decides && difference.verdict != compare::Verdict::unknown) return true;
    }
  }
  return false;
}

std::string headline_of(const std::vector<ComparedMeasure>& all, const Comparison& comparison) {
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
    for (const ComparedMeasure& one : all) {
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

Json verdict_json(const std::vector<ComparedMeasure>& all, const Comparison& comparison) {
  int comparisons = 0;
  for (const ComparedMeasure& one : all) {
    for (const auto& [name, difference] : one.against)
      comparisons += one.kind.decides && difference.seeds >= compare::least_seeds;
  }
  Json sentences = Json::array();
  for (const std::string& text : findings_of(all, true)) sentences.push_back(text + ".");
  for (const std::string& text : findings_of(all, false))
    sentences.push_back(text + ", which may be chance among so many comparisons.");
  for (const ComparedMeasure& one : all) {
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
  const std::vector<ComparedMeasure> all = all_measured(comparison);
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
  for (const ComparedMeasure& one : all) json["measures"].push_back(measure_json(one));
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
  for (const ComparedRun& run : comparison.runs) {
    for (const Json& flag : run.found.flags) {
      if (std::find(list.begin(), list.end(), flag) == list.end()) list.push_back(flag);
    }
  }
  for (const Json& flag : placed_flags(all)) list.push_back(flag);
  json["flags"] = list;
  return json;
}

}  // namespace foci::cli
