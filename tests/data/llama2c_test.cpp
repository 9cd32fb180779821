// SPDX-License-Identifier: Apache-2.0
// llama2.c's models and tokenizers: where each weight lies, how text is merged, and each bad file.
#include "data/folder.hpp"

#include <foci/llama2c.hpp>

#include <cmath>
#include <cstring>

namespace foci::data {
namespace {

using namespace std::string_literals;

template <class T>
std::string raw(T number) {
  std::string bytes(sizeof number, 0);
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

std::string header(const std::vector<std::int32_t>& numbers) {
  std::string bytes;
  for (const std::int32_t number : numbers) bytes += raw(number);
  return bytes;
}

std::string floats(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += raw(float(i));
  return bytes;
}

class Llama2cFile : public InFolder {
 protected:
  std::string fault_of(const std::string& bytes) {
    return fault([&] { read_llama2c(made("model.bin", bytes)); });
  }
};

TEST_F(Llama2cFile, HasItsWeightsOneAfterAnother) {
  // dim 4, hidden 3, 2 layers, 2 heads, 1 key head, vocabulary 5 with a head of its own, context 6
  const Llama2c model =
      read_llama2c(made("model.bin", header({4, 3, 2, 2, 1, -5, 6}) + floats(240)));
  EXPECT_EQ(model.vocabulary, 5);
  EXPECT_EQ(model.context, 6);
  const std::vector<std::tuple<std::string, Shape, float>> expected = {
      {"embed", {5, 4}, 0},   {"norm1", {2, 4}, 20},    {"q", {2, 4, 4}, 28},
      {"k", {2, 2, 4}, 60},   {"v", {2, 2, 4}, 76},     {"proj", {2, 4, 4}, 92},
      {"norm2", {2, 4}, 124}, {"gate", {2, 3, 4}, 132}, {"down", {2, 4, 3}, 156},
      {"up", {2, 3, 4}, 180}, {"norm", {4}, 204},       {"head", {5, 4}, 220},
  };
  for (const auto& [name, shape, first] : expected) {
    const View view = model.weights.at(name);
    EXPECT_EQ(Shape(view.sizes().begin(), view.sizes().end()), shape) << name;
    EXPECT_EQ(*static_cast<const float*>(view.data), first) << name;
  }
}

TEST_F(Llama2cFile, BadOnesAreRefused) {
  EXPECT_EQ(fault_of("abc"), "model.bin: has 3 bytes; its header alone has 28");
  EXPECT_EQ(fault_of(header({4, 3, 0, 2, 1, 5, 6})),
            "model.bin: layers is 0; it must lie between 1 and 1048576: is this a llama2.c model?");
  EXPECT_EQ(fault_of(header({4, 3, 2, 2, 1, INT32_MIN, 6})),
            "model.bin: vocabulary is 2147483648; it must lie between 1 and 1048576: is this a "
            "llama2.c model?");
  EXPECT_EQ(fault_of(header({4, 3, 2, 4, 1, 5, 6})),
            "model.bin: dim 4 over 4 heads; each needs an even size");
  EXPECT_EQ(fault_of(header({12, 3, 2, 6, 4, 5, 6})),
            "model.bin: 6 heads is no multiple of 4 key heads");
  EXPECT_EQ(fault_of(header({4, 3, 2, 2, 1, 5, 6}) + floats(219)),
            "model.bin: has 904 bytes; 2 layers of dim 4, vocabulary 5 need 908");
  EXPECT_EQ(fault_of(header({4, 3, 2, 2, 1, 5, 6}) + floats(221)),
            "model.bin: has 912 bytes; 2 layers of dim 4, vocabulary 5 need 908");
}

class Tokenizer : public InFolder {
 protected:
  static std::string piece(float score, const std::string& text) {
    return raw(score) + raw(std::int32_t(text.size())) + text;
  }
  static std::string bytes_alone() {
    std::string bytes = raw(std::int32_t(6));
    for (const char* special : {"<unk>", "\n<s>\n", "\n</s>\n"}) bytes += piece(0, special);
    constexpr char digits[] = "0123456789ABCDEF";
    for (int b = 0; b < 256; ++b) bytes += piece(0, "<0x"s + digits[b / 16] + digits[b % 16] + ">");
    return bytes;
  }
  std::string fault_of(const std::string& bytes) {
    return fault([&] { ScoredPieces(made("tokenizer.bin", bytes)); });
  }
};

TEST_F(Tokenizer, MergesTheHighestScoreFirst) {
  std::string bytes = bytes_alone();
  // 259 " ", 260 a, 261 b, 262 c, 263 ab, 264 bc, 265 " a", 266 abc, 267 é
  const std::vector<std::pair<float, const char*>> text = {
      {-9, " "},  {-9, "a"},  {-9, "b"},   {-9, "c"},       {-3, "ab"},
      {-2, "bc"}, {-1, " a"}, {-4, "abc"}, {-9, "\xc3\xa9"}};
  for (const auto& [score, piece_text] : text) bytes += piece(score, piece_text);
  const ScoredPieces pieces(made("tokenizer.bin", bytes));
  EXPECT_EQ(pieces.size(), 268);
  EXPECT_EQ(pieces.encode(""), Tokens{1});
  EXPECT_EQ(pieces.encode("abc"), (Tokens{1, 265, 264}));        // " a" and bc go before ab
  EXPECT_EQ(pieces.encode("cabc"), (Tokens{1, 259, 262, 266}));  // bc, then a + bc
  EXPECT_EQ(pieces.encode("\xc3\xa9\xc3\xb6"), (Tokens{1, 259, 267, 3 + 0xc3, 3 + 0xb6}));
  for (const std::string& any : {"abc cab"s, " a"s, "<0x41>\n"s, "\xff\x00z"s, "\xf0\x9f\x98\x80"s})
    EXPECT_EQ(pieces.decode(pieces.encode(any)), any);
  EXPECT_EQ(pieces.decode(Tokens{265, 264}), " abc");
  EXPECT_EQ(thrown<InvalidArgument>([&] { pieces.decode(Tokens{268}); }),
            "token 268 of 268 pieces");
}

TEST_F(Tokenizer, BadOnesAreRefused) {
  EXPECT_EQ(fault_of("ab"), "tokenizer.bin: ends within its first number");
  EXPECT_EQ(fault_of(bytes_alone() + "1234567"), "tokenizer.bin: ends within piece 259");
  EXPECT_EQ(fault_of(bytes_alone() + raw(0.f) + raw(std::int32_t(5)) + "four"),
            "tokenizer.bin: piece 259 has length 5; 4 bytes are left");
  EXPECT_EQ(fault_of(bytes_alone() + raw(0.f) + raw(std::int32_t(-1))),
            "tokenizer.bin: piece 259 has length -1; 0 bytes are left");
  EXPECT_EQ(fault_of(bytes_alone() + piece(INFINITY, "a")),
            "tokenizer.bin: piece 259 has the score inf");
  EXPECT_EQ(fault_of(raw(std::int32_t(6)) + piece(0, "<unk>")),
            "tokenizer.bin: has 1 pieces; none is <0x00>");
  std::string other = bytes_alone();
  other.replace(other.find("<0x0A>"), 6, "<0x0B>");
  EXPECT_EQ(fault_of(other), "tokenizer.bin: piece 13 is '<0x0B>'; it must be <0x0A>");
}

}  // namespace
}  // namespace foci::data
