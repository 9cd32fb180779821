// SPDX-License-Identifier: Apache-2.0
// Several processes of one command: what each of them is told, and how they are watched over.
#pragma once

#include "cli/verbs.hpp"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace foci::cli {

/// One of the processes, before it is started.
struct Seat {
  int rank = 0, local_rank = 0;
  std::string host;  ///< empty: this machine
};

std::vector<Seat> seats_of(const Launch& launch);

/// Where the ranks meet: a free port of this machine, unless the flags or the hosts say otherwise.
struct Place {
  std::string address;
  int port = 0;
};
Place place_of(const Launch& launch);

/// RANK=2 and so on.
std::vector<std::string> settings_of(const Launch& launch, const Seat& seat, const Place& place);

/// A shell's script that becomes the command on another machine, after a line with its number.
std::string script_of(const Launch& launch, const std::vector<std::string>& settings);
inline constexpr std::string_view number_line = "foci-process ";

/// Ends that were told: all ranks tell of the same one.
using Told = std::set<std::string>;

/// A started process. What it says goes to our outputs line by line, on standard error behind its
/// rank; of errors with the same words the first.
class Rank {
 public:
  Rank(const Launch& launch, const Seat& seat, const Place& place, Told& told);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return seat_.rank; }
  pid_t process() const { return process_; }
  bool ended() const { return ended_; }
  int status() const { return status_; }
  /// As waitpid has it.
  void end(int status);
  /// The file descriptor of an output, -1 once it is closed: 0 standard output, 1 standard error.
  int output(int which) const { return outputs_[which]; }
  void read(int which);
  void signal(int number);

 private:
  void start_here(const Launch& launch, const std::vector<std::string>& settings);
  void start_there(const Launch& launch, const std::vector<std::string>& settings);
  void say(int which, std::string line);

  Seat seat_;
  Told& told_;
  std::vector<std::string> through_;
  pid_t process_ = -1;
  std::string there_;  // its number on another machine
  bool ended_ = false;
  int status_ = 0;
  int outputs_[2] = {-1, -1};
  std::string heard_[2];
};

}  // namespace foci::cli
