// SPDX-License-Identifier: Apache-2.0
// A run judged under corruption: images by their error and its mean in units of a baseline's, text
// by perplexity with and without the tokens that were changed, sequences by accuracy.
#include "cli/torch/corrupt.hpp"

#include "cli/corruption_words.hpp"
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/corrupt_baseline.hpp"
#include "cli/torch/judge_images.hpp"
#include "cli/torch/records.hpp"

#include <foci/corrupt_sequences.hpp>
#include <foci/error.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace foci::cli {
namespace {

using corrupt::Corruption;
using train::Scores;

/// Says how far it is, on standard error.
void tell(const HarmedRun& run, const std::string& line) {
  if (!run.verb.common.json && !run.verb.common.quiet) fmt::print(stderr, "{}\n", line);
}

std::vector<std::string> asked_names(const HarmedRun& run) {
  return split(run.verb.words.at("corrupt"), ',');
}

void check_names(const HarmedRun& run, const std::vector<std::string>& known) {
  for (const std::string& name : asked_names(run)) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Misuse(fmt::format("--corrupt {} is not for a run of {}", name, run.config.task),
                 "it has " + listed(known));
  }
}

/// Which images of a set too large to be held corrupted at once are named right, a digit each.
std::string right_of(const train::ImageTraining& training, const HarmedRun& run,
                     const data::ImageSet& set, corrupt::SetPlan plan) {
  constexpr std::int64_t most_bytes = std::int64_t{1} << 28;
  const train::ImageFacts facts = facts_in(run.asked.run, run.config.data);
  train::ImageTraining cut = training;
  cut.input.crop_share = 1;  // the plan has cut them
  plan.count = std::max<std::int64_t>(
      1, most_bytes / (std::int64_t(plan.side) * plan.side * facts.channels));
  std::string right;
  for (plan.first = 0; plan.first < set.size(); plan.first += plan.count) {
    right += judge_each(cut, run.weights, facts, corrupt::corrupted(set, plan)).right;
  }
  return right;
}

/// The mean corruption errors, where all of the 15 were judged; without one that a baseline's error
/// of 0 leaves undefined.
void add_means(Scores& scores, const Scores& baseline) {
  const auto means = means_in(scores);
  if (!means) return;
  scores["mce_alexnet"] = corrupt::mean_corruption_error(*means, corrupt::alexnet_errors());
  if (baseline.empty()) return;
  try {
    const auto other = means_in(baseline);
    scores["mce_baseline"] = corrupt::mean_corruption_error(*means, *other);
    scores["relative_mce_baseline"] = corrupt::relative_corruption_error(
        *means, *other, {scores.at("error_clean"), baseline.at("error_clean")});
  } catch (const InvalidArgument& fault) {
    warn(fault.what());
  }
}

Scores judge_images(const HarmedRun& run) {
  const Harm harm = harm_of(run.verb.words);
  const train::ImageTraining training = image_training(run.asked.words, run.asked.common);
  const train::ImageFacts facts = facts_in(run.asked.run, run.config.data);
  const data::ImageSet set = judged_set(run);
  corrupt::SetPlan plan;
  plan.side = int(train::side_of(training.model, facts));
  plan.crop_share = training.input.crop_share;
  plan.threads = run.asked.common.threads;
  plan.how.seed = run.verb.common.seed;
  plan.how.frost = harm.frost;
  plan.how.scale = harm.scale.value_or(corrupt::scale_for(data::Image(plan.side, plan.side, 1)));
  const Scores baseline = baseline_scores(run, harm, {set.size(), plan.how.scale});
  const Judgement clean = judge_each(training, run.weights, facts, set);
  Scores found{{"count", double(set.size())}, {"error_clean", 1 - clean.scores.at("top1")}};
  std::map<std::string, std::string> right{{"error_clean", clean.right}};
  for (const Corruption corruption : harm.corruptions) {
    double sum = 0;
    for (const int severity : harm.severities) {
      plan.corruption = corruption;
      plan.how.severity = severity;
      const std::string name = fmt::format("error_{}_{}", corrupt::name_of(corruption), severity);
      right[name] = right_of(training, run, set, plan);
      const double error = found[name] =
          double(std::count(right[name].begin(), right[name].end(), '0')) / double(set.size());
      sum += error;
      tell(run, fmt::format("{} {}: error {:.2f} %", corrupt::name_of(corruption), severity,
                            100 * error));
    }
    if (harm.severities.size() == corrupt::most_severity)
      found[fmt::format("error_{}", corrupt::name_of(corruption))] = sum / corrupt::most_severity;
  }
  keep_right(run.verb, right);
  add_means(found, baseline);
  return found;
}

