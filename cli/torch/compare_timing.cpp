// SPDX-License-Identifier: Apache-2.0
// Short runs that are ended as soon as they have shown their rate.
#include "cli/torch/compare_timing.hpp"

#include "cli/machine.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/compare_costs.hpp"
#include "cli/torch/compare_queue.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t timed_steps = 100000;
constexpr std::size_t first_timed = 2;  // what comes before is warming up
constexpr double patience = 600;
constexpr double long_seconds = 4;  // of steps so slow that warming up no longer counts
constexpr double slow_step = 1;     // seconds; one step tells enough
constexpr double warming = 2;       // such a first step takes longer than others, at most by this
constexpr double calm = 0.1;        // turns of one mechanism differ by less, as a share
constexpr auto glance = std::chrono::milliseconds(20);

struct Rate {
  double per_second = 0, mebibytes = 0;
  std::int64_t samples = 0;
};

/// Seconds between two lines: as their times say, unless the clock was set meanwhile, which the
/// steps' own seconds show; a line's rate is over all steps up to it.
double seconds_between(const MetricsLine& from, const MetricsLine& to, double batch) {
  const auto worked_until = [&](const MetricsLine& line) {
    return double(line.step) * batch / std::max(line.per_second, 1e-9);
  };
  const double seconds = to.time - from.time, worked = worked_until(to) - worked_until(from);
  return seconds < 0.9 * worked || seconds > 2 * worked + 1 ? worked : seconds;
}

/// Of a run that has just begun; nothing while it is too early to say.
bool knows(const std::string& folder, double batch, Rate& rate) {
  const auto lines = metrics_of(folder);
  if (lines.size() < 2) return false;
  const MetricsLine& first = lines[lines.size() < first_timed + 3 ? 0 : first_timed - 1];
  const double seconds = seconds_between(first, lines.back(), batch);
  if (lines.size() < first_timed + 3 && seconds < long_seconds) return false;
  if (seconds < least_timed_seconds && lines.size() < 60) return false;
  const double steps = double(lines.back().step - first.step);
  rate.samples = std::int64_t(steps * batch);
  rate.per_second = steps * batch / std::max(seconds, 1e-9);
  for (const MetricsLine& line : lines)
    rate.mebibytes = std::max(rate.mebibytes, double(line.memory) / 0x1p20);
  return true;
}

/// The fault in a log, without the hint that may stand below it.
std::string fault_in(const std::string& path) {
  std::ifstream file(path);
  std::string line, last = "no word why";
  while (std::getline(file, line)) {
    if (line.starts_with("foci: ") && !line.starts_with("foci: hint: ")) last = line.substr(6);
  }
  return last;
}

/// A fault of the data is no mechanism's.
[[noreturn]] void cannot_train(const CompareSite& site, const Contender& contender,
                               const std::string& fault) {
  if (fault.starts_with(site.data + "/") || fault.starts_with(site.data + ":"))
    throw FileError(fault);
  // "4 images make no step of 16; a smaller batch does", as foci train says it of its --batch.
  const bool few = fault.ends_with("; a smaller batch does");
  throw Error(fmt::format("{} cannot be trained: {}{}", contender.name, fault,
                          few ? ": --model batch=" + fault.substr(0, fault.find(' ')) : ""));
}

/// A line of the command that is timed.
std::vector<std::string> timed_arguments(const ComparePlan& plan, CompareSite site,
                                         const Contender& contender, const std::string& folder) {
  site.steps = timed_steps;
  Words words = train_words(plan, site, contender, plan.seeds[0]);
  words["warmup"] = "10";
  words["save-every"] = words["evaluate-every"] = std::to_string(timed_steps);
  return train_arguments(plan.task, words, folder, site);
}

/// A folder that is there as long as this.
struct Passing {
  ~Passing() {
    std::error_code fault;
    fs::remove_all(folder, fault);
  }
  const std::string folder;
};

