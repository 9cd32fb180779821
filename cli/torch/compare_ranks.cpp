// SPDX-License-Identifier: Apache-2.0
// Who has which run, told by files in the folder of the comparison.
#include "cli/torch/compare_ranks.hpp"

#include "cli/machine.hpp"
#include "cli/run_facts.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/compare_queue.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

std::string ranks_in(const std::string& out) {
  const std::string folder = out + "/ranks";
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault) throw FileError(fmt::format("{}: {}", shown(folder), fault.message()));
  return folder;
}

/// Of the GPUs that this machine's ranks see each has its own; a single one is a launcher's choice.
void see_own_gpu(int local_rank) {
  const char* seen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (seen == nullptr) {
    ::setenv("CUDA_VISIBLE_DEVICES", std::to_string(local_rank).c_str(), 1);
    return;
  }
  const std::vector<std::string> all = split(seen, ',');
  if (all.size() > 1 && std::size_t(local_rank) < all.size())
    ::setenv("CUDA_VISIBLE_DEVICES", all[std::size_t(local_rank)].c_str(), 1);
}

Json json_of(const RunState& state) {
  return {{"state", state.state}, {"stage", state.stage},           {"error", state.error},
          {"step", state.step},   {"per_second", state.per_second}, {"seconds", state.seconds}};
}

void take(RunState& state, const Json& said) {
  state.state = said.value("state", "running");
  state.stage = said.value("stage", "");
  state.error = said.value("error", "");
  state.step = said.value("step", std::int64_t(0));
  state.per_second = said.value("per_second", 0.0);
  state.seconds = said.value("seconds", 0.0);
}

}  // namespace

dist::Standing compare_standing(const Compare& verb) {
  const dist::Standing standing = dist::standing().value_or(dist::Standing{});
  dist::forget_standing();
  if (verb.common.cuda && standing.size > 1) see_own_gpu(standing.local_rank);
  return standing;
}

CompareRoom compare_room(const Compare& verb, const dist::Standing& standing, std::size_t runs) {
  const int share = std::max(1, cpu_cores() / standing.local_size);
  const int cores = verb.common.threads > 0 ? verb.common.threads : share;
  const int all = (int(runs) + standing.size - 1) / standing.size;
  const int asked = verb.words.count("jobs") > 0 ? int(to_count(verb.words.at("jobs"))) : 0;
  const int jobs = std::max(1, std::min(all, asked > 0 ? asked : verb.common.cuda ? 1 : cores));
  return {jobs, std::max(1, cores / jobs)};
}

std::string compare_place(const dist::Standing& standing) {
  return standing.size > 1 ? fmt::format("rank {} on {}", standing.rank, this_host()) : "";
}

std::string compare_folder(const Compare& verb) {
  return verb.words.count("out") > 0 ? verb.words.at("out") : "compare";
}

double compare_patience(const Compare& verb) {
  return verb.words.count("patience") > 0 ? double(to_count(verb.words.at("patience"))) : 40;
}

CompareLead::CompareLead(const std::string& out, int size, double patience)
    : folder_(ranks_in(out)),
      size_(size),
      patience_(patience),
      job_{{"name", drawn_name()}, {"state", "preparing"}},
      sign_(folder_ + "/job.json", job_) {}

CompareLead::~CompareLead() {
  job_["state"] = job_.at("state") == "running" ? "done" : "stopping";
  std::vector<CompareRun> none;
  hear(none);  // who comes only now is told as well
}

void CompareLead::begin(const CompareSite& site) {
  job_["state"] = "running";
  job_["data"] = site.data;
  job_["data_sha256"] = site.data_sha256;
  job_["steps"] = site.steps;
  begun_ = std::chrono::steady_clock::now();
  tell();
}

void CompareLead::stop() {
  job_["state"] = "stopping";
  tell();
}

void CompareLead::tell() {
  Json names = Json::array();
  for (const auto& [path, member] : members_) {
    if (!member.name.empty()) names.push_back(member.name);
  }
  job_["members"] = names;
  job_["given"] = given_;
  sign_.say(job_);
}

/// Files of other ranks, those of an earlier call as well.
void CompareLead::find() {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_, none)) {
    const std::string path = entry.path().string(), name = entry.path().filename().string();
    if (!name.ends_with(".json") || name == "job.json" || members_.contains(path)) continue;
    const std::string hold = path.substr(0, path.size() - 5) + ".lock";
    members_.emplace(path, Member{Heard(path, hold), {}, {}});
  }
}

bool CompareLead::take_back(const Member& member, std::vector<CompareRun>& runs) {
  bool any = false;
  for (CompareRun& run : runs) {
    const auto given = given_.find(run.state.folder);
    if (given == given_.end() || given->second != member.name) continue;
    given_.erase(given);
    run.state.state = "waiting";
    run.state.stage = run.state.place = "";
    any = true;
  }
  return any;
}

bool CompareLead::take_states(const Member& member, std::vector<CompareRun>& runs) {
  const Json all = member.heard.said().value("runs", Json::object());
  bool changed = false;
  for (CompareRun& run : runs) {
    const auto given = given_.find(run.state.folder);
    if (given == given_.end() || given->second != member.name || !all.contains(run.state.folder))
      continue;
    const std::string stage = run.state.stage;
    take(run.state, all.at(run.state.folder));
    // A network's file system may show a moment later what a run left.
    if (run.state.state == "done" && !is_done(run)) run.state.state = "running";
    changed = changed || run.state.stage != stage || run.state.state != "running";
    if (run.state.state == "running") continue;
    if (run.state.state == "done") tell_done(run);
    given_.erase(given);
    run.state.place = "";
  }
  return changed;
}

