// SPDX-License-Identifier: Apache-2.0
// Folders of images: a folder per class, or a flat folder with a list of names and classes beside
// it. Files are found when the set is opened and decoded when they are asked for.
#include "data/folder.hpp"

#include "data/image_set.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace foci::data {
namespace {

namespace fs = std::filesystem;

bool is_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return char(std::tolower(c)); });
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

ImageSet read_image_folder(const std::string& folder) {
  ImageSet::Contents all;
  all.classes = folders_in(folder);
  if (all.classes.empty()) refuse(folder, "has no folders; it needs one for each class");
  for (std::size_t label = 0; label < all.classes.size(); ++label) {
    const std::string of_class = joined(folder, all.classes[label]);
    const std::vector<std::string> images = images_below(of_class);
    if (images.empty()) {
      refuse(of_class, "has no images; a class needs at least one .jpg, .jpeg or .png");
    }
    all.files.insert(all.files.end(), images.begin(), images.end());
    all.labels.insert(all.labels.end(), images.size(), int(label));
  }
  return set_of(std::move(all));
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
