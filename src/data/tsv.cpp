// SPDX-License-Identifier: Apache-2.0
// Labelled text, a sample a line: class, perhaps other fields, text, with tabs between them.
#include "data/lines.hpp"
#include "error/listed.hpp"

#include <foci/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace foci::data {

TextSet parse_tsv(std::string_view bytes, const std::string& name,
                  const std::vector<std::string>& classes) {
  TextSet set;
  std::vector<std::string_view> labels;
  for_each_line(bytes, [&](int number, std::string_view line) {
    if (line.empty()) return;
    const std::size_t tab = line.find('\t');
    if (tab == std::string_view::npos || tab == 0) {
      refuse(name, fmt::format("line {}: {} has {}; it needs class, tab, text", number,
                               in_quotes(line), tab == 0 ? "no class" : "no tab"));
    }
    const std::string_view label = line.substr(0, tab);
    if (!classes.empty() && std::find(classes.begin(), classes.end(), label) == classes.end()) {
      refuse(name, fmt::format("line {}: class {} is none of {}", number, in_quotes(label),
                               listed(classes)));
    }
    labels.push_back(label);
    set.samples.push_back({0, std::string(line.substr(line.rfind('\t') + 1))});
  });
  if (set.samples.empty()) refuse(name, "holds no samples; it needs a line for each");
  set.classes = classes;
  if (classes.empty()) {
    const std::set<std::string_view> seen(labels.begin(), labels.end());
    set.classes.assign(seen.begin(), seen.end());
  }
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto found = std::find(set.classes.begin(), set.classes.end(), labels[i]);
    set.samples[i].label = std::int32_t(found - set.classes.begin());
  }
  return set;
}

TextSet read_tsv(const std::string& path, const std::vector<std::string>& classes) {
  const Bytes bytes = read_maybe_gzip(path);
  return parse_tsv(text_of(bytes), path, classes);
}

}  // namespace foci::data
