// SPDX-License-Identifier: Apache-2.0
// The links of Markdown files that stay inside the repository: does the file exist, does the
// heading? Web addresses are left alone, and so is everything inside code.
#pragma once

#include "house/tree.hpp"

#include <cctype>
#include <functional>
#include <map>
#include <regex>
#include <set>

namespace house {

struct Link {
  int line = 0;
  std::string target;
};

/// The lines of a Markdown file with code blanked, so that what looks like a link there is not one.
inline std::vector<std::string> prose_of(const File& file) {
  static const std::regex fence(R"(^\s*(```|~~~))"), code("`[^`]*`");
  auto lines = lines_of(file.text);
  bool fenced = false;
  for (auto& line : lines) {
    const bool is_fence = std::regex_search(line, fence);
    if (is_fence) fenced = !fenced;
    line = is_fence || fenced ? "" : std::regex_replace(line, code, "``");
  }
  return lines;
}

inline std::vector<Link> links_of(const File& file) {
  static const std::regex link(
      R"re(\]\(([^()\s]+)(?: "[^"]*")?\)|(?:src|href|srcset)="([^"]+)")re");
  std::vector<Link> links;
  int number = 0;
  for (const auto& line : prose_of(file)) {
    ++number;
    for (std::sregex_iterator it(line.begin(), line.end(), link), end; it != end; ++it) {
      links.push_back({number, (*it)[1].matched ? (*it)[1] : (*it)[2]});
    }
  }
  return links;
}

/// What a heading is called in an address: lower case, spaces to hyphens, punctuation dropped.
inline std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto u = static_cast<unsigned char>(c);
    if (c == ' ') {
      anchor += '-';
    } else if (u >= 0x80 || std::isalnum(u) || c == '-' || c == '_') {
      anchor += char(std::tolower(u));
    }
  }
  return anchor;
}

inline std::set<std::string> anchors_of(const File& file) {
  static const std::regex heading(R"(^#{1,6} +(.*?) *#*$)"), fence(R"(^\s*(```|~~~))");
  std::set<std::string> anchors;
  std::map<std::string, int> seen;
  bool fenced = false;
  for (const auto& line : lines_of(file.text)) {
    std::smatch match;
    if (std::regex_search(line, fence)) fenced = !fenced;
    if (fenced || !std::regex_match(line, match, heading)) continue;
    const auto anchor = anchor_of(match[1]);
    const int before = seen[anchor]++;
    anchors.insert(before == 0 ? anchor : anchor + "-" + std::to_string(before));
  }
  return anchors;
}

/// `exists` answers for a path from the root, file or folder.
inline Findings check_links(const std::vector<File>& files,
                            const std::function<bool(const std::string&)>& exists) {
  Findings found;
  const auto headings = [&](const std::string& path) {
    const auto it =
        std::find_if(files.begin(), files.end(), [&](const File& f) { return f.path == path; });
    return it == files.end() ? std::set<std::string>{} : anchors_of(*it);
  };
  for (const auto& file : files) {
    if (extension(file.path) != ".md") continue;
    for (const auto& link : links_of(file)) {
      if (link.target.find("://") != std::string::npos || link.target.starts_with("mailto:"))
        continue;
      const auto hash = std::min(link.target.find('#'), link.target.size());
      const auto name = link.target.substr(0, hash);
      const auto folder = std::filesystem::path(file.path).parent_path();
      const auto path = name.empty() ? file.path : (folder / name).lexically_normal().string();
      if (!exists(path)) {
        found.push_back({file.path, link.line, "a link to nothing: " + link.target});
      } else if (hash < link.target.size() && extension(path) == ".md" &&
                 !headings(path).contains(link.target.substr(hash + 1))) {
        found.push_back({file.path, link.line, "a link to no heading: " + link.target});
      }
    }
  }
  return found;
}

}  // namespace house
