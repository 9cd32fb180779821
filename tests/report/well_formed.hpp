// SPDX-License-Identifier: Apache-2.0
// Is a text well-formed XML? Tags that close in order, attributes in quotes and once each, known
// entities, no stray sign. Enough of the grammar for what writes no comments and no DTD.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace foci {

/// Empty, or what is wrong and where.
inline std::string xml_fault(const std::string& text) {
  const auto at = [](const char* what, std::size_t place) {
    return std::string(what) + " at " + std::to_string(place);
  };
  const auto bad_entity = [](const std::string& part) {
    for (std::size_t i = part.find('&'); i != part.npos; i = part.find('&', i + 1)) {
      const std::string name = part.substr(i, part.find(';', i) - i);
      if (name != "&amp" && name != "&lt" && name != "&gt" && name != "&quot") return true;
    }
    return false;
  };
  std::vector<std::string> open;
  std::size_t roots = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t next = text.find('<', i);
    const std::string between = text.substr(i, next - i);
    if (bad_entity(between) || between.find('>') != between.npos) return at("a stray sign", i);
    if (open.empty() && between.find_first_not_of(" \n") != between.npos) return at("text", i);
    for (const char c : between) {
      if ((unsigned char)c < 0x20 && c != '\n') return at("a control character", i);
    }
    if (next == text.npos) break;
    const std::size_t end = text.find('>', next);
    if (end == text.npos) return at("an open tag", next);
    std::string tag = text.substr(next + 1, end - next - 1);
    i = end + 1;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return at("a tag that closes none", next);
      open.pop_back();
      continue;
    }
    const bool alone = tag.ends_with('/');
    if (alone) tag.pop_back();
    std::size_t place = tag.find(' ');
    const std::string name = tag.substr(0, place);
    if (open.empty() && ++roots > 1) return at("a second root", next);
    if (name.empty()) return at("a tag without a name", next);
    for (std::set<std::string> seen; place != tag.npos;) {
      place = tag.find_first_not_of(' ', place);
      if (place == tag.npos) break;
      const std::size_t equals = tag.find("=\"", place);
      if (equals == tag.npos) return at("an attribute without quotes", next);
      const std::string attribute = tag.substr(place, equals - place);
      if (attribute.find(' ') != attribute.npos) return at("a stray word", next);
      if (!seen.insert(attribute).second) return at("an attribute twice", next);
      const std::size_t close = tag.find('"', equals + 2);
      if (close == tag.npos) return at("an open quote", next);
      const std::string value = tag.substr(equals + 2, close - equals - 2);
      if (bad_entity(value) || value.find('<') != value.npos) return at("a stray sign", next);
      place = close + 1;
    }
    if (!alone) open.push_back(name);
  }
  return !open.empty() ? "never closed: " + open.back() : roots == 1 ? "" : "no root";
}

}  // namespace foci