/// Told the rate of a first step that is slow.
using Seen = std::function<void(double)>;

/// So many of the same at once; the mean of their rates.
Rate timed(const ComparePlan& plan, const CompareSite& site, const Contender& contender, int runs,
           const Seen& seen) {
  const Words words = with_defaults(plan.task, train_words(plan, site, contender, 0));
  const double batch = double(to_count(words.at("batch")) * to_count(words.at("accumulate")));
  const Passing place{site.out + "/timing"};
  std::vector<Fork> forks;
  std::vector<std::string> folders;
  std::vector<Rate> rates;
  rates.resize(std::size_t(runs));
  for (int i = 0; i < runs; ++i) {
    folders.push_back(fmt::format("{}/{}", place.folder, i));
    fs::remove_all(folders.back());
    fs::create_directories(folders.back());
    const auto arguments = timed_arguments(plan, site, contender, folders.back());
    forks.emplace_back([arguments] { return run_command(arguments); }, folders.back() + "/log.txt");
  }
  const auto begin = Clock::now();
  for (bool all = false; !all;) {
    std::this_thread::sleep_for(glance);
    all = true;
    for (std::size_t i = 0; i < forks.size(); ++i) {
      all = knows(folders[i], batch, rates[i]) && all;
      if (rates[i].samples > 0) continue;
      const auto lines = metrics_of(folders[i]);
      if (!lines.empty() && batch > slow_step * lines.front().per_second)
        seen(lines.front().per_second);
      if (forks[i].status() < 0) continue;
      cannot_train(site, contender, fault_in(folders[i] + "/log.txt"));
    }
    if (StopWish::wished()) throw Stopped{};
    if (std::chrono::duration<double>(Clock::now() - begin).count() > patience)
      throw Error(fmt::format("{} took no step in {:.0f} s", contender.name, patience));
  }
  Rate mean;
  for (const Rate& rate : rates) {
    mean.per_second += rate.per_second / runs;
    mean.mebibytes = std::max(mean.mebibytes, rate.mebibytes);
    mean.samples = rate.samples;
  }
  return mean;
}

/// What decides a speed, without the mechanism.
std::string timing_key(const ComparePlan& plan, const CompareSite& site) {
  Words words = with_defaults(plan.task, train_words(plan, site, {"", {{"metric", "dot"}}}, 0));
  for (const char* flag : {"data", "steps", "warmup", "save-every", "evaluate-every"})
    words.erase(flag);
  return data::sha256_of_text(Json({{"task", plan.task},
                                    {"words", json_of(words)},
                                    {"data", site.data_sha256},
                                    {"cuda", site.cuda},
                                    {"machine", machine_text()}})
                                  .dump());
}

std::string timing_path(const CompareSite& site) { return site.out + "/timing.json"; }

bool is_list_of_numbers(const Json& json) {
  return json.is_array() &&
         std::all_of(json.begin(), json.end(), [](const Json& one) { return one.is_number(); });
}

/// As keep() and compare_steps() write it.
bool is_timing(const Json& json) {
  const auto lacks = [](const Json& of, const char* name, auto is) {
    return of.contains(name) && !is(of.at(name));
  };
  const auto is_number = [](const Json& one) { return one.is_number(); };
  const auto is_text = [](const Json& one) { return one.is_string(); };
  if (!json.is_object() || !json.contains("key") || !json.value("speeds", Json()).is_object())
    return false;
  for (const char* text : {"key", "budget"}) {
    if (lacks(json, text, is_text)) return false;
  }
  for (const char* number : {"together", "seconds", "steps"}) {
    if (lacks(json, number, is_number)) return false;
  }
  if (json.contains("budget") && !json.contains("steps")) return false;
  return std::all_of(json.at("speeds").begin(), json.at("speeds").end(), [&](const Json& speed) {
    return speed.is_object() && is_list_of_numbers(speed.value("per_second", Json())) &&
           is_list_of_numbers(speed.value("mebibytes", Json())) &&
           speed.at("mebibytes").size() == speed.at("per_second").size() &&
           !lacks(speed, "round", is_list_of_numbers) &&
           speed.value("samples", Json()).is_number() && speed.value("command", Json()).is_string();
  });
}

