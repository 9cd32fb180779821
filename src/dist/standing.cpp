// SPDX-License-Identifier: Apache-2.0
// Who this process is, as those that started it say.
#include <foci/dist.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace foci::dist {
namespace {

const char* value_of(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

int number(const char* name, int least, int most) {
  const char* text = value_of(name);
  if (text == nullptr) throw InvalidArgument(fmt::format("{} is not set", name));
  const std::string_view word = text;
  int found = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), found);
  if (fault != std::errc() || end != word.data() + word.size() || found < least || found > most) {
    throw InvalidArgument(
        fmt::format("{} is '{}'; it must be a number from {} to {}", name, text, least, most));
  }
  return found;
}

int number_or(const char* name, int least, int most, int standard) {
  return value_of(name) == nullptr ? standard : number(name, least, most);
}

constexpr int most_ranks = 1 << 20;

/// The names that a launcher has for the numbers; Slurm gives every task cores of its own.
struct Names {
  const char *rank, *size, *local, *local_size = "";
};

Standing of_names(const Names& names) {
  Standing s;
  s.size = number(names.size, 1, most_ranks);
  s.rank = number(names.rank, 0, s.size - 1);
  s.local_rank = number_or(names.local, 0, most_ranks, 0);
  s.local_size = number_or(names.local_size, 1, most_ranks, 1);
  if (const char* host = value_of("MASTER_ADDR")) s.host = host;
  s.port = number_or("MASTER_PORT", 1, 65535, s.port);
  return s;
}

/// "rack1node[03-17,20]-ib,login" -> "rack1node03-ib"
std::string first_of(std::string_view nodes) {
  std::string name;
  while (!nodes.empty() && nodes[0] != ',') {
    const std::size_t plain = std::min(nodes.find_first_of("[,"), nodes.size());
    name += nodes.substr(0, plain);
    nodes.remove_prefix(plain);
    if (nodes.empty() || nodes[0] != '[') continue;
    const std::string_view inside = nodes.substr(1, nodes.find(']') - 1);
    name += inside.substr(0, inside.find_first_of("-,"));
    nodes.remove_prefix(std::min(inside.size() + 2, nodes.size()));
  }
  return name;
}

/// Of a step of a job; below those that the system gives to whoever asks for any. Numbers of steps
/// that Slurm keeps for itself are very large.
int port_of_step() {
  const auto id = [](const char* name) {
    const char* const text = value_of(name);
    return text == nullptr ? 0ULL : std::strtoull(text, nullptr, 10);
  };
  return 20000 + int((id("SLURM_JOB_ID") + 1009 * (id("SLURM_STEP_ID") % 10000)) % 12000);
}

}  // namespace

std::optional<Standing> standing() {
  if (value_of("RANK") != nullptr || value_of("WORLD_SIZE") != nullptr) {
    Standing s = of_names({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
    s.restart = number_or("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30, 0);
    const char* agent = value_of("TORCHELASTIC_USE_AGENT_STORE");
    if (const char* job = value_of("TORCHELASTIC_RUN_ID")) s.job = job;
    if (s.job == "none") s.job.clear();  // nobody named it
    s.agent = agent != nullptr && std::string_view(agent) == "True";
    return s;
  }
  // A batch script has a rank too; only what srun starts is one of several.
  if (value_of("SLURM_PROCID") != nullptr && value_of("SLURM_STEP_NUM_TASKS") != nullptr) {
    Standing s = of_names({"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"});
    if (s.size == 1) return {};
    const char* nodes = value_of("SLURM_STEP_NODELIST");
    if (value_of("MASTER_ADDR") == nullptr && nodes != nullptr) s.host = first_of(nodes);
    if (value_of("MASTER_PORT") == nullptr) s.port = port_of_step();
    return s;
  }
  if (value_of("OMPI_COMM_WORLD_RANK") == nullptr) return {};
  const Standing s = of_names({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                               "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (s.size == 1) return {};
  return s;
}

void forget_standing() {
  for (const char* name : {"RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"})
    ::unsetenv(name);
}

}  // namespace foci::dist
