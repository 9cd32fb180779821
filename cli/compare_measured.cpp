// SPDX-License-Identifier: Apache-2.0
// From Records of runs to measures: values by seed, means over layers and corruptions, differences.
#include "cli/compare_measured.hpp"

#include "cli/compare_parts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace foci::cli {

void add_flags(std::vector<RecordFlag>& to, const std::vector<RecordFlag>& flags) {
  for (const RecordFlag& flag : flags) {
    if (std::find(to.begin(), to.end(), flag) == to.end()) to.push_back(flag);
  }
}

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

ComparedMeasure of_kind(const MeasureKind& kind) {
  return {.kind = kind, .n = 0, .series = {}, .against = {}, .flags = {}, .flagged = {}};
}

/// The flags of a Record, at the mechanism and the seed that it is of.
void add_flags_at(ComparedMeasure& to, const std::string& mechanism, std::size_t seed,
                  const std::vector<RecordFlag>& flags) {
  add_flags(to.flags, flags);
  auto& seeds = to.flagged[mechanism];
  seeds.resize(std::max(seeds.size(), seed + 1));
  for (const RecordFlag& flag : flags) seeds[seed].insert(flag.name);
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

ComparedMeasure measured(const Comparison& all, const std::string& record) {
  ComparedMeasure out = of_kind(*measure_kind(record));
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
      add_flags_at(out, mechanism.name, series.values.size() - 1, found->flags);
    }
  }
  return out;
}

/// The mean over corruptions, sample by sample where those are known.
std::optional<ComparedMeasure> corruption_mean(const std::vector<ComparedMeasure>& all) {
  ComparedMeasure mean = of_kind(*measure_kind("corruption_mean"));
  int count = 0;
  for (const ComparedMeasure& one : all) {
    if (one.kind.group != "corruption") continue;
    ++count;
    if (one.kind.better == compare::Better::lower) mean.kind = *measure_kind("perplexity_mean");
    mean.n = std::max(mean.n, one.n);
    add_flags(mean.flags, one.flags);
    for (const auto& [name, seeds] : one.flagged) {
      auto& to = mean.flagged[name];
      to.resize(std::max(to.size(), seeds.size()));
      for (std::size_t s = 0; s < seeds.size(); ++s) to[s].insert(seeds[s].begin(), seeds[s].end());
    }
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
std::optional<ComparedMeasure> over_layers(const Comparison& all, const std::string& name) {
  ComparedMeasure out = of_kind(*measure_kind(name));
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
      add_flags_at(out, mechanism.name, series.values.size() - 1, record->flags);
    }
  }
  return some ? std::optional(out) : std::nullopt;
}

}  // namespace

bool is_disturbed(const ComparedMeasure& one) {
  return std::any_of(one.flags.begin(), one.flags.end(),
                     [](const RecordFlag& flag) { return flag.name == "busy-machine"; });
}

std::vector<ComparedMeasure> all_measured(const Comparison& all) {
  std::vector<ComparedMeasure> out;
  for (const std::string& name : record_names(all)) out.push_back(measured(all, name));
  for (const char* name : {"concentration", "effective_keys", "cosine", "effective_rank"}) {
    if (auto one = over_layers(all, name)) out.push_back(std::move(*one));
  }
  if (!clean_is_of_all_attacked(all))
    std::erase_if(out, [](const ComparedMeasure& one) { return one.kind.name == "clean"; });
  if (auto mean = corruption_mean(out)) out.push_back(std::move(*mean));
  static const std::vector<std::string> groups = {
      "accuracy", "robustness", "corruption", "concentration", "collapse", "speed", "memory"};
  // What a score is held against comes before it, single corruptions behind their mean.
  const auto rank = [&](const ComparedMeasure& m) {
    const int place = m.kind.name == "clean" ? 0 : m.kind.decides ? 1 : 2;
    return std::tuple(std::find(groups.begin(), groups.end(), m.kind.group), place,
                      eps_in(m.kind.name));
  };
  std::stable_sort(out.begin(), out.end(), [&](const ComparedMeasure& a, const ComparedMeasure& b) {
    return rank(a) < rank(b);
  });
  const std::string& baseline = all.mechanisms.front().name;
  std::vector<compare::Difference*> deciding;
  for (ComparedMeasure& one : out) {
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

bool holds(const ComparedMeasure& one, const compare::Difference& difference) {
  return one.kind.decides && difference.adjusted < surely &&
         (difference.verdict == compare::Verdict::better ||
          difference.verdict == compare::Verdict::worse);
}

}  // namespace foci::cli
