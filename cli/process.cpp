// SPDX-License-Identifier: Apache-2.0
// A child with one end of a socket as its standard input and output: a write to a child that is
// gone is an error here and no signal, which a pipe would make of it.
#include "cli/process.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace foci::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::milliseconds(500);
constexpr auto moment = std::chrono::milliseconds(2);

/// Starts the program with `end` as standard input and output. Returns errno, 0 for success.
int spawn(pid_t& child, const std::vector<std::string>& words, int end) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, end, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, end, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  const int fault =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  return fault;
}

}  // namespace

Process::Process(const std::vector<std::string>& words) : name_(words.at(0)) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw NoAnswer(fmt::format("no socket for {}: {}", name_, std::strerror(errno)));
  }
  const int fault = spawn(child_, words, ends[1]);
  close(ends[1]);
  socket_ = ends[0];
  if (fault == 0) return;
  close(socket_);
  throw NoAnswer(fmt::format("{} cannot be started: {}", name_, std::strerror(fault)));
}

Process::~Process() {
  close(socket_);
  const auto begin = Clock::now();
  while (Clock::now() - begin < patience) {
    if (waitpid(child_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(moment);
  }
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

void Process::say(const std::string& line) {
  const std::string text = line + "\n";
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count = send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) sent += std::size_t(count);
  }
}

std::string Process::hear(std::chrono::seconds most) {
  const auto until = Clock::now() + most;
  for (;;) {
    const std::size_t end = heard_.find('\n');
    if (end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) {
      throw NoAnswer(fmt::format("{} gave no answer in {} s", name_, most.count()));
    }
    pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, int(left.count())) <= 0) continue;
    char piece[4096];
    const ssize_t count = read(socket_, piece, sizeof piece);
    if (count == 0 || (count < 0 && errno != EINTR)) {
      throw NoAnswer(fmt::format("{} ended without an answer", name_));
    }
    if (count > 0) heard_.append(piece, std::size_t(count));
  }
}

}  // namespace foci::cli
