// SPDX-License-Identifier: Apache-2.0
// Which process is where, and what it is told.
#include "cli/launch.hpp"
#include "cli/machine.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace foci::cli {
namespace {

constexpr int usual_port = 29500;

bool is_here(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == this_host();
}

/// One that nobody listens at now, below those that the system gives to whoever asks for any: it is
/// still free when rank 0 opens it.
int free_port() {
  constexpr int first = 20000, count = 12000;
  const int begin = int(::getpid() * 7919LL % count);
  for (int tried = 0; tried < count; ++tried) {
    const int port = first + (begin + tried) % count;
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(std::uint16_t(port));
    const int bound = ::bind(socket, reinterpret_cast<sockaddr*>(&place), sizeof place);
    ::close(socket);
    if (bound == 0) return port;
  }
  return usual_port;
}

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

/// What our environment says of threads and of the network; a shell by way of ssh has its own.
std::vector<std::string> passed_on() {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view setting = *at;
    for (const char* name : {"OMP_NUM_THREADS=", "GLOO_", "NCCL_"}) {
      if (setting.starts_with(name)) all.emplace_back(setting);
    }
  }
  return all;
}

}  // namespace

std::vector<Seat> seats_of(const Launch& launch) {
  const int hosts = std::max(1, int(launch.hosts.size()));
  const int each = int(launch.processes) / hosts;
  std::vector<Seat> seats;
  for (int rank = 0; rank < int(launch.processes); ++rank) {
    Seat seat{rank, rank % each, ""};
    if (!launch.hosts.empty() && !is_here(launch.hosts[std::size_t(rank / each)]))
      seat.host = launch.hosts[std::size_t(rank / each)];
    seats.push_back(seat);
  }
  return seats;
}

Place place_of(const Launch& launch) {
  const auto seats = seats_of(launch);
  const bool all_here =
      std::all_of(seats.begin(), seats.end(), [](const Seat& seat) { return seat.host.empty(); });
  Place place{launch.master, launch.port};
  if (place.address.empty()) {
    place.address = all_here ? "127.0.0.1" : seats[0].host.empty() ? this_host() : seats[0].host;
  }
  if (place.port == 0) place.port = all_here ? free_port() : usual_port;
  return place;
}

std::vector<std::string> settings_of(const Launch& launch, const Seat& seat, const Place& place) {
  const int each = int(launch.processes) / std::max(1, int(launch.hosts.size()));
  std::vector<std::string> settings = {fmt::format("RANK={}", seat.rank),
                                       fmt::format("WORLD_SIZE={}", launch.processes),
                                       fmt::format("LOCAL_RANK={}", seat.local_rank),
                                       fmt::format("LOCAL_WORLD_SIZE={}", each),
                                       fmt::format("MASTER_ADDR={}", place.address),
                                       fmt::format("MASTER_PORT={}", place.port)};
  // Processes that each take every core are in one another's way.
  if (each > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
    settings.push_back(fmt::format("OMP_NUM_THREADS={}", std::max(1, cpu_cores() / each)));
  return settings;
}

std::string script_of(const Launch& launch, const std::vector<std::string>& settings) {
  std::string script = fmt::format("echo {}$$ >&2\ncd {} || exit 9\n", number_line,
                                   quoted(std::filesystem::current_path().string()));
  for (const std::string& setting : settings) script += fmt::format("export {}\n", setting);
  for (const std::string& setting : passed_on()) {
    const std::size_t end = setting.find('=');
    script +=
        fmt::format("export {}={}\n", setting.substr(0, end), quoted(setting.substr(end + 1)));
  }
  script += "exec " + quoted(program_folder() + "/foci");
  for (const std::string& word : launch.command) (script += ' ') += quoted(word);
  return script + " </dev/null\n";
}

}  // namespace foci::cli
