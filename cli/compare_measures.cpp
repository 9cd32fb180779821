// SPDX-License-Identifier: Apache-2.0
// What the Records of runs mean side by side: title, group, which way is better.
#include "cli/compare_results.hpp"

#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace foci::cli {
namespace {

using compare::Better;

/// Measures by their own name.
const std::vector<MeasureKind>& plain_kinds() {
  static const std::vector<MeasureKind> kinds = {
      {"top1", "Clean accuracy", "accuracy", "share",
       "share of the images that are classified correctly", Better::higher, true},
      {"accuracy", "Accuracy", "accuracy", "share",
       "share of the sequences that are classified correctly", Better::higher, true},
      {"perplexity", "Perplexity", "accuracy", "", "how many tokens the model wavers between",
       Better::lower, true},
      {"miou", "Mean IoU", "accuracy", "share",
       "overlap of found and true areas, the mean over classes", Better::higher, true},
      {"clean", "Before the attack, same images", "robustness", "share",
       "share of the attacked images that were classified correctly before the attack",
       Better::higher},
      {"corruption_mean", "Accuracy under corruption", "corruption", "share",
       "mean over the corruptions and severities of the plan", Better::higher, true},
      {"perplexity_mean", "Perplexity under corruption", "corruption", "",
       "mean over the corruptions of the plan", Better::lower, true},
      {"concentration", "Concentration", "concentration", "",
       "1 where a row spreads evenly over its keys; the mean over layers"},
      {"effective_keys", "Effective keys", "concentration", "keys",
       "how many keys a row really looks at; the mean over layers"},
      {"cosine", "Tokens alike", "collapse", "",
       "mean cosine between tokens behind the last layer; 1 is collapse"},
      {"effective_rank", "Effective rank", "collapse", "",
       "in how many directions tokens lie behind the last layer"},
      {"train_per_second", "Training speed", "speed", "samples/s",
       "samples a second in training with all threads, one mechanism after another in turn",
       Better::higher},
      {"peak_mebibytes", "Memory in training", "memory", "MiB",
       "the most memory that the training process had resident", Better::lower},
  };
  return kinds;
}

/// "gaussian_noise_3" -> "gaussian noise, severity 3"
std::string corruption_title(const std::string& name) {
  std::string text = name;
  std::string severity;
  const std::size_t last = name.rfind('_');
  if (last != std::string::npos && last + 2 == name.size() && name[last + 1] >= '1' &&
      name[last + 1] <= '5') {
    severity = fmt::format(", severity {}", name.substr(last + 1));
    text = name.substr(0, last);
  }
  std::replace(text.begin(), text.end(), '_', ' ');
  return text + severity;
}

/// "robust linf 2/255", not one of its parts.
std::optional<MeasureKind> robust_kind(const std::string& record) {
  const auto parts = split(record, ' ');
  if (parts.size() != 3 || parts[0] != "robust") return {};
  return MeasureKind{.name = record,
                     .title = fmt::format("Under attack, {} {}", parts[1], parts[2]),
                     .group = "robustness",
                     .unit = "share",
                     .about =
                         "share still classified correctly after all attacks of the plan, each on "
                         "what the others left",
                     .better = Better::higher,
                     .decides = true};
}

std::optional<MeasureKind> corruption_kind(const std::string& record) {
  if (record.ends_with("_untouched") || record.ends_with("_clean")) return {};
  if (record.starts_with("error_")) {
    const std::string name = record.substr(6);
    if (name.empty() || !(name.back() >= '1' && name.back() <= '5')) return {};
    return MeasureKind{.name = "accuracy_" + name,
                       .title = "Under " + corruption_title(name),
                       .group = "corruption",
                       .unit = "share",
                       .about = "share of the corrupted images that are classified correctly",
                       .better = Better::higher,
                       .is_error = true};
  }
  for (const char* score : {"accuracy_", "perplexity_"}) {
    if (!record.starts_with(score)) continue;
    const bool shares = std::string_view(score) == "accuracy_";
    const std::string name = record.substr(std::string_view(score).size());
    return MeasureKind{.name = record,
                       .title = fmt::format("{} under {}", shares ? "Accuracy" : "Perplexity",
                                            corruption_title(name)),
                       .group = "corruption",
                       .unit = shares ? "share" : "",
                       .about = "evaluated on data corrupted that way",
                       .better = shares ? Better::higher : Better::lower};
  }
  return {};
}

}  // namespace

std::optional<MeasureKind> measure_kind(const std::string& record) {
  for (const MeasureKind& kind : plain_kinds()) {
    if (kind.name == record) return kind;
  }
  if (auto robust = robust_kind(record)) return robust;
  return corruption_kind(record);
}

}  // namespace foci::cli
