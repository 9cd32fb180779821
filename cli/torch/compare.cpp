// SPDX-License-Identifier: Apache-2.0
// foci compare: a plan, its data, its runs, and the results after each of them.
#include "cli/compare_table.hpp"
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/compare_data.hpp"
#include "cli/torch/compare_queue.hpp"
#include "cli/torch/compare_timing.hpp"
#include "cli/torch/records.hpp"
#include "cli/torch/run.hpp"
#include "cli/torch/tasks.hpp"

#include <foci/attention.hpp>
#include <foci/error.hpp>
#include <foci/models.hpp>

#include <fmt/core.h>
#include <torch/version.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// A folder that one comparison at a time works in; a process that ends, however, lets go of it.
class Held {
 public:
  explicit Held(const std::string& folder) {
    std::error_code fault;
    fs::create_directories(folder, fault);
    if (fault) throw FileError(fmt::format("{}: {}", shown(folder), fault.message()));
    const std::string path = folder + "/lock";
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (file_ >= 0 && ::fcntl(file_, F_SETLK, &whole) == 0) return;
    if (file_ >= 0) ::close(file_);
    throw FileError(fmt::format("{}: another foci compare is at work in it", shown(folder)));
  }
  ~Held() { ::close(file_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  int file_ = -1;  // the lock is the process's own: forks have none
};

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What an earlier call took, so that a second one does not start from nothing.
struct Spent {
  double seconds = 0;
  std::int64_t peak_bytes = 0;
};

class Comparing {
 public:
  explicit Comparing(const Compare& verb)
      : verb_(verb),
        plan_(plan_of(verb)),
        out_(verb.words.count("out") > 0 ? verb.words.at("out") : "compare"),
        held_(out_),
        data_(compare_data(plan_, verb, out_)),
        hidden_(verb.common.json || verb.common.quiet),
        table_(hidden_ ? Show::nothing : Show::progress, std::string(task_of(plan_.task).samples)) {
    take_checkpoints();
    const int cores = verb.common.threads > 0 ? verb.common.threads : cpu_cores();
    const int all = int(plan_.contenders.size() * plan_.seeds.size());
    const int asked = verb.words.count("jobs") > 0 ? int(to_count(verb.words.at("jobs"))) : 0;
    jobs_ = std::max(1, std::min(all, asked > 0 ? asked : verb.common.cuda ? 1 : cores));
    site_ = {
        out_, data_.path, data_.sha256, plan_.steps, std::max(1, cores / jobs_), verb.common.cuda};
    const Json before = read_json(out_ + "/spent.json");
    if (before.is_object())
      spent_ = {before.value("seconds", 0.0), before.value("peak_bytes", std::int64_t(0))};
  }

  int go() {
    const StopWish stop;
    write_whole(out_ + "/plan.json", json_of(plan_).dump(2) + "\n");
    if (plan_.checkpoints.empty()) {
      timing_ = compare_timing(plan_, site_, jobs_, [&](const std::string& what) { say(what); });
      site_.steps = compare_steps(plan_, site_, timing_, jobs_);
    }
    runs_ = compare_runs(plan_, site_);
    bool missing = false;
    for (CompareRun& run : runs_) {
      if (is_done(run)) {
        tell_done(run);
      } else {
        missing = true;
      }
    }
    if (missing) write("running");
    const bool whole =
        work_off(runs_, jobs_, {[&] { renew(); }, [&] { show(); }}, spent_.peak_bytes);
    table_.clear();
    if (missing || since(begin_) > 5) keep_spent();
    const Json results = write(whole ? "done" : "running");
    return report(results, whole, missing);
  }

 private:
  /// Contenders and seeds are then those of the runs.
  void take_checkpoints() {
    if (plan_.checkpoints.empty()) return;
    plan_.contenders.clear();
    plan_.seeds.clear();
    for (std::string& source : plan_.checkpoints) {
      while (source.size() > 1 && source.back() == '/') source.pop_back();
      const RunFacts facts = run_facts(source);
      if (facts.task != plan_.task) {
        throw FileError(fmt::format("{} is a run of {}; --task {} compares {}", shown(source),
                                    facts.task, plan_.words.at("task"), plan_.task));
      }
      const auto sum = data::fingerprint_of(data_path(facts.words.at("data"))).sha256;
      if (sum != data_.sha256) {
        throw FileError(
            fmt::format("{} was trained on other data than {}", shown(source), shown(data_.path)));
      }
      taken_.push_back(facts);
      const auto seed = std::uint64_t(to_count(facts.words.at("seed")));
      if (std::find(plan_.seeds.begin(), plan_.seeds.end(), seed) == plan_.seeds.end())
        plan_.seeds.push_back(seed);
    }
    const std::vector<std::string> names = mechanism_names(taken_);
    std::set<std::pair<std::string, std::string>> seen;
    for (std::size_t i = 0; i < names.size(); ++i) {
      Words words = taken_[i].words;
      if (!seen.insert({names[i], words.at("seed")}).second) {
        throw Misuse(
            fmt::format("{} has the flags and the seed of another run", shown(taken_[i].folder)),
            "leave one of them out");
      }
      std::erase_if(words, [](const auto& word) {
        return word.first != "metric" && word.first != "weighting" && !is_of_mechanism(word.first);
      });
      plan_.contenders.push_back({names[i], words});
    }
  }

  void say(const std::string& what) {
    if (!hidden_) fmt::print(stderr, "compare: {}\n", what);
  }

  /// After each step of a run, so that a kill forgets neither its results nor its time.
  void renew() {
    keep_spent();
    write("running");
  }

  void keep_spent() {
    spent_.seconds += since(counted_);
    counted_ = Clock::now();
    write_whole(
        out_ + "/spent.json",
        Json({{"seconds", spent_.seconds}, {"peak_bytes", spent_.peak_bytes}}).dump() + "\n");
  }

  double left() const {
    double done = 0, taken = 0, missing = 0;
    for (const CompareRun& run : runs_) {
      if (run.state.state == "done" && run.state.seconds > 0) {
        ++done;
        taken += run.state.seconds;
      }
      if (run.state.state == "waiting") missing += 1;
      if (run.state.state == "running") missing += 0.5;
    }
    if (done > 0) return taken / done * missing / jobs_;
    return plan_.budget > 0 ? std::max(1.0, plan_.budget - since(begin_)) : 0;
  }

  void show() {
    std::vector<RunState> states;
    for (const CompareRun& run : runs_) states.push_back(run.state);
    table_.at(states, left(), best_);
  }

  /// The mechanism whose finished runs are best by the first measure.
  void find_best(const Json& results) {
    best_.clear();
    if (results.at("measures").empty()) return;
    const Json& measure = results.at("measures")[0];
    if (measure.at("group") != "accuracy") return;
    const double sign = measure.at("better") == "lower" ? -1 : 1;
    double most = -HUGE_VAL;
    for (const auto& [name, mean] : measure.at("mean").items()) {
      if (!mean.is_number() || sign * mean.get<double>() <= most) continue;
      most = sign * mean.get<double>();
      best_ = measure.at("unit") == "share" ? fmt::format("{} {:.1f} %", name, 100 * std::abs(most))
                                            : fmt::format("{} {:.4g}", name, std::abs(most));
    }
  }

  Json model_json(const std::string& run) const {
    const Words words =
        taken_.empty() ? with_defaults(plan_.task, train_words(plan_, site_, plan_.contenders[0],
                                                               plan_.seeds[0]))
                       : taken_[0].words;
    Json model{{"name", words.at("model")},
               {"parameters", Json()},
               {"multiply_adds", Json()},
               {"words", json_of(words)}};
    const std::string folder = train::last_checkpoint(run);
    if (!folder.empty()) model["parameters"] = parameters_in(folder + "/model.safetensors");
    return model;
  }

  /// Numbers of a run's config.json that the data is told by.
  void add_counts(Json& data, const std::string& run) const {
    const Json config = read_json(run + "/config.json");
    if (!config.is_object()) return;
    const Json counts = config.value("data", Json::object());
    if (counts.contains("train")) data["train"] = counts["train"];
    if (data["judged"].is_null() && counts.contains("valid")) data["judged"] = counts["valid"];
  }

  Comparison compared(const std::string& state) const {
    Comparison all;
    std::vector<std::string> names;
    for (const Contender& contender : plan_.contenders) {
      if (std::find(names.begin(), names.end(), contender.name) != names.end()) continue;
      names.push_back(contender.name);
      all.mechanisms.push_back(
          {contender.name, about(contender), is_control(contender), contender.words});
    }
    all.seeds = plan_.seeds;
    std::string done;
    for (const CompareRun& run : runs_) {
      ComparedRun one{run.state, found_of(run), curve_of(run.folder)};
      const auto place = std::find(plan_.seeds.begin(), plan_.seeds.end(), run.state.seed);
      for (const Record& record : speed_records(plan_, site_, timing_, run.state.mechanism,
                                                std::size_t(place - plan_.seeds.begin())))
        one.found.records.push_back(record);
      if (run.state.state == "done") done = run.folder;
      all.runs.push_back(std::move(one));
    }
    Json data = data_.facts;
    if (!done.empty()) add_counts(data, done);
    const bool few = int(plan_.seeds.size()) < compare::bootstrap_seeds;
    Words typed = verb_.words;
    all.facts = {{"title", fmt::format("{} on {}", listed(names), plan_.words.at("data"))},
                 {"task", plan_.task},
                 {"state", state},
                 {"demonstration", few || (plan_.budget > 0 && plan_.budget < 1800)},
                 {"seconds", spent_.seconds + (state == "running" ? since(counted_) : 0)},
                 {"peak_bytes", spent_.peak_bytes},
                 {"budget_seconds", plan_.budget > 0 ? Json(plan_.budget) : Json()},
                 {"command", command_text("compare", typed)},
                 {"commit", commit_text()},
                 {"machine", verb_.common.cuda ? gpu_machine_text() : machine_text()},
                 {"environment",
                  {{"foci", std::string(version())},
                   {"torch", TORCH_VERSION},
                   {"instructions", listed(instruction_sets())},
                   {"runs at once", fmt::format("{} of {} threads", jobs_, site_.threads)}}},
                 {"data", data},
                 {"model", model_json(done)},
                 {"plan", json_of(plan_)},
                 {"reproduce", fmt::format("foci compare --plan {}/plan.json --out again", out_)},
                 {"flags", data_.flags}};
    return all;
  }

  Json write(const std::string& state) {
    const Comparison all = compared(state);
    Json results = results_json(all);
    find_best(results);
    write_results(out_, all, results);
    return results;
  }

  int report(const Json& results, bool whole, bool missing) const {
    int failed = 0;
    for (const CompareRun& run : runs_) {
      if (run.state.state != "failed") continue;
      ++failed;
      warn(fmt::format("{} failed: {}", run.state.folder, run.state.error));
    }
    if (verb_.common.json) {
      print_json(results);
      return failed > 0 ? 1 : 0;
    }
    if (!whole) {
      fmt::print("{}: stopped; the same command goes on\n", out_);
      return 0;
    }
    if (!verb_.common.quiet) print_results(results);
    if (!verb_.common.quiet) fmt::print("\n");
    fmt::print("{} runs{}, {} steps each; {} in all, {} of memory at most\n", runs_.size(),
               failed > 0 ? fmt::format(", {} failed", failed)
               : !missing ? ", all there already"
                          : "",
               site_.steps, duration_text(spent_.seconds),
               bytes_text(std::size_t(spent_.peak_bytes)));
    fmt::print("page: {}/report.html\n", out_);
    return failed > 0 ? 1 : 0;
  }

  const Compare& verb_;
  ComparePlan plan_;
  std::string out_;
  Held held_;
  CompareData data_;
  bool hidden_;
  LiveTable table_;
  Clock::time_point begin_ = Clock::now(), counted_ = begin_;  // spent_ has all before the latter
  CompareSite site_;
  CompareTiming timing_;
  std::vector<CompareRun> runs_;
  std::vector<RunFacts> taken_;  // of --checkpoint
  Spent spent_;
  std::string best_;
  int jobs_ = 1;
};

}  // namespace

int run_torch(const Compare& verb) {
  Comparing comparing(verb);
  try {
    return comparing.go();
  } catch (const Stopped&) {
    if (!verb.common.json) fmt::print("stopped; the same command goes on\n");
    return 0;
  }
}

}  // namespace foci::cli
