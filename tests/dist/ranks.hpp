// SPDX-License-Identifier: Apache-2.0
// Several ranks of one command, or of a function, as forks of the test with the environment that a
// launcher makes; torch must be idle before.
#pragma once

#include "train/child.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <vector>

namespace dist_test {

using namespace train_test;

/// One that nobody has now, another with every call; below those that the system gives to whoever
/// asks for any, so that it is still free a moment later.
inline int free_port() {
  static int next = ::getpid() * 37;
  for (int tried = 0; tried < 8000; ++tried) {
    const int port = 22000 + ++next % 8000;
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(std::uint16_t(port));
    const int bound = ::bind(socket, reinterpret_cast<sockaddr*>(&place), sizeof place);
    ::close(socket);
    if (bound == 0) return port;
  }
  ADD_FAILURE() << "no free port";
  return 0;
}

inline void set_standing(int rank, int size, int port) {
  for (const auto& [name, value] :
       {std::pair("RANK", rank), {"WORLD_SIZE", size}, {"LOCAL_RANK", rank}, {"MASTER_PORT", port}})
    ::setenv(name, std::to_string(value).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
}

/// `work` in as many forks; gives what each of them ended with.
inline std::vector<int> in_ranks(int size, const std::function<int()>& work) {
  const int port = free_port();
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    step_back();
    set_standing(rank, size, port);
    int status = 1;
    try {
      status = work();
    } catch (const std::exception& fault) {
      std::fprintf(stderr, "rank %d: %s\n", rank, fault.what());
    }
    ::_exit(status);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return statuses;
}

/// Ranks of the command that are still at work.
struct Job {
  std::vector<pid_t> children;
  std::string name;

  Ran finish(int rank) const {
    return train_test::finish(children[std::size_t(rank)], name + std::to_string(rank));
  }
};

inline Job start_job(const Words& words, int size, const std::string& name,
                     rlim_t most_bytes = RLIM_INFINITY) {
  const int port = free_port();
  Job job{{}, name};
  for (int rank = 0; rank < size; ++rank) {
    set_standing(rank, size, port);
    job.children.push_back(start(words, name + std::to_string(rank), most_bytes));
  }
  for (const char* variable : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR"})
    ::unsetenv(variable);
  return job;
}

/// The command in so many processes, to its end; 1: without any of it. What rank 0 said.
inline Ran call_ranks(const Words& words, int size) {
  if (size == 1) return call(words);
  const Job job = start_job(words, size, "rank");
  Ran first;
  for (int rank = 0; rank < size; ++rank) {
    const Ran ran = job.finish(rank);
    EXPECT_EQ(ran.status, 0) << rank << ": " << ran.err;
    if (rank == 0) first = ran;
  }
  return first;
}

/// The launcher as a process of its own; its outputs go into files.
inline pid_t start_launch(const Words& words, const std::string& name) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  step_back();
  for (const auto& [ending, file] : {std::pair(".out", stdout), std::pair(".err", stderr)}) {
    if (std::freopen(folder().file(name + ending).c_str(), "w", file) == nullptr) ::_exit(9);
  }
  const Words all = Words{program, "launch"} + words;
  std::vector<char*> list;
  for (const std::string& word : all) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  ::execv(program.c_str(), list.data());
  ::_exit(9);
}

/// The processes of a launcher, in the order of their ranks, as it started them: numbers of
/// processes begin anew some time.
inline std::vector<pid_t> children_of(pid_t launcher) {
  const std::string id = std::to_string(launcher);
  std::istringstream text(read("/proc/" + id + "/task/" + id + "/children"));
  std::vector<pid_t> all;
  for (pid_t child = 0; text >> child;) all.push_back(child);
  return all;
}

/// The farthest that two checkpoints are apart, as a share of each tensor's largest number.
inline double apart(const std::string& a, const std::string& b, const std::string& file) {
  const foci::Safetensors left(a + "/" + file), right(b + "/" + file);
  double most = 0;
  for (const std::string& name : left.names()) {
    const foci::View x = left.find(name), y = right.find(name);
    if (x.dtype != foci::DType::f32) continue;
    double far = 0, size = 1e-3;  // what is exactly 0 differs by rounding alone
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const double p = static_cast<const float*>(x.data)[i];
      far = std::max(far, std::abs(p - static_cast<const float*>(y.data)[i]));
      size = std::max(size, std::abs(p));
    }
    most = std::max(most, far / size);
  }
  return most;
}

inline std::size_t lines_of(const std::string& run) {
  const std::string text = read(run + "/metrics.jsonl");
  return std::size_t(std::count(text.begin(), text.end(), '\n'));
}

/// Waits until there are so many lines, five minutes at most.
inline bool waits_for_lines(const std::string& run, std::size_t lines) {
  for (int wait = 0; wait < 30000 && lines_of(run) < lines; ++wait) ::usleep(10000);
  return lines_of(run) >= lines;
}

}  // namespace dist_test
