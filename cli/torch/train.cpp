// SPDX-License-Identifier: Apache-2.0
// foci train and foci eval: data and flags to the library, its lines to the terminal.
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/corrupt.hpp"
#include "cli/torch/judge_images.hpp"
#include "cli/torch/records.hpp"
#include "cli/torch/run.hpp"
#include "cli/torch/tasks.hpp"
#include "cli/torch/text_weights.hpp"

#include <foci/dist.hpp>
#include <foci/error.hpp>
#include <foci/run_lock.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

volatile std::sig_atomic_t told_to_stop = 0;

/// SIGTERM, Ctrl-C and Slurm's SIGUSR1 wait for the end of a step, of opening the data before the
/// first; afterwards they are as they were.
class Stoppable {
 public:
  Stoppable() {
    told_to_stop = 0;
    for (int i = 0; i < 3; ++i) before_[i] = std::signal(signals[i], [](int) { told_to_stop = 1; });
  }
  ~Stoppable() {
    for (int i = 0; i < 3; ++i) std::signal(signals[i], before_[i]);
  }
  Stoppable(const Stoppable&) = delete;
  Stoppable& operator=(const Stoppable&) = delete;

 private:
  static constexpr int signals[] = {SIGTERM, SIGINT, SIGUSR1};
  void (*before_[3])(int) = {};
};

std::string text_of(const train::Line& line, const TaskKind& task) {
  std::string text =
      fmt::format("step {} of {}  loss {:.4f}  rate {:.2e}  {:.0f} {}/s  {}  {}", line.step,
                  line.steps, line.loss, line.rate, line.per_second, task.samples,
                  bytes_text(std::size_t(line.memory)), time_left(line.left));
  for (const auto& [name, value] : line.scores) text += fmt::format("  {} {:.4f}", name, value);
  return text;
}

/// One line a step: written over on a terminal, where only judged steps stay.
void show(const train::Line& line, const TaskKind& task) {
  const std::string text = text_of(line, task);
  if (!can_move()) {
    fmt::print(stderr, "{}\n", text);
    return;
  }
  fmt::print(stderr, "\r\x1b[K{}{}", text.substr(0, terminal_columns() - 1),
             line.scores.empty() ? "" : "\n");
  std::fflush(stderr);
}

std::string machine_of(const Common& common) {
  return common.cuda ? gpu_machine_text() : machine_text();
}

bool holds_checkpoints(const std::string& run) {
  std::error_code none;
  const fs::path folder = fs::path(run) / "checkpoints";
  return fs::is_directory(folder, none) && !fs::is_empty(folder, none);
}

void check_empty(const std::string& run) {
  if (!holds_checkpoints(run)) return;
  throw Misuse(fmt::format("{} holds a run already", shown(run)),
               "--resume goes on with it; a new one needs another folder");
}

/// Says that --resume found nothing to go on with; without data there is nothing to begin with.
void begin_instead(const Train& verb, const std::string& run) {
  if (verb.words.count("resume") == 0) return;
  if (verb.words.count("data") == 0 && verb.words.count("preset") == 0) {
    throw Misuse(fmt::format("{}: there is no run to resume", shown(run)),
                 "with --data, --resume begins a new one");
  }
  if (verb.common.quiet || verb.common.json) return;
  fmt::print(stderr, "{}: nothing to resume; begins\n", shown(run));
}

/// The words of this run: resumed where there is something to resume.
Words words_of_run(const Train& verb, const std::string& run, bool resumes) {
  if (resumes) {
    const RunConfig config = read_config(run);
    if (config.task != verb.task) {
      throw Misuse(fmt::format("{} is a run of {}", shown(run), config.task),
                   fmt::format("foci train {} --run {} --resume goes on", config.task, run));
    }
    return resumed_words(config.words, verb.words);
  }
  check_empty(run);
  begin_instead(verb, run);
  const Words words = resolved_words(verb.task, verb.words);
  return verb.task == "text" ? following_weights(words, verb.words) : words;
}

/// What rank 0 finds in the run's folder is told to all.
Asked shared(const Asked& own, dist::Group* group) {
  Asked asked = own;
  asked.group = group;
  if (group == nullptr) return asked;
  const Json told = Json::parse(
      group->told("words", Json{{"words", own.words}, {"resumes", own.resumes}}.dump()));
  asked.words = told.at("words").get<Words>();
  asked.resumes = told.at("resumes").get<bool>();
  return asked;
}

/// A group, and what began it.
struct Ranks {
  dist::Group* group = nullptr;
  dist::Standing standing = {};
};

/// torchrun has begun it again: one of its processes was lost, or others have joined.
bool begins_again(const dist::Standing& standing, const std::string& run) {
  return standing.restart > 0 || (!standing.job.empty() && job_of(run) == standing.job);
}

/// The words, and rank 0's hold on the folder.
Asked ask(const Train& verb, const Ranks& ranks, std::optional<train::RunLock>& lock) {
  dist::Group* const group = ranks.group;
  Asked asked{.run = verb.words.at("run"), .words = {}, .common = verb.common};
  if (group == nullptr || group->rank() == 0) {
    asked.resumes = has_config(asked.run) &&
                    (verb.words.count("resume") > 0 || begins_again(ranks.standing, asked.run));
    asked.words = words_of_run(verb, asked.run, asked.resumes);
    lock.emplace(asked.run);
    if (!asked.resumes) check_empty(asked.run);  // another process may have ended just now
  }
  return shared(asked, group);
}

/// "launch -n 4 -- train images": how a command of several processes is typed again.
std::string launched(const std::string& command, const dist::Group* group) {
  if (group == nullptr || group->size() == 1) return command;
  return fmt::format("launch -n {} -- {}", group->size(), command);
}

