// SPDX-License-Identifier: Apache-2.0
// Folders of images: a folder per class, or a flat folder with a list of names and classes beside
// it. Files are found when the set is opened and decoded when they are asked for.
#include "data/folder.hpp"

#include "data/image_set.hpp"

#include <foci/error.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <set>

namespace foci::data {
namespace {

namespace fs = std::filesystem;

/// In small letters.
std::string ending_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return char(std::tolower(c)); });
  return ending;
}

bool is_image_name(const fs::path& path) {
  const std::string ending = ending_of(path);
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with("."); }

template <class Iterator>
std::vector<fs::path> paths_of(const std::string& folder) {
  std::error_code fault;
  std::vector<fs::path> paths;
  Iterator it(folder, fault);
  for (; !fault && it != Iterator(); it.increment(fault)) paths.push_back(it->path());
  if (fault) refuse(folder, fmt::format("cannot be read as a folder: {}", fault.message()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

bool is_folder(const std::string& path) {
  std::error_code fault;
  return fs::is_directory(path, fault);
}

bool is_file(const std::string& path) {
  std::error_code fault;
  return fs::is_regular_file(path, fault);
}

std::string joined(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

std::vector<std::string> folders_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::path& path : paths_of<fs::directory_iterator>(folder)) {
    if (is_folder(path.string()) && !is_hidden(path)) names.push_back(path.filename().string());
  }
  return names;
}

std::vector<std::string> images_below(const std::string& folder) {
  std::vector<std::string> images;
  for (const fs::path& path : paths_of<fs::recursive_directory_iterator>(folder)) {
    if (is_image_name(path) && !is_hidden(path) && is_file(path.string())) {
      images.push_back(path.string());
    }
  }
  return images;
}

std::vector<std::string> read_lines(const std::string& path) {
  const Bytes bytes = read_file(path);
  std::string_view rest = text_of(bytes);
  std::vector<std::string> lines;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

namespace {

/// The images of one class, at least one.
std::vector<std::string> images_of(const std::string& of_class) {
  std::vector<std::string> images = images_below(of_class);
  if (images.empty()) {
    refuse(of_class, "has no images; a class needs at least one .jpg, .jpeg or .png");
  }
  return images;
}

/// The same number for a name on every machine: FNV-1a, and its bits mixed once more, since names
/// often differ in their last letter alone.
std::uint64_t number_of(std::string_view name) {
  std::uint64_t number = 14695981039346656037u;
  for (const char c : name) number = (number ^ static_cast<unsigned char>(c)) * 1099511628211u;
  number = (number ^ number >> 32) * 0xd6e8feb86659fd93u;
  return number ^ number >> 32;
}

void add(ImageSet::Contents& all, const std::vector<std::string>& images, std::size_t label) {
  all.files.insert(all.files.end(), images.begin(), images.end());
  all.labels.insert(all.labels.end(), images.size(), int(label));
}

}  // namespace

ImageSet read_image_folder(const std::string& folder) {
  return read_class_folders(folder, folders_in(folder));
}

std::string reason_for_no_set(const std::string& folder) {
  static const std::set<std::string> others = {".avif", ".bmp", ".gif",  ".heic", ".heif",
                                               ".jp2",  ".ppm", ".tiff", ".tif",  ".webp"};
  constexpr int deep = 2;
  std::size_t loose = 0;
  std::string other;
  std::error_code fault;
  fs::recursive_directory_iterator it(folder, fault), end;
  for (; !fault && it != end; it.increment(fault)) {
    if (it.depth() >= deep) it.disable_recursion_pending();
    loose += it.depth() == 0 && is_image_name(it->path());
    if (others.count(ending_of(it->path())) > 0) other = ending_of(it->path());
  }
  if (loose > 0) {
    return fmt::format("{} image{} in no folder of {} class", loose, loose == 1 ? " lies" : "s lie",
                       loose == 1 ? "its" : "their");
  }
  return other.empty() ? "" : fmt::format("there are {} files, and read are JPEG and PNG", other);
}

ImageSet read_class_folders(const std::string& folder, const std::vector<std::string>& classes) {
  ImageSet::Contents all;
  all.classes = classes;
  const std::vector<std::string> names = folders_in(folder);
  if (names.empty()) refuse(folder, "has no folders; it needs one for each class");
  for (const std::string& name : names) {
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end()) {
      refuse(joined(folder, name),
             fmt::format("is none of the {} classes of the training split", classes.size()));
    }
    add(all, images_of(joined(folder, name)), std::size_t(found - classes.begin()));
  }
  return set_of(std::move(all));
}

ImageSet read_fifths(const std::string& folder, Split split) {
  ImageSet::Contents all;
  all.classes = folders_in(folder);
  for (std::size_t label = 0; label < all.classes.size(); ++label) {
    const std::string of_class = joined(folder, all.classes[label]);
    std::vector<std::pair<std::uint64_t, std::string>> images;
    for (const std::string& path : images_of(of_class)) {
      const fs::path name = fs::path(path).lexically_relative(folder);
      images.emplace_back(number_of(name.generic_string()), path);
    }
    if (images.size() < 2) {
      refuse(of_class, "has one image; without train/ and test/ a class needs two");
    }
    std::sort(images.begin(), images.end());
    const std::size_t fifth = std::max<std::size_t>(1, images.size() / 5);
    const bool test = split == Split::test;
    std::vector<std::string> part;
    for (std::size_t i = test ? 0 : fifth; i < (test ? fifth : images.size()); ++i)
      part.push_back(images[i].second);
    std::sort(part.begin(), part.end());
    add(all, part, label);
  }
  return set_of(std::move(all));
}

bool splits_itself(const std::string& folder) {
  static constexpr std::array<std::string_view, 11> taken = {
      "train",   "training", "val",         "valid",      "validation",          "test",
      "testing", "images",   "annotations", "trainannot", "cifar-10-batches-bin"};
  if (!is_folder(folder)) return false;
  const std::vector<std::string> names = folders_in(folder);
  const auto is_taken = [&](const std::string& name) {
    return std::find(taken.begin(), taken.end(), name) != taken.end();
  };
  return std::none_of(names.begin(), names.end(), is_taken) &&
         std::any_of(names.begin(), names.end(), [&](const std::string& name) {
           return !images_below(joined(folder, name)).empty();
         });
}

ImageSet read_image_list(const std::string& folder, const std::string& list,
                         const std::vector<std::string>& classes) {
  ImageSet::Contents all;
  all.classes = classes;
  int number = 0;
  for (const std::string& line : read_lines(list)) {
    ++number;
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) {
      refuse(list, fmt::format("line {}: {} has no tab; it needs a file's name, a tab, its class",
                               number, in_quotes(line)));
    }
    const std::string word = line.substr(tab + 1, line.find('\t', tab + 1) - tab - 1);
    const auto found = std::lower_bound(classes.begin(), classes.end(), word);
    if (found == classes.end() || *found != word) {
      refuse(list, fmt::format("line {}: class {} is none of the {} of the training split", number,
                               in_quotes(word), classes.size()));
    }
    all.files.push_back(joined(folder, line.substr(0, tab)));
    all.labels.push_back(int(found - classes.begin()));
    if (!is_file(all.files.back())) {
      refuse(list, fmt::format("line {}: there is no file {}", number, all.files.back()));
    }
  }
  if (all.files.empty()) refuse(list, "names no images; the split is empty");
  return set_of(std::move(all));
}

}  // namespace foci::data
