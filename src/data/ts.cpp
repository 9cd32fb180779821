// SPDX-License-Identifier: Apache-2.0
// UEA's .ts: lines of @words, then after @data a sample a line, its channels and at the end its
// class with colons between, the values of a channel with commas.
#include "data/lines.hpp"

#include <foci/text.hpp>

#include <fmt/core.h>

#include <cctype>
#include <charconv>
#include <cmath>

namespace foci::data {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  while (!(line = trimmed(line)).empty()) {
    const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
    words.emplace_back(line.substr(0, end));
    line.remove_prefix(end);
  }
  return words;
}

class Reader {
 public:
  Reader(SeriesSet& set, const std::string& name) : set_(set), name_(name) {}

  void take(int number, std::string_view line) {
    number_ = number;
    line = trimmed(line);
    if (line.empty() || line[0] == '#') return;
    if (!in_data_ && line[0] == '@') return header(line);
    if (!in_data_) fail(fmt::format("{} before @data", in_quotes(line)));
    sample(line);
  }

  void finish() const {
    if (!in_data_) refuse(name_, "has no line @data");
    if (set_.samples.empty()) refuse(name_, "has no samples after @data");
  }

 private:
  [[noreturn]] void fail(const std::string& fault) const {
    refuse(name_, fmt::format("line {}: {}", number_, fault));
  }

  void header(std::string_view line) {
    const std::vector<std::string> words = words_of(line);
    const std::string key = lower(words[0]), value = words.size() > 1 ? lower(words[1]) : "";
    if (key == "@data") {
      if (set_.classes.empty()) fail("@data without @classLabel true before it; it needs classes");
      in_data_ = true;
    } else if (key == "@timestamps" && value == "true") {
      fail("@timeStamps true; only evenly spaced series are read");
    } else if (key == "@targetlabel") {
      fail("@targetLabel; only series with classes are read");
    } else if (key == "@classlabel") {
      if (value != "true" || words.size() < 3) fail("@classLabel needs true and the classes");
      set_.classes.assign(words.begin() + 2, words.end());
    }
  }

  void sample(std::string_view line) {
    const std::size_t colon = line.rfind(':');
    if (colon == std::string_view::npos) fail("no colon; it needs values, a colon, the class");
    const std::string_view word = trimmed(line.substr(colon + 1));
    const auto found = std::find(set_.classes.begin(), set_.classes.end(), word);
    if (found == set_.classes.end()) {
      fail(fmt::format("class {} is none of those of @classLabel", in_quotes(word)));
    }
    Series series{std::int32_t(found - set_.classes.begin()), 0, {}};
    std::string_view rest = line.substr(0, colon);
    std::int64_t channel = 0;
    for (bool more = true; more; ++channel) {
      const std::size_t end = rest.find(':');
      more = end != std::string_view::npos;
      values(series, rest.substr(0, end), channel);
      if (more) rest.remove_prefix(end + 1);
    }
    if (set_.channels == 0) set_.channels = channel;
    if (channel != set_.channels) {
      fail(fmt::format("has {} channels; the samples before have {}", channel, set_.channels));
    }
    set_.longest = std::max(set_.longest, series.length);
    set_.samples.push_back(std::move(series));
  }

  void values(Series& to, std::string_view text, std::int64_t channel) const {
    std::int64_t count = 0;
    for (bool more = true; more; ++count) {
      const std::size_t comma = text.find(',');
      more = comma != std::string_view::npos;
      const std::string_view word = trimmed(text.substr(0, comma));
      float value = 0;
      const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), value);
      const bool whole = fault == std::errc{} && end == word.data() + word.size();
      if (!whole || !std::isfinite(value)) {
        const bool missing = word == "?" || lower(word) == "nan";
        fail(fmt::format("value {} of channel {} is {}; {}", count + 1, channel + 1,
                         in_quotes(word),
                         missing ? "missing values are not read" : "it needs a finite number"));
      }
      to.values.push_back(value);
      if (more) text.remove_prefix(comma + 1);
    }
    if (channel == 0) to.length = count;
    if (count != to.length) {
      fail(
          fmt::format("channel {} has {} values; the first has {}", channel + 1, count, to.length));
    }
  }

  SeriesSet& set_;
  const std::string& name_;
  int number_ = 0;
  bool in_data_ = false;
};

}  // namespace

SeriesSet parse_ts(std::string_view bytes, const std::string& name) {
  SeriesSet set;
  Reader reader(set, name);
  for_each_line(bytes, [&](int number, std::string_view line) { reader.take(number, line); });
  reader.finish();
  return set;
}

SeriesSet read_ts(const std::string& path) {
  const Bytes bytes = read_maybe_gzip(path);
  return parse_ts(text_of(bytes), path);
}

}  // namespace foci::data
