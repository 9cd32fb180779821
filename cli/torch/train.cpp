// SPDX-License-Identifier: Apache-2.0
// foci train images and foci eval: data and flags to the library, its lines to the terminal.
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/run.hpp"
#include "cli/torch/run_folder.hpp"

#include <foci/error.hpp>

#include <fmt/format.h>

#include <csignal>
#include <filesystem>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t told_to_stop = 0;

/// SIGTERM and Ctrl-C wait for the end of a step; afterwards they are as they were.
class Stoppable {
 public:
  Stoppable() {
    told_to_stop = 0;
    for (int i = 0; i < 2; ++i) before_[i] = std::signal(signals[i], [](int) { told_to_stop = 1; });
  }
  ~Stoppable() {
    for (int i = 0; i < 2; ++i) std::signal(signals[i], before_[i]);
  }
  Stoppable(const Stoppable&) = delete;
  Stoppable& operator=(const Stoppable&) = delete;

 private:
  static constexpr int signals[] = {SIGTERM, SIGINT};
  void (*before_[2])(int) = {};
};

std::string text_of(const train::Line& line) {
  std::string text = fmt::format("step {} of {}  loss {:.4f}  rate {:.2e}  {:.0f} images/s  {}  {}",
                                 line.step, line.steps, line.loss, line.rate, line.per_second,
                                 bytes_text(std::size_t(line.memory)), time_left(line.left));
  for (const auto& [name, value] : line.scores) text += fmt::format("  {} {:.4f}", name, value);
  return text;
}

/// One line a step: written over on a terminal, where only judged steps stay.
void show(const train::Line& line) {
  const std::string text = text_of(line);
  if (!can_move()) {
    fmt::print(stderr, "{}\n", text);
    return;
  }
  fmt::print(stderr, "\r\x1b[K{}{}", text.substr(0, terminal_columns() - 1),
             line.scores.empty() ? "" : "\n");
  std::fflush(stderr);
}

struct Sets {
  data::ImageSet train, valid;
};

Sets open_sets(const Words& words) {
  const std::string folder = data_folder(words.at("data"));
  return {data::open_images(folder, data::Split::train),
          data::open_images(folder, split_of(words.at("split")))};
}

bool holds_checkpoints(const std::string& run) {
  std::error_code none;
  const fs::path folder = fs::path(run) / "checkpoints";
  return fs::is_directory(folder, none) && !fs::is_empty(folder, none);
}

/// The words of this run: resumed where there is something to resume.
Words words_of_run(const Train& verb, const std::string& run, bool resumes) {
  if (resumes) return resumed_words(read_config(run).words, verb.words);
  if (holds_checkpoints(run)) {
    throw Misuse(fmt::format("{} holds a run already", shown(run)),
                 "--resume goes on with it; a new one needs another folder");
  }
  return resolved_words(verb.words);
}

int report(const Train& verb, const std::string& run, const train::Outcome& outcome) {
  if (verb.common.json) {
    Json result{{"run", run},
                {"steps", outcome.steps},
                {"finished", outcome.finished},
                {"loss", outcome.loss},
                {"seconds", outcome.seconds},
                {"images_per_second", outcome.per_second}};
    for (const auto& [name, value] : outcome.scores) result[name] = value;
    print_json(result);
    return 0;
  }
  if (verb.common.quiet) return 0;
  if (!outcome.finished) {
    fmt::print("{}: stopped and saved at step {}; --resume goes on\n", run, outcome.steps);
    return 0;
  }
  std::string text =
      fmt::format("{}: {} steps, {}", run, outcome.steps, seconds_text(outcome.seconds));
  for (const auto& [name, value] : outcome.scores) text += fmt::format(", {} {:.4f}", name, value);
  fmt::print("{}\n", text);
  return 0;
}

std::string weights_of(const std::string& run, bool ema) {
  const std::string folder = train::last_checkpoint(run);
  if (folder.empty()) throw FileError(fmt::format("{}: has no whole checkpoint", shown(run)));
  const std::string file = folder + (ema ? "/ema.safetensors" : "/model.safetensors");
  if (!fs::is_regular_file(file))
    throw FileError(fmt::format("{}: is not there; the run keeps no average (--ema)", file));
  return file;
}

}  // namespace

int run_torch(const Train& verb) {
  const std::string& run = verb.words.at("run");
  const bool resumes = verb.words.count("resume") > 0 && has_config(run);
  const Words words = words_of_run(verb, run, resumes);
  const Sets sets = open_sets(words);
  const RunData data{train::facts_of(sets.train), sets.train.size(), sets.valid.size()};
  if (resumes) check_same_data(run, read_config(run).data, data);
  train::ImageTraining training = training_of(words, verb.common);
  training.run.folder = run;
  training.run.resume = resumes;
  const bool shows = !verb.common.json && !verb.common.quiet;
  const Stoppable stoppable;
  const auto told = [&](const train::Line& line) {
    if (shows) show(line);
    return told_to_stop == 0;
  };
  if (!resumes) write_config(run, {words, data});
  return report(verb, run, train::train_images(training, sets.train, sets.valid, told));
}

int run_torch(const Eval& verb) {
  const RunConfig config = read_config(verb.run);
  Words words = config.words;
  for (const char* flag : {"data", "split", "batch", "workers"}) {
    if (verb.words.count(flag) > 0) words[flag] = verb.words.at(flag);
  }
  const bool ema = verb.words.count("ema") > 0;
  const std::string weights = weights_of(verb.run, ema);
  const data::ImageSet set =
      data::open_images(data_folder(words.at("data")), split_of(words.at("split")));
  const train::ImageTraining training = training_of(words, verb.common);
  const train::Scores scores =
      train::evaluate_images(training.model, weights, config.data.facts, set, training.input);
  if (verb.common.json) {
    Json result{{"run", verb.run}, {"weights", weights}, {"split", words.at("split")}};
    for (const auto& [name, value] : scores) result[name] = value;
    print_json(result);
    return 0;
  }
  fmt::print("top-1 {:.2f} %, top-5 {:.2f} %, loss {:.4f}{}\n", 100 * scores.at("top1"),
             100 * scores.at("top5"), scores.at("valid_loss"),
             verb.common.quiet ? ""
                               : fmt::format(" over {:.0f} images of {} ({})", scores.at("count"),
                                             words.at("split"), weights));
  return 0;
}

}  // namespace foci::cli