Json stored_timing(const ComparePlan& plan, const CompareSite& site) {
  Json stored = read_json(timing_path(site));
  if (is_timing(stored) && stored.at("key") == timing_key(plan, site)) return stored;
  return {{"key", timing_key(plan, site)}, {"speeds", Json::object()}};
}

/// Whether the number of steps does not hang on what is timed now.
bool is_settled(const ComparePlan& plan, const CompareSite& site) {
  return plan.steps > 0 || stored_timing(plan, site).value("budget", "") == plan.words.at("budget");
}

CompareTiming timing_in(const Json& stored) {
  CompareTiming timing;
  for (const auto& [name, speed] : stored.at("speeds").items()) {
    timing.speeds[name] = {speed.at("per_second").get<std::vector<double>>(),
                           speed.at("mebibytes").get<std::vector<double>>(),
                           speed.value("round", std::vector<double>()),
                           speed.at("samples").get<std::int64_t>(),
                           speed.at("command").get<std::string>()};
  }
  timing.together = stored.value("together", 0.0);
  timing.seconds = stored.value("seconds", 0.0);
  return timing;
}

void keep(const ComparePlan& plan, const CompareSite& site, const CompareTiming& timing) {
  Json stored = stored_timing(plan, site);
  for (const auto& [name, speed] : timing.speeds) {
    stored["speeds"][name] = {{"per_second", speed.per_second},
                              {"mebibytes", speed.mebibytes},
                              {"round", speed.round},
                              {"samples", speed.samples},
                              {"command", speed.command}};
  }
  stored["together"] = timing.together;
  stored["seconds"] = timing.seconds;
  write_whole(timing_path(site), stored.dump(1) + "\n");
}

/// The first of the turns that some mechanism lacks, or was timed in apart from the others.
std::size_t whole_turns(const ComparePlan& plan, const CompareTiming& timing) {
  const auto round = [](const TrainSpeed& speed, std::size_t turn) {
    return turn < speed.round.size() ? speed.round[turn] : 0.0;
  };
  for (std::size_t turn = 0;; ++turn) {
    const auto first = timing.speeds.find(plan.contenders[0].name);
    for (const Contender& contender : plan.contenders) {
      const auto found = timing.speeds.find(contender.name);
      if (turn >= plan.seeds.size() || found == timing.speeds.end() ||
          found->second.per_second.size() <= turn ||
          round(found->second, turn) != round(first->second, turn))
        return turn;
    }
  }
}

}  // namespace

void check_budget(const ComparePlan& plan, const CompareSite& site, int jobs) {
  if (is_settled(plan, site)) return;
  CompareReckoning(plan, site, jobs).check();
}