/// What --corrupt says of a text.
class TextChanger {
 public:
  explicit TextChanger(const HarmedRun& run) : seed_(run.verb.common.seed) {
    const Words& words = run.verb.words;
    if (words.count("rate") > 0) rate_ = to_number(words.at("rate"));
    const auto names = asked_names(run);
    if (std::find(names.begin(), names.end(), "synonyms") == names.end()) return;
    if (words.count("synonyms") == 0)
      throw Misuse("--corrupt synonyms needs --synonyms FILE, a word and its synonym a line");
    synonyms_ = corrupt::read_synonyms(words.at("synonyms"));
  }
  corrupt::HarmedText operator()(const std::string& name, std::string_view text,
                                 std::uint64_t index = 0) const {
    const corrupt::TextHarm how{rate_, {seed_, index}};
    if (name == "swap") return corrupt::swap_words(text, how);
    if (name == "synonyms") return corrupt::swap_synonyms(text, synonyms_, how);
    return corrupt::change_bytes(text, how);
  }
  static std::vector<std::string> names() { return {"swap", "synonyms", "bytes"}; }

 private:
  std::uint64_t seed_;
  double rate_ = corrupt::TextHarm{}.rate;
  corrupt::Synonyms synonyms_;
};

/// Which tokens of the new text are not those of the old one.
std::vector<std::uint8_t> touched(const train::Tokenizer& tokenizer, const data::Tokens& before,
                                  const data::Tokens& tokens, const corrupt::HarmedText& harmed) {
  std::vector<std::uint8_t> out(tokens.size());
  if (tokenizer.kind() == "words") {  // a change leaves their number as it is
    for (std::size_t i = 0; i < tokens.size(); ++i) out[i] = tokens[i] != before.at(i);
    return out;
  }
  std::int64_t begin = tokenizer.kind() == "pieces" ? -1 : 0;  // a space before the text
  auto change = harmed.changes.begin();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t end = begin + std::ssize(tokenizer.decode(std::span(&tokens[i], 1)));
    const auto past = [](const corrupt::TextChange& c) { return c.at + std::ssize(c.to); };
    while (change != harmed.changes.end() && past(*change) <= begin) ++change;
    out[i] = change != harmed.changes.end() && change->at < end;
    begin = end;
  }
  return out;
}

/// A line each: byte of the new text, the word before, the word now.
std::string lines_of(const std::vector<corrupt::TextChange>& changes,
                     const std::string& before = {}) {
  std::string lines;
  for (const auto& change : changes)
    lines += fmt::format("{}{}\t{}\t{}\n", before, change.at, change.from, change.to);
  return lines;
}

void keep_changes(const HarmedRun& run, const std::string& name, const std::string& lines) {
  const std::string path = fmt::format("{}/changes-{}.tsv", run.asked.run, name);
  std::ofstream file(path);
  file << lines;
  if (!file.flush()) warn(path + ": cannot be written");
}

Scores judge_text(const HarmedRun& run) {
  check_names(run, TextChanger::names());
  const TextChanger change(run);
  const train::Tokenizer tokenizer = tokenizer_of(run.asked.run, run.config);
  const train::TextTraining training = text_training(run.asked.words, run.asked.common);
  const std::string path = data_path(run.asked.words.at("data"));
  const std::string text = train::read_split(path, split_of(run.asked.words.at("split")));
  const train::TokenText clean(tokenizer, text, shown(path));
  const Scores plain = train::evaluate_text(training, run.weights, tokenizer, clean);
  Scores found{{"count", plain.at("count")}, {"perplexity_clean", plain.at("perplexity")}};
  for (const std::string& name : asked_names(run)) {
    const corrupt::HarmedText harmed = change(name, text);
    train::TokenText tokens(tokenizer, harmed.text, fmt::format("{} ({})", shown(path), name));
    const auto judged = [&] {
      return train::evaluate_text(training, run.weights, tokenizer, tokens).at("perplexity");
    };
    found["perplexity_" + name] = judged();
    tokens.left_out = touched(tokenizer, clean.tokens, tokens.tokens, harmed);
    found[fmt::format("perplexity_{}_untouched", name)] = judged();
    found["changes_" + name] = double(harmed.changes.size());
    keep_changes(run, name, lines_of(harmed.changes));
  }
  return found;
}

bool holds_text(const std::string& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".tsv") return true;
  }
  return false;
}

struct TextChanges {
  std::int64_t count = 0;
  std::string lines;  ///< the sample's number before each
};

