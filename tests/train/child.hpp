// SPDX-License-Identifier: Apache-2.0
// The command in a process of its own without loading torch again: a fork of the test, in which
// torch has done nothing yet. Folders and made images for it.
#pragma once

#include "cli/command.hpp"
#include "cli/verbs.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <utility>

namespace train_test {

using namespace cli_test;

/// Of a child: whoever watches it goes first when cores are short.
inline void step_back() { ::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + 5); }

/// Whether it runs no longer; finish() is still to be called.
inline bool has_ended(pid_t child) {
  siginfo_t info{};
  return ::waitid(P_PID, id_t(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == child;
}

/// Starts the command; its outputs go into files beside `name`.
inline pid_t start(const Words& words, const std::string& name, rlim_t most_bytes = RLIM_INFINITY) {
  const std::string out = folder().file(name + ".out"), err = folder().file(name + ".err");
  std::fflush(nullptr);  // or the child would say it again
  const pid_t child = ::fork();
  if (child != 0) return child;
  step_back();
  std::signal(SIGXFSZ, SIG_IGN);  // as main() does
  const rlimit limit{most_bytes, most_bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  for (const auto& [path, file] : {std::pair(out, stdout), std::pair(err, stderr)}) {
    if (std::freopen(path.c_str(), "w", file) == nullptr) ::_exit(9);
  }
  std::setvbuf(stderr, nullptr, _IONBF, 0);  // what is said is there to be read at once
  const int status = foci::cli::run_command(words);
  std::fflush(nullptr);
  ::_exit(status);
}

inline Ran finish(pid_t child, const std::string& name) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          read(folder().file(name + ".out")), read(folder().file(name + ".err"))};
}

inline Ran call(const Words& words, rlim_t most_bytes = RLIM_INFINITY) {
  return finish(start(words, "call", most_bytes), "call");
}

/// 240 grey images of 28 x 28 in 4 classes, and 48 to judge by.
inline const std::string& images() {
  static const std::string path = [] {
    const std::string made = folder().file("images");
    call({"data", "make", "images", "--out", made, "--count", "240", "--seed", "1"});
    return made;
  }();
  return path;
}

/// A model that takes a step in a few milliseconds.
inline Words tiny(const std::string& run) {
  return {
      "train",   "images", "--data",  images(), "--run",   run,         "--dim",    "16",
      "--depth", "2",      "--heads", "2",      "--patch", "14",        "--metric", "layer-change",
      "--batch", "20",     "--steps", "3",      "--quiet", "--threads", "1"};
}

/// metrics.jsonl without what differs from run to run.
inline std::string curve(const std::string& run) {
  std::ifstream file(run + "/metrics.jsonl");
  std::string all;
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line);
    for (const char* name : {"time", "per_second", "memory"}) json.erase(name);
    all += json.dump() + "\n";
  }
  return all;
}

inline std::string checkpoint(const std::string& run, int step) {
  return run + "/checkpoints/step-" + std::to_string(step);
}

/// Every byte of a checkpoint.
inline std::string weights(const std::string& folder) {
  std::string all;
  for (const char* name : {"model", "ema", "training"})
    all += std::string(name) + read(folder + "/" + name + ".safetensors");
  return all;
}

}  // namespace train_test
