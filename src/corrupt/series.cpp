// SPDX-License-Identifier: Apache-2.0
// Time series as a bad sensor gives them.
#include <foci/corrupt_sequences.hpp>

#include <foci/error.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::corrupt {
namespace {

constexpr std::uint64_t series_stream = 0x5e81;

void add_spikes(std::span<float> values, double share, data::Random& random) {
  constexpr float height = 5;
  for (float& value : values) {
    const bool hit = random.chance(share), up = random.chance(0.5);
    if (hit) value += up ? height : -height;
  }
}

/// Spans until so many steps are gone.
void drop_spans(std::span<float> values, std::int64_t channels, double share,
                data::Random& random) {
  const std::int64_t length = std::int64_t(values.size()) / channels;
  const std::int64_t longest = std::max<std::int64_t>(1, length / 10);
  std::vector<char> gone(static_cast<std::size_t>(length));
  auto left = std::int64_t(std::ceil(share * double(length)));
  while (left > 0) {
    const std::int64_t begin = random.below(length);
    const std::int64_t end = std::min(length, begin + random.between(1, longest));
    for (std::int64_t step = begin; step < end && left > 0; ++step) {
      if (std::exchange(gone[std::size_t(step)], 1) != 0) continue;
      std::fill_n(values.begin() + step * channels, channels, 0.0f);
      --left;
    }
  }
}

}  // namespace

void harm_series(std::span<float> values, std::int64_t channels, const SeriesHarm& how) {
  static constexpr double deviations[] = {.1, .2, .4, .7, 1};
  static constexpr double spiked[] = {.01, .02, .04, .07, .1};
  static constexpr double missing[] = {.05, .1, .2, .35, .5};
  if (how.severity < 1 || how.severity > 5)
    throw InvalidArgument(fmt::format("severity {}; it must be 1 to 5", how.severity));
  if (channels < 1 || values.size() % std::size_t(channels) != 0) {
    throw InvalidArgument(
        fmt::format("a series of {} values has no {} channels", values.size(), channels));
  }
  data::Random random(how.chance.seed,
                      series_stream + 8 * std::uint64_t(how.kind) + std::uint64_t(how.severity),
                      how.chance.index);
  const int level = how.severity - 1;
  if (how.kind == SeriesHarm::spikes) return add_spikes(values, spiked[level], random);
  if (how.kind == SeriesHarm::missing) return drop_spans(values, channels, missing[level], random);
  for (float& value : values) value += float(deviations[level] * random.normal());
}

}  // namespace foci::corrupt
