// SPDX-License-Identifier: Apache-2.0
// foci compare: a plan, its data, its runs, and the results after each of them.
#include "cli/compare_doubts.hpp"
#include "cli/compare_table.hpp"
#include "cli/machine.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/compare_data.hpp"
#include "cli/torch/compare_queue.hpp"
#include "cli/torch/compare_ranks.hpp"
#include "cli/torch/compare_timing.hpp"
#include "cli/torch/records.hpp"
#include "cli/torch/run.hpp"
#include "cli/torch/tasks.hpp"
#include "cli/write.hpp"

#include <foci/attention.hpp>
#include <foci/error.hpp>
#include <foci/models.hpp>

#include <fmt/core.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// The folder of a comparison; one that was made for a comparison that was then refused goes again.
class Place {
 public:
  explicit Place(const std::string& folder) : folder(folder) {
    std::error_code fault;
    made_ = fs::create_directories(folder, fault);
    if (fault) throw FileError(fmt::format("{}: {}", shown(folder), fault.message()));
  }
  ~Place() {
    std::error_code fault;
    const fs::directory_iterator inside(folder, fault);
    if (made_ && !fault && std::distance(begin(inside), end(inside)) == 1)  // the lock
      fs::remove_all(folder, fault);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  const std::string folder;

 private:
  bool made_ = false;
};

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What an earlier call took, so that a second one does not start from nothing.
struct Spent {
  double seconds = 0;
  std::int64_t peak_bytes = 0;
};

Spent spent_before(const std::string& path) {
  const Json before = read_json(path);
  const Json seconds = before.is_object() ? before.value("seconds", Json()) : Json();
  const Json bytes = before.is_object() ? before.value("peak_bytes", Json()) : Json();
  if (seconds.is_number() && bytes.is_number()) return {seconds, bytes};
  if (fs::exists(path)) warn(fmt::format("{}: holds no time; it is counted anew", shown(path)));
  return {};
}

class Comparing {
 public:
  Comparing(const Compare& verb, const dist::Standing& standing)
      : verb_(verb),
        plan_(whole_plan(verb)),
        standing_(standing),
        place_(compare_folder(verb)),
        out_(place_.folder),
        held_(out_ + "/lock",
              fmt::format("{}: another foci compare is at work in it", shown(out_))),
        lead_(standing.size > 1
                  ? std::make_unique<CompareLead>(out_, standing.size, compare_patience(verb))
                  : nullptr),
        data_(compare_data(plan_, verb, out_)),
        hidden_(verb.common.json || verb.common.quiet),
        table_(hidden_ ? Show::nothing : Show::progress, std::string(task_of(plan_.task).samples)) {
    site_ = {out_, data_.path, data_.sha256, plan_.steps, 1, verb.common.cuda};
    taken_ = take_checkpoints(plan_, site_);
    const CompareRoom room = compare_room(verb, standing, run_count(plan_));
    jobs_ = room.jobs;
    site_.threads = room.threads;
    spent_ = spent_before(out_ + "/spent.json");
  }

  int go() {
    const StopWish stop;
    CompareSteps steps;
    tell_alone();
    plan_.called = launched() + "compare";
    if (plan_.checkpoints.empty()) {
      const int jobs = jobs_ * standing_.size;
      tell_data();
      check_budget(plan_, site_, jobs);
      timing_ = compare_timing(plan_, site_, jobs_ * standing_.local_size,
                               [&](const std::string& what) { say(what); });
      steps = compare_steps(plan_, site_, timing_, jobs);
      site_.steps = steps.count;
      plan_.words["steps"] = std::to_string(steps.count);  // so that the plan does the same again
    }
    write_whole(out_ + "/plan.json", json_of(plan_).dump(2) + "\n");
    runs_ = compare_runs(plan_, site_);
    bool missing = false;
    for (CompareRun& run : runs_) {
      if (is_done(run)) {
        tell_done(run);
      } else {
        missing = true;
      }
    }
    if (missing && plan_.budget > 0) say(steps.from);
    if (missing) write("running");
    if (lead_ != nullptr) lead_->begin(site_);
    Crew crew(jobs_, compare_place(standing_));
    const bool whole =
        work_off(runs_, crew, lead_.get(), {[&] { renew(); }, [&] { show(); }}, spent_.peak_bytes);
    table_.clear();
    if (missing || since(begin_) > 5) keep_spent();
    const Json results = write(whole ? "done" : "stopped");
    return report(results, whole, missing);
  }

 private:
  void say(const std::string& what) {
    if (!hidden_) fmt::print(stderr, "compare: {}\n", what);
  }