/// Every sample's text through the tokenizer, back and forth.
TextChanges change_texts(train::SequenceSet& set, const train::Tokenizer& tokenizer,
                         const TextChanger& change, const std::string& name) {
  TextChanges all;
  for (std::size_t i = 0; i < set.samples.size(); ++i) {
    train::Sequence& sample = set.samples[i];
    const corrupt::HarmedText harmed = change(name, tokenizer.decode(sample.tokens), i);
    all.count += std::ssize(harmed.changes);
    all.lines += lines_of(harmed.changes, fmt::format("{}\t", i));
    sample.tokens = tokenizer.encode(harmed.text);
    if (tokenizer.kind() == "words" && !sample.tokens.empty()) sample.tokens.pop_back();  // <eos>
    sample.length = std::ssize(sample.tokens);
  }
  return all;
}

Scores judge_sequences(const HarmedRun& run) {
  const train::SequenceFacts facts = sequence_facts_of(run.asked, run.config.data);
  const train::SequenceTraining training = sequence_training(run.asked.words, run.asked.common);
  const std::string folder = data_folder(run.asked.words.at("data"));
  const bool series = facts.channels > 0;
  if (!series && !holds_text(folder)) {
    throw Misuse("--corrupt is not for pixels as tokens",
                 "foci corrupt writes such sets; foci eval RUN --data judges by one");
  }
  const std::vector<std::string> kinds = {"noise", "spikes", "missing"};
  check_names(run, series ? kinds : TextChanger::names());
  const train::SequenceSet clean =
      train::open_sequences(folder, split_of(run.asked.words.at("split")), facts);
  const auto accuracy = [&](const train::SequenceSet& set) {
    return train::evaluate_sequences(training, run.weights, facts, set).at("accuracy");
  };
  Scores found{{"count", double(clean.samples.size())}, {"accuracy_clean", accuracy(clean)}};
  for (const std::string& name : asked_names(run)) {
    train::SequenceSet set = clean;
    if (!series) {
      const TextChanges changes = change_texts(set, facts.tokenizer, TextChanger(run), name);
      found["accuracy_" + name] = accuracy(set);
      found["changes_" + name] = double(changes.count);
      keep_changes(run, name, changes.lines);
      continue;
    }
    const auto kind = std::find(kinds.begin(), kinds.end(), name) - kinds.begin();
    for (const int severity : severities_of(run.verb.words)) {
      set = clean;
      for (std::size_t i = 0; i < set.samples.size(); ++i) {
        corrupt::harm_series(
            set.samples[i].values, facts.channels,
            {corrupt::SeriesHarm::Kind(kind), severity, {run.verb.common.seed, i}});
      }
      found[fmt::format("accuracy_{}_{}", name, severity)] = accuracy(set);
    }
  }
  return found;
}

/// Doubts about numbers that were made of other data than the benchmark's.
void add_flags(const HarmedRun& run, std::vector<Record>& records) {
  if (run.config.task != "images") return;
  const train::ImageFacts facts = facts_in(run.asked.run, run.config.data);
  for (Record& record : records) {
    record.flags.push_back({"regenerated", "these images were corrupted here, not by the benchmark",
                            "compare with numbers of foci alone, or evaluate on the stored images: "
                            "--data"});
    if (record.name == "mce_alexnet" && facts.classes != 1000) {
      record.flags.push_back({"alexnet", "AlexNet's errors are of ImageNet's 1000 classes",
                              "name a run over the same data: --baseline RUN"});
    }
  }
}

}  // namespace

data::ImageSet judged_set(const HarmedRun& run) {
  const auto count = run.verb.words.find("count");
  return data::evenly(images_of(run.config.data, run.asked.words),
                      count == run.verb.words.end() ? 0 : to_count(count->second));
}

void keep_right(const Eval& verb, const std::map<std::string, std::string>& right) {
  const auto path = verb.words.find("right");
  if (path == verb.words.end()) return;
  std::ofstream file(path->second);
  file << Json(right).dump(1) << "\n";
  if (!file.flush()) throw FileError(shown(path->second) + ": cannot be written");
}

int judge_harmed(const HarmedRun& run) {
  const std::string& task = run.config.task;
  if (task == "segments") throw Misuse("--corrupt is not for a run of segments");
  const Scores scores = task == "images" ? judge_images(run)
                        : task == "text" ? judge_text(run)
                                         : judge_sequences(run);
  const std::string machine = run.verb.common.cuda ? gpu_machine_text() : machine_text();
  auto records = records_of(
      {run.asked.words, machine, command_text("eval " + run.verb.run, run.verb.words)}, scores);
  add_flags(run, records);
  doubt_other_data(run.verb.run, run.config.words, run.asked.words, records);
  keep_records(run.verb.run, records);
  if (run.verb.common.json) {
    Json result{{"run", run.verb.run}, {"weights", run.weights}, {"records", json_of(records)}};
    for (const auto& [name, value] : scores) result[name] = value;
    print_json(result);
    return 0;
  }
  for (const auto& [name, value] : scores) fmt::print("{:<32}{:.4f}\n", name, value);
  return 0;
}

}  // namespace foci::cli