CompareTiming compare_timing(const ComparePlan& plan, const CompareSite& site, int jobs,
                             const std::function<void(const std::string&)>& now) {
  if (fs::exists(timing_path(site)) && !is_timing(read_json(timing_path(site))))
    warn(fmt::format("{}: holds no timing; it is measured anew", shown(timing_path(site))));
  CompareTiming timing = timing_in(stored_timing(plan, site));
  const double before = timing.seconds;
  const auto begin = Clock::now();
  CompareSite alone = site;
  alone.threads = site.threads * jobs;
  const bool settled = is_settled(plan, site);
  const CompareReckoning reckoning(plan, site, jobs);
  const auto count_time = [&] {
    timing.seconds = before + std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto check = [&] {
    count_time();
    if (settled || reckoning.estimate(timing).steps >= least_steps) return;
    keep(plan, site, timing);
    reckoning.refuse(timing);
  };
  if (timing.together <= 0) {
    now("timing runs side by side");
    const auto seen = [&](double per_second) {
      count_time();
      CompareTiming at_best = timing, at_first = timing;
      at_best.together = warming * per_second;
      at_first.together = per_second;
      if (!settled && reckoning.estimate(at_best).steps < least_steps) reckoning.refuse(at_first);
    };
    timing.together = timed(plan, site, plan.contenders[0], jobs, seen).per_second;
    check();
  }
  const std::size_t turns = plan.seeds.size();
  for (std::size_t turn = whole_turns(plan, timing); turn < turns; ++turn) {
    const double round = double(std::time(nullptr)) + double(turn) / 1024;
    for (const Contender& contender : plan.contenders) {
      TrainSpeed& speed = timing.speeds[contender.name];
      now(fmt::format("timing {}, turn {} of {}", contender.name, turn + 1, turns));
      const Rate rate = timed(plan, alone, contender, 1, [](double) {});
      for (auto* values : {&speed.per_second, &speed.mebibytes, &speed.round})
        values->resize(turn + 1);  // what came later was timed with others
      speed.per_second[turn] = rate.per_second;
      speed.mebibytes[turn] = rate.mebibytes;
      speed.round[turn] = round;
      speed.samples = rate.samples;
      speed.command = "foci " + listed(timed_arguments(plan, alone, contender, "timing"), " ");
      check();
    }
  }
  if (timing.seconds > before) keep(plan, site, timing);
  return timing;
}

CompareSteps compare_steps(const ComparePlan& plan, const CompareSite& site,
                           const CompareTiming& timing, int jobs) {
  if (plan.steps > 0) return {plan.steps, fmt::format("{} steps a run, as asked for", plan.steps)};
  Json stored = stored_timing(plan, site);
  const std::string budget = plan.words.at("budget");
  if (stored.value("budget", "") == budget) {
    const auto steps = stored.at("steps").get<std::int64_t>();
    return {steps, fmt::format("{} steps a run, which {} keeps for --budget {}", steps,
                               timing_path(site), budget)};
  }
  const CompareReckoning reckoning(plan, site, jobs);
  const CompareEstimate estimate = reckoning.estimate(timing);
  if (estimate.steps < least_steps) reckoning.refuse(timing);
  CompareCosts costs = estimate.costs;
  std::int64_t steps = estimate.steps;
  if (steps > 50) steps -= steps % 10;
  costs.training = double(steps) * estimate.a_step;
  stored["budget"] = budget;
  stored["steps"] = steps;
  write_whole(timing_path(site), stored.dump(1) + "\n");
  return {steps,
          fmt::format("{} steps a run fit into --budget {}: about {}", steps, budget, told(costs))};
}

std::vector<Record> speed_records(const ComparePlan& plan, const CompareSite& site,
                                  const CompareTiming& timing, const std::string& mechanism,
                                  std::size_t place) {
  const auto found = timing.speeds.find(mechanism);
  if (found == timing.speeds.end() || found->second.per_second.size() <= place) return {};
  const TrainSpeed& speed = found->second;
  Record rate{.name = "train_per_second",
              .value = speed.per_second[place],
              .unit = "samples/s",
              .n = speed.samples,
              .seed = plan.seeds[place],
              .model = mechanism,
              .data_sha256 = site.data_sha256,
              .commit = commit_text(),
              .machine = site.cuda ? gpu_machine_text_apart() : machine_text(),
              .command = again_command(plan, site.out)};  // only a comparison times its turns
  const compare::Summary turns = compare::summary_of(speed.per_second);
  Record memory = rate;
  if (turns.deviation > calm * turns.mean) {
    rate.flags.push_back(
        {"busy-machine",
         fmt::format("the turns of a mechanism differ by {:.0f} % and more", 100 * calm),
         "time on a machine that does nothing else"});
  }
  memory.name = "peak_mebibytes";
  memory.value = speed.mebibytes[place];
  memory.unit = "MiB";
  return {rate, memory};
}

}  // namespace foci::cli
