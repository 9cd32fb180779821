// SPDX-License-Identifier: Apache-2.0
// Paired differences over seeds: their interval, its verdict, and the count of comparisons.
#include <foci/compare.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace foci::compare {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint64_t bootstrap_stream = 0xb007;

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / double(values.size());
}

/// Of the seeds that both have.
struct Pairs {
  std::vector<double> differences;          // a seed each
  std::vector<std::vector<float>> samples;  // the same of every sample; empty: not known
  double error = 0;  // of the mean of differences, over samples that nobody told apart
};

Pairs pairs_of(const Series& ours, const Series& baseline) {
  Pairs pairs;
  const std::size_t seeds = std::min(ours.values.size(), baseline.values.size());
  const auto samples_of = [](const Series& series, std::size_t seed) {
    return seed < series.samples.size() ? series.samples[seed] : std::vector<float>();
  };
  const auto error_of = [](const Series& series, std::size_t seed) {
    return seed < series.errors.size() ? series.errors[seed] : 0.0;
  };
  bool told = true;
  double variance = 0;
  for (std::size_t s = 0; s < seeds; ++s) {
    if (std::isnan(ours.values[s]) || std::isnan(baseline.values[s])) continue;
    pairs.differences.push_back(ours.values[s] - baseline.values[s]);
    variance += std::pow(error_of(ours, s), 2) + std::pow(error_of(baseline, s), 2);
    std::vector<float> mine = samples_of(ours, s), theirs = samples_of(baseline, s);
    told = told && !mine.empty() && mine.size() == theirs.size() &&
           (pairs.samples.empty() || pairs.samples[0].size() == mine.size());
    if (!told) continue;
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] -= theirs[i];
    pairs.samples.push_back(std::move(mine));
  }
  if (!told) pairs.samples.clear();
  // Every seed is judged by the same samples, so their error does not shrink with more seeds.
  if (!told && !pairs.differences.empty())
    pairs.error = std::sqrt(variance / double(pairs.differences.size()));
  return pairs;
}

double variance_over_seeds(std::span<const double> differences) {
  const double mean = mean_of(differences);
  double sum = 0;
  for (const double value : differences) sum += (value - mean) * (value - mean);
  return sum / double(differences.size() - 1) / double(differences.size());
}

/// Of the mean over seeds, had other samples been taken.
double variance_over_samples(const Pairs& pairs) {
  if (pairs.samples.empty()) return pairs.error * pairs.error;
  const std::size_t count = pairs.samples[0].size();
  if (count < 2) return 0;
  std::vector<double> means(count);
  for (const auto& seed : pairs.samples) {
    for (std::size_t i = 0; i < count; ++i) means[i] += seed[i] / double(pairs.samples.size());
  }
  return variance_over_seeds(means);
}

/// Seeds and samples drawn anew, each with replacement; the ends between which `level` of all lie.
void bootstrap(Difference& to, const Pairs& pairs, const Judging& how) {
  data::Random random(how.seed, bootstrap_stream);
  const auto seeds = std::int64_t(pairs.differences.size());
  const std::size_t count = pairs.samples.empty() ? 0 : pairs.samples[0].size();
  std::vector<double> drawn(std::size_t(std::max(how.resamples, 1)));
  std::vector<double> means(count);
  for (double& result : drawn) {
    std::fill(means.begin(), means.end(), 0.0);
    result = random.normal() * pairs.error;
    for (std::int64_t s = 0; s < seeds; ++s) {
      const auto which = std::size_t(random.below(seeds));
      result += pairs.differences[which] / double(seeds);
      for (std::size_t i = 0; i < count; ++i) means[i] += pairs.samples[which][i];
    }
    if (count == 0) continue;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += means[std::size_t(random.below(count))];
    result = sum / double(count) / double(seeds);
  }
  std::sort(drawn.begin(), drawn.end());
  const auto at = [&](double share) {
    return drawn[std::size_t(std::lround(share * double(drawn.size() - 1)))];
  };
  to.low = at((1 - how.level) / 2);
  to.high = at((1 + how.level) / 2);
}

