// SPDX-License-Identifier: Apache-2.0
// Words, byte pairs, labelled text and time series: what good files give, and each bad line with
// its place. The pieces of GPT-2's splitter are held to those of its regular expression.
#include "data/folder.hpp"

#include <foci/text.hpp>

namespace foci::data {
namespace {

using Strings = std::vector<std::string>;
using namespace std::string_literals;

TEST(Words, AreCountedAsWikiTextDoes) {
  const WordVocabulary words = WordVocabulary::of_text(" \n the cat <unk> \n\n the dog\n");
  EXPECT_EQ(words.words(), (Strings{"<eos>", "the", "cat", "<unk>", "dog"}));
  const Tokens tokens = words.encode("the cow\n\ndog");
  EXPECT_EQ(tokens, (Tokens{1, 3, 0, 0, 4, 0}));
  EXPECT_EQ(words.decode(tokens), "the <unk>\n\ndog\n");
  EXPECT_EQ(WordVocabulary(words.words()).id_of("dog"), 4);
  EXPECT_EQ(WordVocabulary::of_text("a").words(), (Strings{"a", "<eos>", "<unk>"}));
}

TEST(Words, BadVocabulariesAreRefused) {
  const auto fault = [](const Strings& words) {
    return thrown<InvalidArgument>([&] { WordVocabulary{words}; });
  };
  EXPECT_EQ(fault({"a", "<eos>", "<unk>", "a"}), "word 'a' comes twice, as 0 and 3");
  EXPECT_EQ(fault({"a", "<eos>"}), "a vocabulary without <unk>; it needs it");
  const WordVocabulary words({"<unk>", "<eos>"});
  EXPECT_EQ(thrown<InvalidArgument>([&] { words.decode(Tokens{2}); }),
            "token 2 of a vocabulary of 2");
}

Strings pieces(const std::string& text) {
  Strings all;
  for (const std::string_view piece : gpt2_pieces(text)) all.emplace_back(piece);
  return all;
}

TEST(Pieces, AreThoseOfTheRegularExpression) {
  EXPECT_EQ(pieces("Hello world"), (Strings{"Hello", " world"}));
  EXPECT_EQ(pieces("it's we'll I'd 'S"),
            (Strings{"it", "'s", " we", "'ll", " I", "'d", " '", "S"}));
  EXPECT_EQ(pieces("a  b\n\n c \n"), (Strings{"a", " ", " b", "\n\n", " c", " \n"}));
  EXPECT_EQ(pieces("x=12.5!! 3"), (Strings{"x", "=", "12", ".", "5", "!!", " 3"}));
  EXPECT_EQ(pieces("\n\tgo"), (Strings{"\n", "\t", "go"}));
  EXPECT_EQ(pieces("   "), (Strings{"   "}));
  EXPECT_EQ(
      pieces("na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x81 \xc2\xbd\xd9\xa3"),
      (Strings{"na\xc3\xafve", " \xe4\xbd\xa0\xe5\xa5\xbd", "\xef\xbc\x81", " \xc2\xbd\xd9\xa3"}));
  EXPECT_EQ(pieces("a\xc2\xa0\xe3\x80\x80z"), (Strings{"a", "\xc2\xa0", "\xe3\x80\x80", "z"}));
  EXPECT_EQ(pieces("e\xcc\x81 \xf0\x9f\x98\x80x"),
            (Strings{"e", "\xcc\x81", " \xf0\x9f\x98\x80", "x"}));
  EXPECT_EQ(pieces("a\xff\xc3z"), (Strings{"a", "\xff\xc3", "z"}));
}

class Pairs : public InFolder {
 protected:
  /// Every byte by itself, then what the merges make.
  static std::string encoder(const Strings& more) {
    std::string json = "{";
    int id = 0, next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      char text[16];
      std::snprintf(text, sizeof text, "\\u%04x", plain ? b : next++);
      json += std::string(id > 0 ? "," : "") + "\"" + text + "\":" + std::to_string(id);
      ++id;
    }
    for (const std::string& token : more) json += ",\"" + token + "\":" + std::to_string(id++);
    return json + "}";
  }
  std::string bad(const std::string& encoder, const std::string& merges) const {
    return fault([&] { BytePairs(made("e", encoder), made("m", merges)); });
  }
};

TEST_F(Pairs, MergeInOrder) {
  const BytePairs pairs(made("e", encoder({"ab", "abc", "bc", "\\u0120a", "<|end|>"})),
                        made("m", "#version: 0.2\na b\nab c\nb c\n\xc4\xa0 a\n"));
  EXPECT_EQ(pairs.size(), 261);
  EXPECT_EQ(pairs.encode("abc"), (Tokens{257}));
  EXPECT_EQ(pairs.encode("bcb"), (Tokens{258, 'b'}));
  EXPECT_EQ(pairs.encode("x abab"), (Tokens{'x', ' ', 256, 256}));
  EXPECT_EQ(pairs.encode("x ac"), (Tokens{'x', 259, 'c'}));
  const std::string odd = "a\xff\x00 b\n\n\xc3\xa9"s;
  EXPECT_EQ(pairs.decode(pairs.encode(odd)), odd);
  EXPECT_EQ(pairs.decode(Tokens{260}), "<|end|>");
  EXPECT_EQ(thrown<InvalidArgument>([&] { pairs.decode(Tokens{261}); }),
            "token 261 of 261 byte pairs");
}

TEST_F(Pairs, BadFilesAreRefused) {
  EXPECT_EQ(bad("{", ""), "e: is not valid JSON at byte 2");
  EXPECT_EQ(bad("[1]", ""), "e: is no JSON object; it needs token: number");
  EXPECT_EQ(bad("{\"a\":1}", ""), "e: token 'a' has '1'; it needs a number below 1 of its own");
  EXPECT_EQ(bad("{\"a\":0}", ""), "e: has no token for byte 0");
  EXPECT_EQ(bad(encoder({}), "a b\n"), "m: line 1: token 'ab' is not in e");
  EXPECT_EQ(bad(encoder({}), "#version\nab\n"),
            "m: line 2: 'ab'; it needs two tokens and a space between");
}

TEST(Bytes, AreTokens) { EXPECT_EQ(byte_tokens("a\xff"), (Tokens{97, 255})); }

class Lines : public InFolder {
 protected:
  std::string bad_tsv(const std::string& text, const Strings& classes = {}) const {
    return fault([&] { read_tsv(made("f.tsv", text), classes); });
  }
  std::string bad_ts(const std::string& text) const {
    return fault([&] { read_ts(made("f.ts", text)); });
  }
};

TEST_F(Lines, TextFilesAreFound) {
  EXPECT_NE(fault([&] { find_text(folder_, Split::train); }).find("has no train.txt, wiki.train"),
            std::string::npos);
  made("wiki.valid.tokens", "x");
  EXPECT_EQ(read_text(find_text(folder_, Split::valid)), "x");
  EXPECT_EQ(fault([&] { read_text(made("empty.txt", "")); }), "empty.txt: is empty; it needs text");
}

TEST_F(Lines, Tsv) {
  const TextSet set = read_tsv(made("f.tsv", "pos\t9\tso good\nneg\tbad\r\n\npos\t\n"));
  EXPECT_EQ(set.classes, (Strings{"neg", "pos"}));
  ASSERT_EQ(set.samples.size(), 3u);
  EXPECT_EQ(set.samples[0].label, 1);
  EXPECT_EQ(set.samples[0].text, "so good");
  EXPECT_EQ(set.samples[1].text, "bad");
  EXPECT_EQ(set.samples[2].text, "");
  EXPECT_EQ(bad_tsv("a\tb\nc d\n"), "f.tsv: line 2: 'c d' has no tab; it needs class, tab, text");
  EXPECT_EQ(bad_tsv("\tb\n"), "f.tsv: line 1: '\\x09b' has no class; it needs class, tab, text");
  EXPECT_EQ(bad_tsv("2\tb\n", {"0", "1"}), "f.tsv: line 1: class '2' is none of 0, 1");
  EXPECT_EQ(bad_tsv("\n"), "f.tsv: holds no samples; it needs a line for each");
}

const std::string head =
    "# a comment\n@problemName P\n@univariate false\n@classLabel true u v\n@data\n";

TEST_F(Lines, TsOfUnequalLengths) {
  const SeriesSet set = read_ts(made("f.ts", head + "1,2.5:-3,4e1:v\n0:7: u\n"));
  EXPECT_EQ(set.classes, (Strings{"u", "v"}));
  EXPECT_EQ(set.channels, 2);
  EXPECT_EQ(set.longest, 2);
  ASSERT_EQ(set.samples.size(), 2u);
  EXPECT_EQ(set.samples[0].values, (std::vector<float>{1, 2.5, -3, 40}));
  EXPECT_EQ(set.samples[0].label, 1);
  EXPECT_EQ(set.samples[1].length, 1);
}

TEST_F(Lines, BadTsIsToldWithItsLine) {
  EXPECT_EQ(bad_ts("@problemName P\n"), "f.ts: has no line @data");
  EXPECT_EQ(bad_ts("1,2:u\n"), "f.ts: line 1: '1,2:u' before @data");
  EXPECT_EQ(bad_ts("@data\n"),
            "f.ts: line 1: @data without @classLabel true before it; it needs classes");
  EXPECT_EQ(bad_ts("@classLabel false\n"), "f.ts: line 1: @classLabel needs true and the classes");
  EXPECT_EQ(bad_ts("@timeStamps true\n"),
            "f.ts: line 1: @timeStamps true; only evenly spaced series are read");
  EXPECT_EQ(bad_ts("@targetLabel true\n"),
            "f.ts: line 1: @targetLabel; only series with classes are read");
  EXPECT_EQ(bad_ts(head), "f.ts: has no samples after @data");
  EXPECT_EQ(bad_ts(head + "1,2\n"), "f.ts: line 6: no colon; it needs values, a colon, the class");
  EXPECT_EQ(bad_ts(head + "1:2:w\n"), "f.ts: line 6: class 'w' is none of those of @classLabel");
  EXPECT_EQ(bad_ts(head + "1,?:2,3:u\n"),
            "f.ts: line 6: value 2 of channel 1 is '?'; missing values are not read");
  EXPECT_EQ(bad_ts(head + "1:2x:u\n"),
            "f.ts: line 6: value 1 of channel 2 is '2x'; it needs a finite number");
  EXPECT_EQ(bad_ts(head + "1:2:u\n1:2:3:u\n"),
            "f.ts: line 7: has 3 channels; the samples before have 2");
  EXPECT_EQ(bad_ts(head + "1,2:3:u\n"), "f.ts: line 6: channel 2 has 1 values; the first has 2");
}

}  // namespace
}  // namespace foci::data
