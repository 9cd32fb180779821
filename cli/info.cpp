// SPDX-License-Identifier: Apache-2.0
// foci info: what this build can do, told by the dispatcher itself.
#include "cli/machine.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/attention.hpp>
#include <foci/device.hpp>
#include <foci/executor.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>

namespace foci::cli {
namespace {

template <class Part>
std::vector<std::string> distinct(const std::vector<Support>& cells, Part part) {
  std::vector<std::string> names;
  for (const Support& cell : cells) {
    const std::string name(cell.*part);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

/// A backend is in this build when it can do anything at all.
bool is_built(const std::vector<Support>& cells, const std::string& backend) {
  return std::any_of(cells.begin(), cells.end(), [&](const Support& cell) {
    return cell.backend == backend && cell.supported;
  });
}

const Support& cell_of(const std::vector<Support>& cells, const Support& like) {
  return *std::find_if(cells.begin(), cells.end(), [&](const Support& cell) {
    return cell.metric == like.metric && cell.weighting == like.weighting &&
           cell.backend == like.backend;
  });
}

/// Why nothing of this backend is supported, as its first cell tells it.
std::string why_not_built(const std::vector<Support>& cells, const std::string& backend) {
  for (const Support& cell : cells) {
    if (cell.backend == backend && !cell.supported) return cell.why_not;
  }
  return {};
}

std::vector<Device> gpus() { return has_cuda() ? devices() : std::vector<Device>(); }

/// "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139 GiB"
std::string gpu_text(const Device& gpu) {
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {} GiB{}{}", gpu.name,
                     gpu.major, gpu.minor, gpu.multiprocessors, gpu.memory >> 30,
                     gpu.why_not.empty() ? "" : ": not usable, ", gpu.why_not);
}

Json devices_json() {
  Json names = {"cpu"};
  for (const Device& gpu : gpus()) names.push_back("cuda: " + gpu_text(gpu));
  return names;
}

Json json_of(const std::vector<Support>& cells, const Info& verb) {
  Json built = Json::array(), absent = Json::object(), mechanisms = Json::array();
  for (const std::string& backend : distinct(cells, &Support::backend)) {
    if (is_built(cells, backend)) {
      built.push_back(backend);
    } else {
      absent[backend] = why_not_built(cells, backend);
    }
  }
  for (const Support& cell : cells) {
    mechanisms.push_back({{"metric", cell.metric},
                          {"weighting", cell.weighting},
                          {"backend", cell.backend},
                          {"supported", cell.supported},
                          {"why_not", cell.why_not}});
  }
  return {
      {"version", version()},
      {"commit", commit_text()},
      {"backends", built},
      {"absent", absent},
      {"isas", isas()},
      {"isa", {{"f32", isa(DType::f32)}, {"bf16", isa(DType::bf16)}}},
      {"devices", devices_json()},
      {"machine", {{"model", cpu_model()}, {"cores", cpu_cores()}, {"has", instruction_sets()}}},
      {"threads", Executor(verb.common.threads).threads()},
      {"mechanisms", mechanisms}};
}

/// A cross needs no reason in the table: the sentence below it gives them.
void print_markdown(const std::vector<Support>& cells) {
  for (const std::string& backend : distinct(cells, &Support::backend)) {
    if (!is_built(cells, backend)) continue;
    fmt::print("| `{}` | {} |\n|---", backend, listed(distinct(cells, &Support::weighting), " | "));
    for (std::size_t i = 0; i < distinct(cells, &Support::weighting).size(); ++i)
      fmt::print("|:---:");
    fmt::print("|\n");
    for (const std::string& metric : distinct(cells, &Support::metric)) {
      fmt::print("| {} |", metric);
      for (const std::string& weighting : distinct(cells, &Support::weighting)) {
        const Support cell = cell_of(cells, {metric, weighting, backend, false, {}});
        fmt::print(" {} |", cell.supported ? "✓" : "–");
      }
      fmt::print("\n");
    }
    fmt::print("\n");
  }
}

void print_table(const std::vector<Support>& cells) {
  const auto weightings = distinct(cells, &Support::weighting);
  for (const std::string& backend : distinct(cells, &Support::backend)) {
    if (!is_built(cells, backend)) continue;
    fmt::print("\n");
    std::vector<std::string> head = {"metric on " + backend};
    head.insert(head.end(), weightings.begin(), weightings.end());
    Table table(head);
    std::vector<std::string> reasons;
    for (const std::string& metric : distinct(cells, &Support::metric)) {
      std::vector<std::string> row = {metric};
      for (const std::string& weighting : weightings) {
        const Support cell = cell_of(cells, {metric, weighting, backend, false, {}});
        row.emplace_back(cell.supported ? "yes" : "no");
        if (!cell.supported) reasons.push_back(cell.why_not);
      }
      table.add(row);
    }
    table.print();
    for (const std::string& reason : reasons) fmt::print("no: {}\n", reason);
  }
}

}  // namespace

int run(const Info& verb) {
  const std::vector<Support> cells = support();
  if (verb.common.json) {
    print_json(json_of(cells, verb));
    return 0;
  }
  if (verb.markdown) {
    print_markdown(cells);
    return 0;
  }
  const int threads = Executor(verb.common.threads).threads();
  const std::string bf16(isa(DType::bf16)), wide(isa(DType::f32));  // where FOCI_ISA makes sense
  fmt::print("foci {} ({})\n", version(), commit_text());
  for (const std::string& backend : distinct(cells, &Support::backend)) {
    fmt::print("backend {:<5}{}\n", backend,
               is_built(cells, backend) ? painted("in this build", Paint::good)
                                        : painted("not in this build", Paint::faint));
  }
  fmt::print("device  cpu  {}, {} thread{} by --threads\n", machine_text(), threads,
             threads == 1 ? "" : "s");
  for (const Device& gpu : gpus()) fmt::print("device  cuda {}\n", gpu_text(gpu));
  if (verb.common.quiet) return 0;
  const auto names = isas();
  fmt::print("isa     {}{} (of {}: FOCI_ISA chooses)\n", wide,
             bf16 == wide ? "" : ", " + bf16 + " for softmax over bf16",
             listed({names.begin(), names.end()}));
  print_table(cells);
  return 0;
}

}  // namespace foci::cli
