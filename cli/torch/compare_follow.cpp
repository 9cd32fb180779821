// SPDX-License-Identifier: Apache-2.0
// foci compare as a rank that is not the first: it works on the runs that it is given and tells how
// far they are. It writes no results and shows nothing.
#include "cli/machine.hpp"
#include "cli/torch/compare_data.hpp"
#include "cli/torch/compare_queue.hpp"
#include "cli/torch/compare_ranks.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <thread>

namespace foci::cli {
namespace {

constexpr int hear_every = 4;  // moments

void check_same_data(const CompareSite& site) {
  const std::string found = data::fingerprint_of(site.data).sha256;
  if (found == site.data_sha256) return;
  throw FileError(fmt::format("{} on {} is not what rank 0 has there: its sum is {}, rank 0's {}",
                              site.data, this_host(), found.substr(0, 12),
                              site.data_sha256.substr(0, 12)));
}

class Following {
 public:
  Following(const Compare& verb, const dist::Standing& standing)
      : member_(compare_folder(verb), standing, compare_patience(verb)) {
    site_.out = compare_folder(verb);
    site_.cuda = verb.common.cuda;
    while (!member_.may_begin() && !StopWish::wished()) {
      std::this_thread::sleep_for(hear_every * crew_moment);
      member_.job();
    }
    const Json job = member_.job();
    if (StopWish::wished() || job.at("state") != "running") return;
    site_.data = job.at("data").get<std::string>();
    site_.data_sha256 = job.at("data_sha256").get<std::string>();
    site_.steps = job.at("steps").get<std::int64_t>();
    check_same_data(site_);
    ComparePlan plan = plan_of(verb);
    settle_plan(plan, site_.data);
    take_checkpoints(plan, site_);
    const CompareRoom room = compare_room(verb, standing, run_count(plan));
    site_.threads = room.threads;
    runs_ = compare_runs(plan, site_);
    crew_ = Crew(room.jobs, compare_place(standing));
  }

  int go() {
    if (runs_.empty()) {
      tell(0);
      return 0;
    }
    for (int moments = 0;; ++moments) {
      if (moments % hear_every == 0) hear();
      const bool over = over_ || StopWish::wished();
      if (over) crew_.stop();
      const bool changed = crew_.look();
      if (!over) begin();
      if (changed || moments % hear_every == 0) tell(over && crew_.is_idle() ? 0 : crew_.jobs());
      if (over && crew_.is_idle()) break;
      std::this_thread::sleep_for(crew_moment);
    }
    tell(0);
    if (!fault_.empty()) throw Error(fault_);
    return 0;
  }

 private:
  void hear() {
    try {
      over_ = over_ || member_.job().at("state") != "running";
    } catch (const Error& fault) {
      if (!over_) fault_ = fault.what();
      over_ = true;
    }
  }

  void begin() {
    const auto given = member_.given();
    std::erase_if(had_, [&](const CompareRun* run) {
      return std::find(given.begin(), given.end(), run->state.folder) == given.end();
    });
    for (const std::string& name : given) {
      const auto run = std::find_if(runs_.begin(), runs_.end(), [&](const CompareRun& one) {
        return one.state.folder == name;
      });
      if (run == runs_.end())
        throw Error(fmt::format("rank 0 has another plan: {} is not in this one", name));
      const bool had = std::find(had_.begin(), had_.end(), &*run) != had_.end();
      if (had && run->state.state != "waiting") continue;  // else somebody told it alone to stop
      if (!had) had_.push_back(&*run);
      crew_.begin(*run);
    }
  }

  void tell(int jobs) { member_.say(jobs, crew_.bytes(), had_); }

  CompareMember member_;
  CompareSite site_;
  std::vector<CompareRun> runs_;
  Crew crew_{1};
  std::vector<const CompareRun*> had_;  // what rank 0 has given and not taken back
  std::string fault_;
  bool over_ = false;
};

}  // namespace

int follow_compare(const Compare& verb, const dist::Standing& standing) {
  const StopWish stop;
  Following following(verb, standing);
  return following.go();
}

}  // namespace foci::cli
