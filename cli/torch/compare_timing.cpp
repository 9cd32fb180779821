// SPDX-License-Identifier: Apache-2.0
// Short runs that are ended as soon as they have shown their rate.
#include "cli/torch/compare_timing.hpp"

#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/compare_queue.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t least_steps = 20, timed_steps = 100000;
constexpr std::size_t first_timed = 2;  // what comes before is warming up
constexpr double least_seconds = 0.7, patience = 600;
constexpr double calm = 0.1;  // turns of one mechanism differ by less, as a share
constexpr auto glance = std::chrono::milliseconds(20);

struct Rate {
  double per_second = 0, mebibytes = 0;
  std::int64_t samples = 0;
};

/// Of a run that has just begun; nothing while it is too early to say.
bool knows(const std::string& folder, double batch, Rate& rate) {
  const auto lines = metrics_of(folder);
  if (lines.size() < first_timed + 3) return false;
  const double seconds = lines.back().time - lines[first_timed - 1].time;
  if (seconds < least_seconds && lines.size() < 60) return false;
  const double steps = double(lines.back().step - lines[first_timed - 1].step);
  rate.samples = std::int64_t(steps * batch);
  rate.per_second = steps * batch / std::max(seconds, 1e-9);
  for (const MetricsLine& line : lines)
    rate.mebibytes = std::max(rate.mebibytes, double(line.memory) / 0x1p20);
  return true;
}

std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string line, last = "no word why";
  while (std::getline(file, line)) {
    if (line.starts_with("foci: ")) last = line.substr(6);
  }
  return last;
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

/// So many of the same at once; the mean of their rates.
Rate timed(const ComparePlan& plan, const CompareSite& site, const Contender& contender, int runs) {
  const Words words = with_defaults(plan.task, train_words(plan, site, contender, 0));
  const double batch = double(to_count(words.at("batch")) * to_count(words.at("accumulate")));
  std::vector<Fork> forks;
  std::vector<std::string> folders;
  std::vector<Rate> rates;
  rates.resize(std::size_t(runs));
  for (int i = 0; i < runs; ++i) {
    folders.push_back(fmt::format("{}/timing/{}", site.out, i));
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
      if (rates[i].samples > 0 || forks[i].status() < 0) continue;
      throw Error(fmt::format("{} cannot be trained: {}", contender.name,
                              last_line(folders[i] + "/log.txt")));
    }
    if (StopWish::wished()) throw Stopped{};
    if (std::chrono::duration<double>(Clock::now() - begin).count() > patience)
      throw Error(fmt::format("{} took no step in {:.0f} s", contender.name, patience));
  }
  forks.clear();
  fs::remove_all(site.out + "/timing");
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

Json stored_timing(const ComparePlan& plan, const CompareSite& site) {
  const Json stored = read_json(timing_path(site));
  if (stored.is_object() && stored.value("key", "") == timing_key(plan, site)) return stored;
  return {{"key", timing_key(plan, site)}, {"speeds", Json::object()}};
}

CompareTiming timing_in(const Json& stored) {
  CompareTiming timing;
  for (const auto& [name, speed] : stored.at("speeds").items()) {
    timing.speeds[name] = {speed.at("per_second").get<std::vector<double>>(),
                           speed.at("mebibytes").get<std::vector<double>>(),
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
                              {"samples", speed.samples},
                              {"command", speed.command}};
  }
  stored["together"] = timing.together;
  stored["seconds"] = timing.seconds;
  write_whole(timing_path(site), stored.dump(1) + "\n");
}

/// The best of all turns: whatever else the machine does makes a turn slower, never faster.
double best_rate(const CompareTiming& timing, const std::string& name) {
  const auto& turns = timing.speeds.at(name).per_second;
  return *std::max_element(turns.begin(), turns.end());
}

