// SPDX-License-Identifier: Apache-2.0
// foci data: the list of known sets, and what can be made when nothing is there.
#include "cli/data.hpp"

#include "cli/data_sets.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"

#include <foci/error.hpp>
#include <foci/executor.hpp>
#include <foci/generate.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

namespace foci::cli {
namespace {

/// What `foci data make` knows, with the number of training samples it makes unless told.
struct Made {
  std::string_view name, task, means;
  std::int64_t count;
  void (*write)(const std::string& folder, std::int64_t count, std::uint64_t seed);
};

const std::vector<Made>& made_sets() {
  static const std::vector<Made> sets = {
      {"listops", "long sequences", "expressions of 500 to 2000 tokens, 10 classes, as TSV", 96000,
       data::write_listops},
      {"pathfinder", "long sequences", "32 x 32 grey curves, connected or not, as IDX", 20000,
       data::write_pathfinder},
      {"images", "classification", "28 x 28 grey shapes, 4 classes, as IDX", 2000,
       data::write_made_images},
      {"streets", "segmentation", "64 x 48 scenes, 7 of CamVid's classes, as images and masks", 400,
       data::write_made_streets},
  };
  return sets;
}

const Made& find_made(const std::string& name) {
  std::vector<std::string> names;
  for (const Made& made : made_sets()) {
    if (made.name == name) return made;
    names.emplace_back(made.name);
  }
  throw Misuse(fmt::format("cannot make '{}'{}", shown(name), suggestion(name, names)),
               "one of " + listed(names));
}

/// Of every file in the folder, by its path from there. Made sets are no deeper.
Json sums_in(const std::string& folder) {
  Json sums = Json::object();
  if (!std::filesystem::is_directory(folder)) return sums;
  constexpr int deep = 1;
  for (std::filesystem::recursive_directory_iterator it(folder), end; it != end; ++it) {
    if (it.depth() >= deep) it.disable_recursion_pending();
    const auto& entry = *it;
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().lexically_relative(folder).string();
    sums[name] = data::sha256_of_file(entry.path().string());
  }
  return sums;
}

}  // namespace

bool is_made(std::string_view name) {
  const auto& all = made_sets();
  return std::any_of(all.begin(), all.end(), [&](const Made& made) { return made.name == name; });
}

int list_data(const Data& verb) {
  if (verb.common.json) {
    Json sets = Json::array();
    const auto add = [&](auto name, auto task, auto size, auto format, const std::string& origin) {
      sets.push_back(
          {{"name", name}, {"task", task}, {"size", size}, {"format", format}, {"from", origin}});
    };
    for (const KnownSet& set : known_sets()) {
      add(set.name, set.task, set.size, set.format, origin_text(set));
    }
    for (const Made& made : made_sets()) {
      add(made.name, made.task, made.means, "made", "foci data make");
    }
    print_json({{"sets", sets}, {"threads", Executor(verb.common.threads).threads()}});
    return 0;
  }
  for (const KnownSet& set : known_sets()) {
    fmt::print("{:<16}{:<21}{}\n", set.name, set.task, set.size);
    if (!verb.common.quiet) {
      fmt::print("{:16}{}\n", "",
                 painted(fmt::format("{}; {}", set.format, origin_text(set)), Paint::faint));
    }
  }
  for (const Made& made : made_sets()) {
    fmt::print("{:<16}{:<21}{}\n", made.name, made.task, made.means);
    if (!verb.common.quiet) fmt::print("{:16}{}\n", "", painted("foci data make", Paint::faint));
  }
  return 0;
}

int make_data(const Data& verb) {
  const Made& made = find_made(verb.name);
  const std::string folder = verb.out.empty() ? "data/" + verb.name : verb.out;
  const std::int64_t count = verb.count.value_or(made.count);
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  const Json before = sums_in(folder);
  made.write(folder, count, verb.common.seed);
  const Json sums = sums_in(folder);
  const auto others = std::count_if(before.items().begin(), before.items().end(), [&](auto& file) {
    return sums.value(file.key(), Json()) != file.value();
  });
  if (others > 0 && !verb.common.quiet) {
    warn(fmt::format("{}: {} file{} that lay there {} replaced by what is made now", shown(folder),
                     others, others == 1 ? "" : "s", others == 1 ? "was" : "were"));
  }
  if (verb.common.json) {
    print_json({{"made", made.name},
                {"folder", folder},
                {"count", count},
                {"seed", verb.common.seed},
                {"sha256", sums}});
  } else if (!verb.common.quiet) {
    fmt::print("{} {} for training in {}; foci data show {}\n", count, made.name, folder, folder);
  }
  return 0;
}

int run(const Data& verb) {
  switch (verb.action) {
    case Data::Action::list:
      return list_data(verb);
    case Data::Action::get:
      return get_data(verb);
    case Data::Action::show:
      return show_data(verb);
    case Data::Action::make:
      break;
  }
  return make_data(verb);
}

}  // namespace foci::cli