Verdict verdict_of(const Difference& found, Better better) {
  if (found.seeds < least_seeds || std::isnan(found.low)) return Verdict::unknown;
  if (found.low <= 0 && found.high >= 0) return Verdict::same;
  if (better == Better::neither) return Verdict::different;
  return (found.difference > 0) == (better == Better::higher) ? Verdict::better : Verdict::worse;
}

/// 1.23456 -> "1.2" where the half-width is 0.4: two digits of the half-width.
std::string rounded(double value, double half) {
  const double size = half > 0 ? half : std::abs(value);
  if (!(size > 0) || !std::isfinite(size)) return fmt::format("{:.3g}", value);
  const int digits = std::clamp(1 - int(std::floor(std::log10(size))), 0, 9);
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace

Summary summary_of(std::span<const double> values) {
  std::vector<double> there;
  for (const double value : values) {
    if (!std::isnan(value)) there.push_back(value);
  }
  Summary summary{nan, nan, int(there.size())};
  if (!there.empty()) summary.mean = mean_of(there);
  if (there.size() > 1)
    summary.deviation = std::sqrt(variance_over_seeds(there) * double(there.size()));
  return summary;
}

std::string_view name_of(Verdict verdict) {
  constexpr std::string_view names[] = {"same", "better", "worse", "different", "unknown"};
  return names[int(verdict)];
}

Difference difference_of(const Series& ours, const Series& baseline, const Judging& how) {
  const Pairs pairs = pairs_of(ours, baseline);
  Difference found{
      .seeds = int(pairs.differences.size()), .difference = nan, .low = nan, .high = nan};
  if (found.seeds == 0) return found;
  found.difference = mean_of(pairs.differences);
  if (found.seeds < 2) return found;
  const double seeds = variance_over_seeds(pairs.differences);
  const double samples = variance_over_samples(pairs), all = seeds + samples;
  const double count = pairs.samples.empty() ? 1e9 : double(pairs.samples[0].size());
  const double freedom =
      all > 0 ? all * all / (seeds * seeds / (found.seeds - 1) + samples * samples / (count - 1))
              : double(found.seeds - 1);
  const double error = std::sqrt(all), half = student_quantile(1 - how.level, freedom) * error;
  found.low = found.difference - half;
  found.high = found.difference + half;
  if (found.seeds >= bootstrap_seeds) bootstrap(found, pairs, how);
  found.verdict = verdict_of(found, how.better);
  if (found.seeds < least_seeds) return found;
  found.p =
      error > 0 ? student_tail(found.difference / error, freedom) : double(found.difference == 0);
  return found;
}

void adjust(std::span<Difference* const> all) {
  std::vector<Difference*> order(all.begin(), all.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const Difference* a, const Difference* b) { return a->p < b->p; });
  double most = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    most = std::max(most, std::min(1.0, order[i]->p * double(order.size() - i)));
    order[i]->adjusted = most;
  }
}

std::string words_of(const Difference& found, std::string_view unit) {
  if (found.seeds == 0) return "no seed in common";
  if (found.verdict == Verdict::unknown) {
    return fmt::format("{} seed{} cannot tell; {} can", found.seeds, found.seeds == 1 ? "" : "s",
                       least_seeds);
  }
  if (found.verdict == Verdict::same) return "no difference shown";
  const double scale = unit == "share" ? 100 : 1;
  const std::string_view direction = found.verdict == Verdict::better  ? "better"
                                     : found.verdict == Verdict::worse ? "worse"
                                     : found.difference > 0            ? "higher"
                                                                       : "lower";
  const double half = scale * found.half();
  return fmt::format("{} by {} ± {}{}{}", direction,
                     rounded(scale * std::abs(found.difference), half), rounded(half, half),
                     unit.empty() ? "" : " ", unit == "share" ? "points" : unit);
}

}  // namespace foci::compare