int report(const Train& verb, const std::string& run, const train::Outcome& outcome,
           const std::vector<Record>& records) {
  if (verb.common.json) {
    Json result{{"run", run},
                {"steps", outcome.steps},
                {"finished", outcome.finished},
                {"loss", outcome.loss},
                {"seconds", outcome.seconds},
                {fmt::format("{}_per_second", task_of(verb.task).samples), outcome.per_second},
                {"records", json_of(records)}};
    for (const auto& [name, value] : outcome.scores) result[name] = value;
    print_json(result);
    return 0;
  }
  if (verb.common.quiet) return 0;
  if (!outcome.finished) {
    if (outcome.steps == 0) {
      fmt::print("{}: stopped before its first step; --resume begins\n", run);
      return 0;
    }
    fmt::print("{}: stopped and saved at step {}; --resume goes on\n", run, outcome.steps);
    return 0;
  }
  std::string text =
      fmt::format("{}: {} steps, {}", run, outcome.steps, seconds_text(outcome.seconds));
  for (const auto& [name, value] : outcome.scores) text += fmt::format(", {} {:.4f}", name, value);
  fmt::print("{}\n", text);
  return 0;
}

bool images_alone(const Eval& verb) {
  return verb.words.count("count") + verb.words.count("right") > 0;
}

/// Some images, or each of them by itself.
train::Scores judge_some(const HarmedRun& run) {
  const data::ImageSet set = judged_set(run);
  const Judgement found = judge_each(image_training(run.asked.words, run.asked.common), run.weights,
                                     facts_in(run.asked.run, run.config.data), set);
  keep_right(run.verb, {{"top1", found.right}});
  return found.scores;
}

/// In one process, or in one of a group's, of which rank 0 alone writes and speaks.
int train_in(const Train& verb, const Ranks& ranks) {
  dist::Group* const group = ranks.group;
  const TaskKind& task = task_of(verb.task);
  const bool speaks = group == nullptr || group->rank() == 0;
  const Stoppable stoppable;
  std::optional<train::RunLock> lock;
  Asked asked = ask(verb, ranks, lock);
  asked.stops = [] { return told_to_stop != 0; };
  const std::string& run = asked.run;
  const Job job = task.open(asked);
  if (asked.resumes && speaks) check_same_data(run, read_config(run).data, job.data);
  const bool shows = speaks && !verb.common.json && !verb.common.quiet;
  const auto told = [&](const train::Line& line) {
    if (shows) show(line, task);
    return told_to_stop == 0;
  };
  if (!asked.resumes && speaks)
    write_config(run, {verb.task, asked.words, job.data},
                 {machine_of(verb.common), ranks.standing.job});
  const train::Outcome outcome = job.train(told);
  if (!speaks) return 0;
  std::vector<Record> records;
  if (outcome.finished) {
    Words typed = changed_words(verb.task, asked.words);
    typed["run"] = run;
    if (verb.common.cuda) typed["device"] = "cuda";
    train::Scores scores = outcome.scores;
    scores["count"] = job.data.at("valid").get<double>();
    records = records_of({asked.words, machine_of(verb.common),
                          command_text(launched("train " + verb.task, group), typed)},
                         scores);
    keep_new_records(run, records);
  }
  return report(verb, run, outcome, records);
}

}  // namespace

int run_torch(const Train& verb) {
  const auto standing = dist::standing();
  if (!standing) return train_in(verb, {});
  dist::GroupOptions options;
  options.standing = *standing;
  options.device = verb.common.cuda ? "cuda" : "cpu";
  if (verb.words.count("patience") > 0) options.patience = to_number(verb.words.at("patience"));
  dist::Group group(options);
  try {
    return train_in(verb, {&group, *standing});
  } catch (const std::exception& fault) {
    group.fail(is_want_of_memory(fault) ? "there is not enough memory" : shown(fault.what()));
    // Threads that wait for what will not come are left behind, and nothing of theirs is freed.
    ::on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          ::_exit(status);
        },
        nullptr);
    throw;
  }
}

int run_torch(const Eval& verb) {
  const RunConfig config = read_config(verb.run);
  const TaskKind& task = task_of(config.task);
  Asked asked{verb.run, config.words, verb.common};
  for (const char* flag : {"data", "split", "batch", "workers", "stride"}) {
    if (verb.words.count(flag) == 0) continue;
    if (config.words.count(flag) == 0)
      throw Misuse(fmt::format("a run of {} has no --{}", config.task, flag));
    asked.words[flag] = verb.words.at(flag);
  }
  if (images_alone(verb) && config.task != "images") {
    throw Misuse(fmt::format("--count and --right are for images; {} is a run of {}",
                             shown(verb.run), config.task));
  }
  const std::string weights = weights_of(verb.run, verb.words.count("ema") > 0);
  if (verb.words.count("corrupt") > 0) return judge_harmed({verb, asked, config, weights});
  const train::Scores scores = images_alone(verb) ? judge_some({verb, asked, config, weights})
                                                  : task.judge(asked, config.data, weights);
  const std::string& split = asked.words.at("split");
  auto records = records_of(
      {asked.words, machine_of(verb.common), command_text("eval " + verb.run, verb.words)}, scores);
  doubt_other_data(verb.run, config.words, asked.words, records);
  keep_records(verb.run, records);
  if (verb.common.json) {
    Json result{
        {"run", verb.run}, {"weights", weights}, {"split", split}, {"records", json_of(records)}};
    for (const auto& [name, value] : scores) result[name] = value;
    print_json(result);
    return 0;
  }
  fmt::print("{}{}\n", task.text(scores),
             verb.common.quiet ? ""
                               : fmt::format(" over {:.0f} {} of {} ({})", scores.at("count"),
                                             task.samples, split, weights));
  return 0;
}

}  // namespace foci::cli
