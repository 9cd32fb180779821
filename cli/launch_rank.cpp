// SPDX-License-Identifier: Apache-2.0
// One of the processes: a child here, or a shell on another machine that becomes it, reached by a
// child that is ssh.
#include "cli/launch.hpp"
#include "cli/machine.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace foci::cli {
namespace {

struct Pipe {
  int ends[2] = {-1, -1};
  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw Error(fmt::format("no pipe for a process: {}", std::strerror(errno)));
  }
};

std::vector<char*> list_of(const std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

/// Our environment with these settings in place of ours.
std::vector<std::string> environment_with(const std::vector<std::string>& settings) {
  std::vector<std::string> all = settings;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view known = *at;
    const std::string_view name = known.substr(0, known.find('=') + 1);
    bool replaced = known.starts_with("TORCHELASTIC_");
    for (const std::string& setting : settings) replaced = replaced || setting.starts_with(name);
    if (!replaced) all.emplace_back(known);
  }
  return all;
}

/// What a child needs; made before the fork.
struct Start {
  std::vector<std::string> words, environment;
  int in = -1, out = -1, err = -1;
};

pid_t start(const Start& how) {
  auto words = list_of(how.words), environment = list_of(how.environment);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw Error(fmt::format("no process more: {}", std::strerror(errno)));
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // without us nobody watches over it
  if (::getppid() != parent) ::_exit(9);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) std::signal(number, SIG_DFL);
  ::dup2(how.in, STDIN_FILENO);
  ::dup2(how.out, STDOUT_FILENO);
  ::dup2(how.err, STDERR_FILENO);
  ::execvpe(words[0], words.data(), environment.data());
  const std::string text = fmt::format("{}: {}\n", how.words[0], std::strerror(errno));
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  ::_exit(127);
}

}  // namespace

Rank::Rank(const Launch& launch, const Seat& seat, const Place& place, Told& told)
    : seat_(seat), told_(told), through_(launch.through) {
  const auto settings = settings_of(launch, seat, place);
  seat.host.empty() ? start_here(launch, settings) : start_there(launch, settings);
}

Rank::~Rank() {
  for (const int output : outputs_) {
    if (output >= 0) ::close(output);
  }
}

void Rank::start_here(const Launch& launch, const std::vector<std::string>& settings) {
  std::vector<std::string> words = {program_folder() + "/foci"};
  words.insert(words.end(), launch.command.begin(), launch.command.end());
  const Pipe out, err;
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  process_ = start({words, environment_with(settings), nothing, out.ends[1], err.ends[1]});
  for (const int done : {nothing, out.ends[1], err.ends[1]}) ::close(done);
  outputs_[0] = out.ends[0];
  outputs_[1] = err.ends[0];
}

void Rank::start_there(const Launch& launch, const std::vector<std::string>& settings) {
  std::vector<std::string> words = through_;
  words.insert(words.end(), {seat_.host, "sh", "-s"});
  const std::string script = script_of(launch, settings);
  const Pipe in, out, err;
  process_ = start({words, environment_with({}), in.ends[0], out.ends[1], err.ends[1]});
  for (const int done : {in.ends[0], out.ends[1], err.ends[1]}) ::close(done);
  std::signal(SIGPIPE, SIG_IGN);  // when it is gone already, its end says so
  static_cast<void>(!::write(in.ends[1], script.data(), script.size()));
  ::close(in.ends[1]);
  outputs_[0] = out.ends[0];
  outputs_[1] = err.ends[0];
}

void Rank::end(int status) {
  ended_ = true;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Rank::say(int which, std::string line) {
  if (which == 1 && line.starts_with(number_line)) {
    there_ = line.substr(number_line.size());
    return;
  }
  if (which == 1 && line.starts_with("foci: ") && !told_.insert(line).second) return;
  which == 0 ? fmt::print(stdout, "{}\n", line) : fmt::print(stderr, "[{}] {}\n", seat_.rank, line);
  std::fflush(which == 0 ? stdout : stderr);
}

void Rank::read(int which) {
  char piece[4096];
  const ssize_t count = ::read(outputs_[which], piece, sizeof piece);
  if (count < 0 && errno == EINTR) return;
  std::string& heard = heard_[which];
  if (count > 0) heard.append(piece, std::size_t(count));
  for (std::size_t end = 0; (end = heard.find('\n')) != std::string::npos;) {
    say(which, heard.substr(0, end));
    heard.erase(0, end + 1);
  }
  if (count > 0) return;
  if (!heard.empty()) say(which, heard);
  heard.clear();
  ::close(outputs_[which]);
  outputs_[which] = -1;
}

void Rank::signal(int number) {
  if (ended_) return;
  if (seat_.host.empty()) {
    ::kill(process_, number);
    return;
  }
  if (!there_.empty()) {
    std::vector<std::string> words = through_;
    words.insert(words.end(), {seat_.host, "kill", fmt::format("-{}", number), there_});
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    start({words, environment_with({}), nothing, nothing, nothing});
    ::close(nothing);
  }
  if (number == SIGKILL) ::kill(process_, SIGKILL);
}

}  // namespace foci::cli
