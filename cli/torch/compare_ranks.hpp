// SPDX-License-Identifier: Apache-2.0
// A comparison in several processes: each works on whole runs, and nothing of a model goes from one
// to another. Rank 0 says in ranks/job.json who has which run, the others in ranks/K.json how far
// theirs are; each file has one writer. Whoever falls silent is lost, and its runs are others'.
#pragma once

#include "cli/torch/compare_sign.hpp"
#include "cli/torch/compare_stages.hpp"
#include "cli/verbs.hpp"

#include <foci/dist.hpp>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace foci::cli {

/// Who this process is, rank 0 of 1 where nobody says. What it starts is alone, on its own GPU.
dist::Standing compare_standing(const Compare& verb);

/// What a rank has of its machine: runs at once, threads of each.
struct CompareRoom {
  int jobs = 1, threads = 1;
};
CompareRoom compare_room(const Compare& verb, const dist::Standing& standing, std::size_t runs);

/// "rank 1 on node2"; empty where there are no others.
std::string compare_place(const dist::Standing& standing);
std::string compare_folder(const Compare& verb);
/// Seconds of --patience.
double compare_patience(const Compare& verb);

/// Rank 0's side.
class CompareLead {
 public:
  CompareLead(const std::string& out, int size, double patience);
  ~CompareLead();
  CompareLead(const CompareLead&) = delete;
  CompareLead& operator=(const CompareLead&) = delete;

  /// All that runs depend on is known: the others may begin.
  void begin(const CompareSite& site);
  /// States of runs that others have become what they say; runs of those that are lost wait again.
  /// True: a run began another step, or ended.
  bool hear(std::vector<CompareRun>& runs);
  /// The most runs that one of the others could begin.
  int room() const;
  /// To that one.
  void give(CompareRun& run);
  /// The others save and end.
  void stop();
  bool is_idle() const { return given_.empty(); }
  int jobs() const;            ///< runs at once, of the others
  std::int64_t bytes() const;  ///< that they have resident

 private:
  struct Member {
    Heard heard;
    std::string name, place;  // name empty: not one of us, or no more
    int jobs = 0;
  };
  void find();
  bool hear_one(Member& member, std::vector<CompareRun>& runs);
  bool take_states(const Member& member, std::vector<CompareRun>& runs);
  bool take_back(const Member& member, std::vector<CompareRun>& runs);
  void miss();
  void tell();
  int room_of(const Member& member) const;

  std::string folder_;
  int size_;
  double patience_;
  std::map<std::string, Member> members_;     // by file
  std::map<std::string, std::string> given_;  // run -> member's name
  std::set<std::string> given_up_;            // names; who is slow to notice stays out
  Json job_;
  Sign sign_;
  std::chrono::steady_clock::time_point begun_{};
  bool missed_ = false;
};

/// Another rank's side.
class CompareMember {
 public:
  CompareMember(const std::string& out, const dist::Standing& standing, double patience);
  /// What rank 0 says. Throws Error when it is silent, or has given this rank up.
  const Json& job();
  /// Whether rank 0 knows this rank and all that runs depend on.
  bool may_begin() const;
  /// Runs that this rank is to work on.
  std::vector<std::string> given() const;
  void say(int jobs, std::int64_t bytes, const std::vector<const CompareRun*>& runs);

 private:
  std::string out_, name_, place_;
  double patience_;
  Hold hold_;
  Heard lead_;
  Sign sign_;
  bool known_ = false;
};

/// All that a rank other than 0 does; its exit status.
int follow_compare(const Compare& verb, const dist::Standing& standing);

}  // namespace foci::cli
