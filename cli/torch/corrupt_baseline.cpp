// SPDX-License-Identifier: Apache-2.0
// The errors of another run as a unit. What its images were is read from the command that its
// Records carry.
#include "cli/torch/corrupt_baseline.hpp"

#include "cli/misuse.hpp"
#include "cli/shell_words.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/tasks.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

namespace foci::cli {
namespace {

using corrupt::Corruption;
using train::Scores;

/// Records of one call of foci eval.
struct Judging {
  std::string command;
  std::int64_t count = 0;
  Scores errors;
};

/// The calls over this data that judged all 15 corruptions, the last one last.
std::vector<Judging> judgings_in(const std::string& baseline, const std::string& sum) {
  std::vector<Judging> all;
  for (const Record& record : read_records(baseline + "/records.jsonl")) {
    if (!record.name.starts_with("error_") || record.data_sha256 != sum) continue;
    auto same = std::find_if(all.begin(), all.end(),
                             [&](const Judging& j) { return j.command == record.command; });
    if (same != all.end()) {
      std::rotate(same, same + 1, all.end());
    } else {
      all.push_back({record.command, 0, {}});
    }
    all.back().count = record.n;
    all.back().errors[record.name] = record.value;
  }
  std::erase_if(all, [](const Judging& j) {
    return !means_in(j.errors) || j.errors.count("error_clean") == 0;
  });
  return all;
}

std::string flag_in(const std::vector<std::string>& words, const std::string& flag,
                    const std::string& standard) {
  const auto found = std::find(words.begin(), words.end(), "--" + flag);
  return found == words.end() || found + 1 == words.end() ? standard : *(found + 1);
}

std::string scale_text(corrupt::Scale scale) {
  return scale == corrupt::Scale::px32 ? "32" : scale == corrupt::Scale::px64 ? "64" : "224";
}

/// The scale of a command that names none: by the side that the run's model sees.
std::string own_scale(const std::string& run) {
  const RunConfig config = read_config(run);
  const train::ImageTraining training = image_training(config.words, {});
  const int side = int(train::side_of(training.model, facts_in(run, config.data)));
  return scale_text(corrupt::scale_for(data::Image(side, side, 1)));
}

std::string sum_of_folder(const std::string& folder) {
  std::error_code none;
  return std::filesystem::exists(folder, none) ? data::fingerprint_of(folder).sha256 : folder;
}

/// What of the baseline's judging is not as it is here; empty: nothing.
std::string difference(const std::string& baseline, const Judging& judging, const HarmedRun& run,
                       const HarmedAlike& own) {
  const std::vector<std::string> words = shell_words(judging.command);
  const auto differs = [](const std::string& what, const std::string& there,
                          const std::string& here) {
    return there == here ? "" : fmt::format("{} {} there and {} here", what, there, here);
  };
  const std::string standard_split = read_config(baseline).words.at("split");
  const std::string there = flag_in(words, "frost", ""), here = run.verb.words.at("frost");
  const std::string frost =
      there == here || sum_of_folder(there) == sum_of_folder(here)
          ? ""
          : fmt::format("--frost is {} there and {} here", shown(there), shown(here));
  const std::string named = flag_in(words, "scale", "");
  for (const std::string& line :
       {differs("--split is", flag_in(words, "split", standard_split), run.asked.words.at("split")),
        differs("images are", std::to_string(judging.count), std::to_string(own.count)),
        differs("--seed is", flag_in(words, "seed", "0"), std::to_string(run.verb.common.seed)),
        differs("--scale is", named.empty() ? own_scale(baseline) : named, scale_text(own.scale)),
        frost}) {
    if (!line.empty()) return line;
  }
  return "";
}

}  // namespace

std::optional<std::map<Corruption, double>> means_in(const Scores& scores) {
  std::map<Corruption, double> means;
  for (int i = 0; i < corrupt::benchmark_count; ++i) {
    const auto found = scores.find(fmt::format("error_{}", corrupt::name_of(Corruption(i))));
    if (found == scores.end()) return {};
    means[Corruption(i)] = found->second;
  }
  return means;
}

Scores baseline_scores(const HarmedRun& run, const Harm& harm, const HarmedAlike& own) {
  if (run.verb.words.count("baseline") == 0) return {};
  const auto benchmark =
      std::count_if(harm.corruptions.begin(), harm.corruptions.end(),
                    [](Corruption c) { return int(c) < corrupt::benchmark_count; });
  if (benchmark < corrupt::benchmark_count || harm.severities.size() < corrupt::most_severity)
    throw Misuse("--baseline needs all 15 corruptions at five severities: --corrupt all");
  const std::string baseline = run.verb.words.at("baseline");
  const std::string sum = data::fingerprint_of(data_path(run.asked.words.at("data"))).sha256;
  const std::vector<Judging> all = judgings_in(baseline, sum);
  if (all.empty()) {
    throw FileError(
        fmt::format("{}/records.jsonl: has no errors under all 15 corruptions of this data; foci "
                    "eval {} --corrupt all finds them",
                    shown(baseline), shown(baseline)));
  }
  std::string last;
  for (auto judging = all.rbegin(); judging != all.rend(); ++judging) {
    const std::string line = difference(baseline, *judging, run, own);
    if (line.empty()) return judging->errors;
    if (last.empty()) last = line;
  }
  throw FileError(
      fmt::format("{}/records.jsonl: its errors are of other images: {}; foci eval {} with the "
                  "flags of this call finds those that can be compared",
                  shown(baseline), last, shown(baseline)));
}

}  // namespace foci::cli
