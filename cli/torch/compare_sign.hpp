// SPDX-License-Identifier: Apache-2.0
// Signs of life between processes that share a folder and nothing else: a file that one holds, and
// a file that one writes again and again. No clock is compared with another's.
#pragma once

#include "cli/flags.hpp"
#include "cli/mechanism.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace foci::cli {

/// A file that one process holds; one that ends, however, lets go of it. Its forks do not have it.
class Hold {
 public:
  /// Throws FileError with the text `taken` when another process holds it for so many seconds more.
  Hold(const std::string& path, const std::string& taken, double seconds = 0);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  /// Writes into it, for people: who has it, or had it last.
  void tell(const std::string& text) const;
  /// By another process of this machine.
  static bool is_taken(const std::string& path);

 private:
  int file_ = -1;
};

/// This machine since it was started; hosts' names may be alike.
std::string this_boot();
/// Told apart from all others, of earlier calls as well.
std::string drawn_name();

/// A file of JSON that is written every second by a thread of its own, with a number that grows.
/// What cannot be written is not said: others then take this process for lost.
class Sign {
 public:
  Sign(std::string path, Json said);
  ~Sign();
  Sign(const Sign&) = delete;
  Sign& operator=(const Sign&) = delete;
  /// At once, where it is not what was said before.
  void say(const Json& said);

 private:
  void write();
  std::string path_;
  std::mutex guard_;
  std::condition_variable ends_;
  Json said_;
  std::int64_t beat_ = 0;
  bool over_ = false;
  std::thread thread_;
};

/// What another process says in such a file, and since when it has been silent.
class Heard {
 public:
  /// `hold`: a file that it holds as long as it lives.
  Heard(std::string path, std::string hold);
  /// Reads it anew. Null: nothing is there that is whole.
  const Json& look();
  const Json& said() const { return said_; }
  bool is_alive() const { return moved_ || (near_ && held_); }  ///< since this began to look
  bool is_gone(double patience) const { return (near_ && !held_) || silence() > patience; }
  /// Seconds; those in which this process slept do not count.
  double silence() const { return silence_; }

 private:
  using Clock = std::chrono::steady_clock;
  std::string path_, hold_;
  Json said_;
  Json beat_;
  Clock::time_point last_ = Clock::now();
  double silence_ = 0;
  bool moved_ = false, near_ = false, held_ = false;  // near: of this machine
};

}  // namespace foci::cli
