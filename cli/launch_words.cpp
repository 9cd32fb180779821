// SPDX-License-Identifier: Apache-2.0
// What foci launch is asked for: its own flags, and after -- the command of every process.
#include "cli/misuse.hpp"
#include "cli/pages.hpp"
#include "cli/suggest.hpp"
#include "cli/tree.hpp"
#include "cli/verbs.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace foci::cli {
namespace {

constexpr std::int64_t most_processes = 4096, most_port = 65535;
constexpr std::string_view launch_group = "The processes";

std::string text_or(const Words& words, const char* flag, const char* standard) {
  const auto found = words.find(flag);
  return found == words.end() ? standard : found->second;
}

std::vector<std::string> parts_of(const std::string& text, char between) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(between, at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

void check_command(const std::vector<std::string>& command) {
  constexpr const char* hint =
      "for instance foci launch -n 2 -- train images --data data/made --run runs/a";
  if (command.empty()) throw Misuse("launch needs a command after --", hint);
  if (command[0] != "train" && command[0] != "compare") {
    throw Misuse(
        fmt::format("{} works in one process; launch is for train and compare", shown(command[0])),
        hint);
  }
  parse(command);
}

}  // namespace

VerbPage launch_page() {
  return {
      "launch",
      "Starts several processes that train one model together, or share the runs of a comparison.",
      {{"two processes here", "foci launch -n 2 -- train images --data data/made --run runs/a"},
       {"four on each of two machines, by ssh",
        "foci launch -n 8 --hosts node1,node2 -- train images --preset fashion-mnist --run "
        "runs/b"},
       {"the runs of a comparison on two machines, two at once on each",
        "foci launch -n 2 --hosts node1,node2 -- compare --jobs 2 --out compared"}},
      together(
          {{{"processes", "COUNT", "1", launch_group, "how many in all; -n for short"},
            {"hosts", "KEY", "this machine", launch_group,
             "machines with commas; each has as many, in order"},
            {"through", "KEY", "ssh", launch_group,
             "the command that runs one on a machine, before the machine's name"},
            {"master", "KEY", "the first host", launch_group,
             "the address at which the processes meet"},
            {"port", "COUNT", "a free one, with --hosts 29500", launch_group, "the port there"},
            {"quiet", "", "", output_group, "no word about an end that is in the log anyway"},
            {"help", "", "", output_group, "this page"}}}),
      {},
      {},
      {"Those of foci train each have their part of every batch. --batch stays the size of the "
       "whole one, so the same command gives the same weights for any number of processes, up to "
       "the order of sums and to what dropout draws; a run may be resumed with another number. "
       "Every process sees the data and the run's folder under the same paths.",
       "SIGTERM, Ctrl-C and SIGUSR1 are passed on: the processes save and end with status 0. When "
       "one ends badly or is lost, all others end, and one line says which and what the last saved "
       "step is. Standard error has the rank before every line. torchrun, Slurm's srun and "
       "Open MPI's mpirun start the same command as well: docs/dist.md.",
       "Processes of foci compare take whole runs, each for itself; when one is lost the others go "
       "on and take its runs too. Rank 0 writes the results; without it all end."}};
}

Verb launch_of(const std::vector<std::string>& arguments) {
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  const Called called = read_call({arguments.begin(), end});
  if (called.verb == "help") return Help{called.word};
  const Words& words = called.words;
  Launch launch{.processes = to_count(text_or(words, "processes", "1")),
                .hosts = parts_of(text_or(words, "hosts", ""), ','),
                .through = parts_of(text_or(words, "through", "ssh"), ' '),
                .master = text_or(words, "master", ""),
                .port = int(std::min(to_count(text_or(words, "port", "0")), most_port + 1)),
                .quiet = words.count("quiet") > 0,
                .command = {}};
  if (end != arguments.end()) launch.command.assign(end + 1, arguments.end());
  const auto hosts = std::int64_t(launch.hosts.size());
  if (launch.processes < 1 || launch.processes > most_processes) {
    throw Misuse(
        fmt::format("--processes {}; it must be 1 to {}", launch.processes, most_processes));
  }
  if (hosts > 0 && launch.processes % hosts != 0) {
    throw Misuse(
        fmt::format("{} processes on {} hosts; each host has as many", launch.processes, hosts));
  }
  if (launch.port > most_port) {
    throw Misuse(fmt::format("--port {} is more than {}", words.at("port"), most_port));
  }
  if (launch.through.empty()) throw Misuse("--through is empty; it needs a command like ssh");
  check_command(launch.command);
  return launch;
}

}  // namespace foci::cli
