// SPDX-License-Identifier: Apache-2.0
// Words, bytes and time series that are harmed: how many, which, and the same for the same seed.
#include "data/folder.hpp"

#include <foci/corrupt_sequences.hpp>

#include <numeric>

namespace foci::corrupt {
namespace {

/// The old text, from the new one and what changed.
std::string undone(const HarmedText& harmed) {
  std::string text;
  std::size_t done = 0;
  for (const TextChange& change : harmed.changes) {
    text += harmed.text.substr(done, std::size_t(change.at) - done) + change.from;
    done = std::size_t(change.at) + change.to.size();
    EXPECT_EQ(harmed.text.substr(std::size_t(change.at), change.to.size()), change.to);
  }
  return text + harmed.text.substr(done);
}

TEST(Words, ALineLosesAtLeastOneWordThatIsNoStopWord) {
  const std::string text =
      " = Robert <unk> = \n\nthe of and\n He was @-@ , well-known in 2000 @,@ 5 . \nlast";
  const HarmedText harmed = swap_words(text, {.rate = 0.015, .chance = {3, 0}});
  EXPECT_EQ(harmed.words, 2 + 0 + 3 + 6 + 1);  // He was well-known in 2000 5
  EXPECT_EQ(undone(harmed), text);
  ASSERT_EQ(harmed.changes.size(), 3u);  // a heading, the sentence, the last line
  for (const TextChange& change : harmed.changes) EXPECT_EQ(change.to, "AAA");
  EXPECT_EQ(harmed.changes[2].from, "last");
  const HarmedText all = swap_words(text, {.rate = 1});
  EXPECT_EQ(all.text, " = AAA <AAA> = \n\nthe of and\n AAA was @-@ , AAA in AAA @,@ AAA . \nAAA");
  EXPECT_TRUE(swap_words(all.text, {.rate = 1}).changes.empty());  // AAA stays AAA
  EXPECT_EQ(harmed.text, swap_words(text, {.rate = 0.015, .chance = {3, 0}}).text);
}

TEST(Words, ARateIsThatOfAllWordsOfALine) {
  std::string line;
  for (int i = 0; i < 200; ++i) line += "word" + std::to_string(i) + " ";
  for (const auto& [rate, count] : {std::pair(0.015, 3u), {0.05, 10u}, {0.001, 1u}})
    EXPECT_EQ(swap_words(line, {.rate = rate}).changes.size(), count);
  EXPECT_NE(swap_words(line, {.rate = 0.05, .chance = {1, 0}}).text,
            swap_words(line, {.rate = 0.05, .chance = {2, 0}}).text);
  EXPECT_NE(swap_words(line, {.rate = 0.05, .chance = {1, 0}}).text,
            swap_words(line, {.rate = 0.05, .chance = {1, 1}}).text);
  for (const double rate : {0.0, -1.0, 1.5}) {
    EXPECT_EQ(thrown<InvalidArgument>([&] { swap_words(line, {.rate = rate}); }),
              fmt::format("a rate of {:g}; it must lie in (0, 1]", rate));
  }
}

class Synonym : public data::InFolder {};

TEST_F(Synonym, ComesFromAListAndKeepsItsCapital) {
  const Synonyms synonyms = read_synonyms(made("s.txt", "quick fast\nfox reynard \nquick rapid\n"));
  EXPECT_EQ(synonyms.at("quick"), (std::vector<std::string>{"fast", "rapid"}));
  const std::string text = "Quick brown fox\n";
  const HarmedText harmed = swap_synonyms(text, synonyms, {.rate = 1});
  EXPECT_EQ(undone(harmed), text);
  ASSERT_EQ(harmed.changes.size(), 2u);
  EXPECT_TRUE(harmed.changes[0].to == "Fast" || harmed.changes[0].to == "Rapid");
  EXPECT_EQ(harmed.changes[1].to, "reynard");
  EXPECT_EQ(fault([&] { read_synonyms(made("bad.txt", "a b\na\n")); }),
            "bad.txt: line 2 has 1 words; it needs a word and its synonym");
  EXPECT_EQ(fault([&] { read_synonyms(made("none.txt", "")); }), "none.txt: holds no synonyms");
}

TEST(Bytes, ChangeAtTheirRateAndNeverTheSpaces) {
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += i % 10 == 9 ? '\n' : i % 10 == 4 ? ' ' : char('a' + i % 26);
  const HarmedText harmed = change_bytes(text, {.rate = 0.1});
  EXPECT_EQ(undone(harmed), text);
  EXPECT_NEAR(double(harmed.changes.size()) / 16000, 0.1, 0.01);
  for (const TextChange& change : harmed.changes) {
    EXPECT_NE(change.from, change.to);
    EXPECT_TRUE(change.to[0] > ' ' && change.to[0] <= '~');
    EXPECT_TRUE(change.from[0] > ' ');
  }
}

std::vector<float> harmed_zeros(std::int64_t length, std::int64_t channels, SeriesHarm how) {
  std::vector<float> values(std::size_t(length * channels),
                            how.kind == SeriesHarm::missing ? 1.0f : 0.0f);
  harm_series(values, channels, how);
  return values;
}

TEST(Series, NoiseSpikesAndMissingSpansGrowWithSeverity) {
  constexpr double deviations[] = {.1, .2, .4, .7, 1}, spiked[] = {.01, .02, .04, .07, .1};
  constexpr double missing[] = {.05, .1, .2, .35, .5};
  for (int severity = 1; severity <= 5; ++severity) {
    const auto noise = harmed_zeros(5000, 2, {SeriesHarm::noise, severity});
    const double squares = std::inner_product(noise.begin(), noise.end(), noise.begin(), 0.0);
    EXPECT_NEAR(std::sqrt(squares / 10000), deviations[severity - 1], 0.03);
    const auto spikes = harmed_zeros(5000, 2, {SeriesHarm::spikes, severity});
    const auto up = std::count(spikes.begin(), spikes.end(), 5.0f);
    const auto down = std::count(spikes.begin(), spikes.end(), -5.0f);
    EXPECT_NEAR(double(up + down) / 10000, spiked[severity - 1], 0.01);
    EXPECT_TRUE(up > 0 && down > 0);
    const auto gone = harmed_zeros(200, 3, {SeriesHarm::missing, severity});
    EXPECT_EQ(std::count(gone.begin(), gone.end(), 0.0f),
              3 * std::lround(200 * missing[severity - 1]));
    for (std::size_t i = 0; i < gone.size(); i += 3) EXPECT_EQ(gone[i], gone[i + 2]);
  }
  EXPECT_EQ(harmed_zeros(50, 2, {SeriesHarm::noise, 2, {1, 4}}),
            harmed_zeros(50, 2, {SeriesHarm::noise, 2, {1, 4}}));
  EXPECT_NE(harmed_zeros(50, 2, {SeriesHarm::noise, 2, {1, 4}}),
            harmed_zeros(50, 2, {SeriesHarm::noise, 2, {1, 5}}));
  EXPECT_EQ(harmed_zeros(1, 2, {SeriesHarm::missing, 1}), (std::vector<float>{0, 0}));
}

TEST(Series, BadInput) {
  std::vector<float> values(6);
  for (const int severity : {0, 6}) {
    EXPECT_EQ(thrown<InvalidArgument>([&] {
                harm_series(values, 2, {SeriesHarm::noise, severity});
              }),
              fmt::format("severity {}; it must be 1 to 5", severity));
  }
  EXPECT_EQ(thrown<InvalidArgument>([&] { harm_series(values, 4, {}); }),
            "a series of 6 values has no 4 channels");
}

}  // namespace
}  // namespace foci::corrupt