  /// It may be wanted all the same, for the page of one mechanism.
  void tell_alone() {
    std::set<std::string> names;
    for (const Contender& contender : plan_.contenders) names.insert(contender.name);
    if (names.size() > 1) return;
    say(fmt::format("{} alone: there will be nothing to compare it with{}", *names.begin(),
                    taken_.empty() ? "; --mechanisms names several, with commas" : ""));
  }

  /// What was decided by the data.
  void tell_data() {
    if (plan_.split == "valid") {
      say(fmt::format("{} has no test split; models are judged by its valid split",
                      shown(data_.path)));
    }
    if (!data_.inputs.empty()) say(data_.inputs);
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
    const int jobs = jobs_ + (lead_ == nullptr ? 0 : lead_->jobs());
    if (done > 0) return taken / done * missing / jobs;
    return plan_.budget > 0 ? std::max(1.0, plan_.budget - since(begin_)) : 0;
  }

  void show() {
    std::vector<RunState> states;
    for (const CompareRun& run : runs_) states.push_back(run.state);
    table_.at(states, left(), best_, StopWish::wished());
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

  std::string launched() const {
    return standing_.size > 1 ? fmt::format("launch -n {} -- ", standing_.size) : "";
  }

  std::string at_once() const {
    const std::string here = fmt::format("{}, each with {} thread{}", jobs_, site_.threads,
                                         site_.threads == 1 ? "" : "s");
    return standing_.size > 1 ? fmt::format("{}, on each of {} ranks", here, standing_.size) : here;
  }

  /// Of a set of samples; a text has no epochs.
  Json epochs_of(const Json& data) const {
    if (plan_.task == "text" || !taken_.empty()) return {};
    const Words words =
        with_defaults(plan_.task, train_words(plan_, site_, plan_.contenders[0], 0));
    const double batch = double(to_count(words.at("batch")) * to_count(words.at("accumulate")));
    return epochs_json(site_.steps, batch, data.value("train", Json()));
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
    const std::string why = demonstration_reason(plan_.seeds.size(), compare::bootstrap_seeds,
                                                 plan_.budget, taken_.empty());
    const Json epochs = epochs_of(data);
    Words typed = verb_.words;
    all.facts = {{"title", fmt::format("{} on {}", listed(names), plan_.words.at("data"))},
                 {"task", plan_.task},
                 {"state", state},
                 {"demonstration", !why.empty()},
                 {"demonstration_because", why},
                 {"steps", site_.steps > 0 ? Json(site_.steps) : Json()},
                 {"epochs", epochs},
                 {"seconds", spent_.seconds + (state == "running" ? since(counted_) : 0)},
                 {"peak_bytes", spent_.peak_bytes},
                 {"budget_seconds", plan_.budget > 0 ? Json(plan_.budget) : Json()},
                 {"command", command_text(launched() + "compare", typed)},
                 {"commit", commit_text()},
                 {"machine", verb_.common.cuda ? gpu_machine_text_apart() : machine_text()},
                 {"environment",
                  {{"foci", std::string(version())},
                   {"torch", TORCH_VERSION},
                   {"instructions", listed(instruction_sets())},
                   {"runs at once", at_once()}}},
                 {"data", data},
                 {"model", model_json(done)},
                 {"plan", json_of(plan_)},
                 {"reproduce", again_command(plan_, out_)},
                 {"reproduce_flags", flags_command(plan_, data_.made_by)},
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
      const auto done = std::count_if(runs_.begin(), runs_.end(), [](const CompareRun& run) {
        return run.state.state == "done";
      });
      fmt::print("{}: stopped; the same command goes on ({} of {} runs are done)\n", out_, done,
                 runs_.size());
      return failed > 0 ? 1 : 0;
    }
    if (!verb_.common.quiet) print_results(results);
    if (!verb_.common.quiet) fmt::print("\n");
    const std::string steps = steps_text(results);
    fmt::print("{} run{}{}{}{}; {} in all, {} of memory at most\n", runs_.size(),
               runs_.size() == 1 ? "" : "s",
               failed > 0 ? fmt::format(", {} failed", failed)
               : !missing ? ", all there already"
                          : "",
               steps.empty() ? "" : ", ", steps, duration_text(spent_.seconds),
               bytes_text(std::size_t(spent_.peak_bytes)));
    fmt::print("page: {}/report.html\n", out_);
    return failed > 0 ? 1 : 0;
  }

  const Compare& verb_;
  ComparePlan plan_;
  dist::Standing standing_;
  Place place_;
  std::string out_;
  Hold held_;
  std::unique_ptr<CompareLead> lead_;  // where there are several ranks
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
  const dist::Standing standing = compare_standing(verb);
  try {
    if (standing.rank > 0) return follow_compare(verb, standing);
    Comparing comparing(verb, standing);
    return comparing.go();
  } catch (const Stopped&) {
    if (!verb.common.json) fmt::print("stopped; the same command goes on\n");
    return 0;
  }
}

}  // namespace foci::cli
