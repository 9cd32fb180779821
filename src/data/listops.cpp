// SPDX-License-Identifier: Apache-2.0
// ListOps of the Long Range Arena: trees of MIN, MAX, MED and SM (sum modulo 10) over digits, drawn
// from the top with its published numbers, and kept when their length is within bounds.
#include "data/bytes.hpp"
#include "data/folder.hpp"

#include <foci/error.hpp>
#include <foci/generate.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <unordered_set>

namespace foci::data {
namespace {

constexpr std::string_view operators[] = {"[MIN", "[MAX", "[MED", "[SM"};
constexpr std::int64_t most_samples = 10'000'000;

int result_of(std::string_view name, std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  if (name == "[MIN") return values.front();
  if (name == "[MAX") return values.back();
  if (name == "[SM") return std::accumulate(values.begin(), values.end(), 0) % 10;
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// One drawing of a tree; gives up as soon as it is too long.
class Tree {
 public:
  Tree(const ListOps& how, Random& random) : how_(how), random_(random) {}

  int draw(int depth) {
    const bool leaf = depth >= how_.depth || random_.uniform() > how_.operator_share;
    if (leaf) {
      const int digit = int(random_.below(10));
      length += 1;
      text += std::to_string(digit) + " ";
      return digit;
    }
    const std::string_view name = operators[random_.below(4)];
    const std::int64_t count = random_.between(2, how_.most_arguments);
    length += 2;
    (text += name) += ' ';
    std::vector<int> values;
    for (std::int64_t i = 0; i < count && length < how_.most_length; ++i) {
      values.push_back(draw(depth + 1));
    }
    text += "] ";
    return values.empty() ? 0 : result_of(name, values);  // empty: given up, too long already
  }

  std::string text;
  int length = 0;

 private:
  const ListOps& how_;
  Random& random_;
};

void write_split(const std::string& folder, std::string_view name, std::int64_t count,
                 std::uint64_t seed) {
  std::string lines;
  std::unordered_set<std::string> seen;
  for (std::int64_t i = 0; std::int64_t(seen.size()) < count; ++i) {
    const LabelledText made = make_listops(seed, i);
    if (!seen.insert(made.text).second) continue;
    lines += fmt::format("{}\t{}\n", made.label, made.text);
  }
  write_file(joined(folder, fmt::format("{}.tsv", name)), std::as_bytes(std::span(lines)));
}

}  // namespace

LabelledText make_listops(std::uint64_t seed, std::int64_t index, const ListOps& how) {
  if (how.least_length >= how.most_length - 1 || how.most_arguments < 2 || how.depth < 2) {
    throw InvalidArgument(
        fmt::format("ListOps of lengths between {} and {}, {} arguments, depth {}",
                    how.least_length, how.most_length, how.most_arguments, how.depth));
  }
  Random random(seed, 2, std::uint64_t(index));
  while (true) {
    Tree tree(how, random);
    const int value = tree.draw(1);
    if (tree.length <= how.least_length || tree.length >= how.most_length) continue;
    tree.text.pop_back();
    return {value, std::move(tree.text)};
  }
}

int evaluate_listops(std::string_view text) {
  struct Open {
    std::string_view name;
    std::vector<int> values;
  };
  const auto fail = [](std::size_t at, const std::string& fault) {
    throw InvalidArgument(fmt::format("ListOps at character {}: {}", at, fault));
  };
  std::vector<Open> open;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int value = -1;
    if (std::find(std::begin(operators), std::end(operators), word) != std::end(operators)) {
      open.push_back({word, {}});
    } else if (word == "]") {
      if (open.empty() || open.back().values.empty()) fail(at, "nothing to close");
      value = result_of(open.back().name, open.back().values);
      open.pop_back();
    } else if (word.size() == 1 && word[0] >= '0' && word[0] <= '9') {
      value = word[0] - '0';
    } else {
      fail(at, fmt::format("{} is no digit, operator or ]", in_quotes(word)));
    }
    at = std::min(end + 1, text.size());
    if (value < 0) continue;
    if (!open.empty()) {
      open.back().values.push_back(value);
    } else if (at < text.size()) {
      fail(at, "more after the end");
    } else {
      return value;
    }
  }
  fail(text.size(), "it ends early");
  return 0;
}

void write_listops(const std::string& folder, std::int64_t count, std::uint64_t seed) {
  if (count < 1 || count > most_samples) {
    throw InvalidArgument(
        fmt::format("{} samples of ListOps; it needs 1 to {}", count, most_samples));
  }
  const std::int64_t few = std::max<std::int64_t>(1, count / 48);
  write_split(folder, "train", count, seed);
  write_split(folder, "valid", few, seed + 0x1000000000u);
  write_split(folder, "test", few, seed + 0x2000000000u);
}

}  // namespace foci::data