bool CompareLead::hear_one(Member& member, std::vector<CompareRun>& runs) {
  const Json& said = member.heard.look();
  if (!said.is_object() || !member.heard.is_alive()) return false;
  const std::string name = said.value("name", "");
  const bool leaves = said.value("leaves", false), known = !member.name.empty();
  const bool lost = known && (name != member.name || (!leaves && member.heard.is_gone(patience_)));
  bool changed = known && !lost && take_states(member, runs);
  if (lost || (known && leaves)) {
    const bool had = take_back(member, runs);
    if (lost || job_.at("state") == "running") {
      warn(fmt::format("{} {}; {}", member.place, lost ? "is lost" : "was told to stop",
                       had ? "others take its runs" : "the others go on"));
    }
    changed = changed || had;
    given_up_.insert(member.name);
    member.name = "";
    missed_ = true;
  }
  if (!leaves && !member.heard.is_gone(patience_) && !given_up_.contains(name)) {
    member.name = name;
    member.place = said.value("place", "");
  }
  member.jobs = member.name.empty() ? 0 : said.value("jobs", 0);
  return changed;
}

/// Once: ranks of which nothing was ever heard.
void CompareLead::miss() {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - begun_;
  const double waited = since.count();
  if (missed_ || job_.at("state") != "running" || waited < patience_) return;
  missed_ = true;
  const auto here = std::count_if(members_.begin(), members_.end(),
                                  [](const auto& one) { return !one.second.name.empty(); });
  if (here + 1 >= size_) return;
  warn(
      fmt::format("{} of {} ranks are here; the others did not start, or their hosts do not share "
                  "{}",
                  here + 1, size_, shown(fs::path(folder_).parent_path().string())));
}

bool CompareLead::hear(std::vector<CompareRun>& runs) {
  find();
  bool changed = false;
  for (auto& [path, member] : members_) changed = hear_one(member, runs) || changed;
  miss();
  tell();
  return changed;
}

int CompareLead::room_of(const Member& member) const {
  return member.jobs - int(std::count_if(given_.begin(), given_.end(), [&](const auto& one) {
           return one.second == member.name;
         }));
}

int CompareLead::room() const {
  int most = 0;
  for (const auto& [path, member] : members_) most = std::max(most, room_of(member));
  return most;
}

void CompareLead::give(CompareRun& run) {
  const auto to = std::max_element(
      members_.begin(), members_.end(),
      [&](const auto& a, const auto& b) { return room_of(a.second) < room_of(b.second); });
  given_[run.state.folder] = to->second.name;
  run.state.state = "running";
  run.state.stage = run.state.error = "";
  run.state.place = to->second.place;
  tell();
}

int CompareLead::jobs() const {
  int all = 0;
  for (const auto& [path, member] : members_) all += member.jobs;
  return all;
}

std::int64_t CompareLead::bytes() const {
  std::int64_t all = 0;
  for (const auto& [path, member] : members_) {
    if (!member.name.empty()) all += member.heard.said().value("bytes", std::int64_t(0));
  }
  return all;
}

CompareMember::CompareMember(const std::string& out, const dist::Standing& standing,
                             double patience)
    : out_(out),
      name_(drawn_name()),
      place_(compare_place(standing)),
      patience_(patience),
      hold_(fmt::format("{}/{}.lock", ranks_in(out), standing.rank),
            fmt::format("{}: another rank {} is at work in it", shown(out), standing.rank)),
      lead_(out + "/ranks/job.json", out + "/lock"),
      sign_(fmt::format("{}/ranks/{}.json", out, standing.rank),
            {{"name", name_}, {"place", place_}, {"jobs", 0}, {"runs", Json::object()}}) {}

const Json& CompareMember::job() {
  const Json& said = lead_.look();
  const Json names = said.is_object() ? said.value("members", Json::array()) : Json::array();
  const bool listed = std::find(names.begin(), names.end(), Json(name_)) != names.end();
  if (listed) known_ = true;
  if (known_ && !listed) throw Error(fmt::format("rank 0 has given up {}", place_));
  const std::string state = said.is_object() ? said.value("state", "") : "";
  const bool works = state == "preparing" || state == "running";
  if (works && (known_ || lead_.is_alive()) && lead_.is_gone(patience_)) {
    throw Error(fmt::format(
        "rank 0 is lost: no sign of life for {:.0f} s; what is done stays, and the same command "
        "goes on",
        lead_.silence()));
  }
  if (!known_ && lead_.silence() > patience_) {
    throw Error(fmt::format("{} finds no rank 0 in {}: the folder must be one that all hosts share",
                            place_, shown(out_)));
  }
  return said;
}

bool CompareMember::may_begin() const { return known_ && lead_.said().at("state") != "preparing"; }

std::vector<std::string> CompareMember::given() const {
  std::vector<std::string> runs;
  const Json& said = lead_.said();
  const Json given = said.is_object() ? said.value("given", Json::object()) : Json::object();
  for (const auto& [run, name] : given.items()) {
    if (name == name_) runs.push_back(run);
  }
  return runs;
}

void CompareMember::say(int jobs, std::int64_t bytes, const std::vector<const CompareRun*>& runs) {
  Json states = Json::object();
  for (const CompareRun* run : runs) states[run->state.folder] = json_of(run->state);
  sign_.say({{"name", name_},
             {"place", place_},
             {"jobs", jobs},
             {"bytes", bytes},
             {"leaves", jobs == 0},
             {"runs", states}});
}

}  // namespace foci::cli