/// Seconds of one run besides training, on its share of the machine: passes forward take about a
/// third of a step's time, an attack's step a whole one.
double other_seconds(const ComparePlan& plan, double rate, std::int64_t judged) {
  if (plan.task != "images") return 0;
  const auto number = [&](const char* flag) { return double(to_count(plan.words.at(flag))); };
  const auto parts = [&](const char* flag) {
    return plan.words.at(flag) == "none" ? 0.0 : double(split(plan.words.at(flag), ',').size());
  };
  const double passes =
      double(judged) +
      parts("corruptions") * parts("severity") * (number("corrupt-samples") + 100) +
      number("corrupt-samples");
  const double attacked = number("attack-samples") * parts("eps");
  const double steps = attacked * number("iterations") * (parts("attack") > 0 ? 1.0 : 0.0);
  const double queries = attacked * number("queries") * (parts("attack") > 1 ? 0.5 : 0.0);
  return 1.5 + (passes / 2.5 + steps + queries / 2.5) / rate;
}

}  // namespace

CompareTiming compare_timing(const ComparePlan& plan, const CompareSite& site, int jobs,
                             const std::function<void(const std::string&)>& now) {
  CompareTiming timing = timing_in(stored_timing(plan, site));
  const auto begin = Clock::now();
  CompareSite alone = site;
  alone.threads = site.threads * jobs;
  bool measured = false;
  const std::size_t turns = plan.seeds.size();
  for (std::size_t turn = 0; turn < turns; ++turn) {
    for (const Contender& contender : plan.contenders) {
      TrainSpeed& speed = timing.speeds[contender.name];
      if (speed.per_second.size() > turn) continue;
      now(fmt::format("timing {}, turn {} of {}", contender.name, turn + 1, turns));
      const Rate rate = timed(plan, alone, contender, 1);
      speed.per_second.push_back(rate.per_second);
      speed.mebibytes.push_back(rate.mebibytes);
      speed.samples = rate.samples;
      speed.command = "foci " + listed(timed_arguments(plan, alone, contender, "timing"), " ");
      measured = true;
    }
  }
  if (timing.together <= 0) {
    now("timing runs side by side");
    timing.together = timed(plan, site, plan.contenders[0], jobs).per_second;
    measured = true;
  }
  if (measured) {
    timing.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    keep(plan, site, timing);
  }
  return timing;
}

std::int64_t compare_steps(const ComparePlan& plan, const CompareSite& site,
                           const CompareTiming& timing, int jobs) {
  if (plan.steps > 0) return plan.steps;
  Json stored = stored_timing(plan, site);
  const std::string budget = plan.words.at("budget");
  if (stored.value("budget", "") == budget) return stored.at("steps").get<std::int64_t>();
  const Words words = with_defaults(plan.task, train_words(plan, site, plan.contenders[0], 0));
  const double batch = double(to_count(words.at("batch")) * to_count(words.at("accumulate")));
  std::int64_t judged = to_count(plan.words.at("judge-samples"));
  if (plan.task == "images" && judged == 0)
    judged = data::open_images(site.data, data::Split::test).size();
  const double baseline = best_rate(timing, plan.contenders[0].name);
  double a_step = 0, others = 0;  // seconds of the whole machine for all runs
  for (const Contender& contender : plan.contenders) {
    // One that seems faster than the baseline is not relied on to be.
    const double rate =
        timing.together * std::min(1.0, best_rate(timing, contender.name) / baseline);
    a_step += double(plan.seeds.size()) * batch / rate / jobs;
    others += double(plan.seeds.size()) * other_seconds(plan, rate, judged) / jobs;
  }
  // Of a text or a series nobody knows beforehand how long judging takes: a quarter is left for it.
  const double all = plan.budget * (plan.task == "images" ? 0.95 : 0.75) - timing.seconds - others;
  auto steps = std::int64_t(std::floor(all / a_step));
  if (steps < least_steps) {
    const double least = (others + timing.seconds + double(least_steps) * a_step) /
                         (plan.task == "images" ? 0.95 : 0.75);
    throw Misuse(fmt::format("--budget {} is too small for {} runs: {} steps each need about {}",
                             budget, plan.contenders.size() * plan.seeds.size(), least_steps,
                             duration_text(std::ceil(least / 10) * 10)),
                 "fewer --seeds or --mechanisms, --attack none or fewer --judge-samples take less");
  }
  if (steps > 50) steps -= steps % 10;
  stored["budget"] = budget;
  stored["steps"] = steps;
  write_whole(timing_path(site), stored.dump(1) + "\n");
  return steps;
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
              .machine = site.cuda ? gpu_machine_text() : machine_text(),
              .command = speed.command};
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
