// SPDX-License-Identifier: Apache-2.0
// What a header may say: good ones are taken, and each wrong one is refused with its own message.
#include "safetensors/header.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "safetensors/made_file.hpp"
#include "thrown.hpp"

namespace foci {
namespace {

std::string refusal(const std::string& file) {
  return thrown<FileError>([&] { Safetensors(bytes_of(file), "f"); });
}

/// One tensor "a" whose object holds `fields`.
std::string tensor(const std::string& fields, std::size_t data_bytes) {
  return made_file("{\"a\":{" + fields + "}}", std::string(data_bytes, '\0'));
}

struct Case {
  std::string name, file, message;
};

void PrintTo(const Case& c, std::ostream* to) { *to << c.name; }

std::vector<Case> faults_of_the_frame() {
  return {
      {"NoLength", "1234567", "f: has 7 bytes; a safetensors file needs at least 8"},
      {"HugeLength", length_bytes(100'000'001) + "{}",
       "f: says its header has 100000001 bytes; at most 100000000 are allowed; "
       "is it a safetensors file?"},
      {"LargestLength", length_bytes(~std::uint64_t(0)) + "{}",
       "f: says its header has 18446744073709551615 bytes; at most 100000000 are allowed; "
       "is it a safetensors file?"},
      {"LengthPastTheEnd", length_bytes(3) + "{}",
       "f: says its header has 3 bytes, but only 2 follow"},
      {"NoHeader", made_file(""), "f: header does not begin with {; is it a safetensors file?"},
      {"SpaceFirst", made_file(" {}"),
       "f: header does not begin with {; is it a safetensors file?"},
      {"ByteOrderMark", made_file("\xef\xbb\xbf{}"),
       "f: header does not begin with {; is it a safetensors file?"},
      {"List", made_file("[]"), "f: header does not begin with {; is it a safetensors file?"},
      {"NewlineAfter", made_file("{}\n"),
       "f: header does not end with }; only spaces may follow it"},
      {"ZeroAfter", made_file(std::string("{}\0}", 4)), "f: header is not valid JSON at byte 2"},
      {"TwoObjects", made_file("{} {}"), "f: header is not valid JSON at byte 4"},
      {"Garbage", made_file("{x}"), "f: header is not valid JSON at byte 2"},
      {"Comment", made_file("{/**/}"), "f: header is not valid JSON at byte 2"},
      {"Unclosed", made_file("{\"a\":{}"), "f: tensor \"a\" has no dtype"},
      {"TrailingComma", made_file("{\"__metadata__\":{},}"),
       "f: header is not valid JSON at byte 20"},
      {"NotUtf8", made_file("{\"\xff\":{}}"), "f: header is not valid UTF-8 at byte 2"},
      {"Overlong", made_file("{\"\xc0\xaf\":{}}"), "f: header is not valid UTF-8 at byte 2"},
      {"SurrogateByte", made_file("{\"a\xed\xa0\x80\":{}}"),
       "f: header is not valid UTF-8 at byte 3"},
      {"CutCharacter", made_file("{\"\xe2\x82\":{}}"), "f: header is not valid UTF-8 at byte 2"},
      {"LoneSurrogate", made_file("{\"\\ud800\":{}}"), "f: header is not valid JSON at byte 9"},
      {"TrailingData", made_file("{}", "x"),
       "f: tensors need 0 bytes of data, but the file holds 1"},
  };
}

const std::string a = "f: tensor \"a\" ";

std::vector<Case> faults_of_a_tensor() {
  const std::string good = R"("dtype":"U8","shape":[2],"data_offsets":[0,2])";
  const std::string object_message = "; it needs an object of dtype, shape and data_offsets";
  return {
      {"IsNull", made_file("{\"a\":null}"), a + "is null" + object_message},
      {"IsList", made_file("{\"a\":[]}"), a + "is a list" + object_message},
      {"IsNumber", made_file("{\"a\":7}"), a + "is 7" + object_message},
      {"IsString", made_file("{\"a\":\"b\"}"), a + "is \"b\"" + object_message},
      {"IsTrue", made_file("{\"a\":true}"), a + "is true" + object_message},
      {"NoDtype", tensor(R"("shape":[2],"data_offsets":[0,2])", 2), a + "has no dtype"},
      {"NoShape", tensor(R"("dtype":"U8","data_offsets":[0,2])", 2), a + "has no shape"},
      {"NoOffsets", tensor(R"("dtype":"U8","shape":[2])", 2), a + "has no data_offsets"},
      {"OtherField", tensor(good + R"(,"strides":[1])", 2),
       a + "has a field \"strides\"; it needs dtype, shape and data_offsets only"},
      {"DtypeTwice", tensor(good + R"(,"dtype":"U8")", 2), a + "says dtype twice"},
      {"ShapeTwice", tensor(good + R"(,"shape":[2])", 2), a + "says shape twice"},
      {"OffsetsTwice", tensor(good + R"(,"data_offsets":[0,2])", 2), a + "says data_offsets twice"},
      {"UnknownDtype", tensor(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])", 8),
       a + "has unknown dtype \"F33\"; it needs one of the format's, like F32"},
      {"LowerCaseDtype", tensor(R"("dtype":"f32","shape":[2],"data_offsets":[0,8])", 8),
       a + "has unknown dtype \"f32\"; it needs one of the format's, like F32"},
      {"DtypeNumber", tensor(R"("dtype":32)", 0), a + "has dtype 32; it needs a string"},
      {"DtypeList", tensor(R"("dtype":["U8"])", 0), a + "has dtype a list; it needs a string"},
  };
}

std::vector<Case> faults_of_a_shape() {
  const std::string shape_message = "; it needs a list of sizes >= 0";
  const auto shape = [](const std::string& s) {
    return tensor("\"dtype\":\"F32\",\"data_offsets\":[0,8],\"shape\":" + s, 8);
  };
  return {
      {"ShapeString", shape("\"2\""), a + "has \"2\" as shape" + shape_message},
      {"ShapeNumber", shape("2"), a + "has 2 as shape" + shape_message},
      {"ShapeNegative", shape("[-2]"), a + "has -2 as shape" + shape_message},
      {"ShapeFraction", shape("[2.0]"), a + "has 2.0 as shape" + shape_message},
      {"ShapeExponent", shape("[2e0]"), a + "has 2e0 as shape" + shape_message},
      {"ShapePast64Bits", shape("[18446744073709551616]"),
       a + "has 18446744073709551616 as shape" + shape_message},
      {"ShapeNested", shape("[[2]]"), a + "has a list as shape" + shape_message},
      {"ShapeObject", shape("{}"), a + "has an object as shape" + shape_message},
      {"ShapeFalse", shape("[false]"), a + "has false as shape" + shape_message},
      {"ShapeOverflows", shape("[4294967296,4294967296,2]"),
       a + "has a shape too large; it needs fewer than 2^61 bytes"},
      {"BitsOverflow", shape("[2305843009213693952]"),
       a + "has a shape too large; it needs fewer than 2^61 bytes"},
      {"EmptyButOverflows", shape("[0,18446744073709551615,18446744073709551615]"),
       a + "has a shape too large; it needs fewer than 2^61 bytes"},
      {"WrapsToTheRightSize", shape("[4611686018427387906]"),
       a + "has a shape too large; it needs fewer than 2^61 bytes"},
  };
}

std::vector<Case> faults_of_offsets() {
  const std::string offsets_message = " in data_offsets; it needs [begin, end]";
  const auto offsets = [](const std::string& s) {
    return tensor("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" + s, 8);
  };
  return {
      {"OneOffset", offsets("[8]"), a + "has 1 numbers in data_offsets; it needs 2"},
      {"ThreeOffsets", offsets("[0,8,8]"), a + "has 8" + offsets_message},
      {"NegativeOffset", offsets("[-1,7]"), a + "has -1" + offsets_message},
      {"OffsetString", offsets("[\"0\",8]"), a + "has \"0\"" + offsets_message},
      {"OffsetsNull", offsets("null"), a + "has null" + offsets_message},
      {"OffsetsObject", offsets("{}"), a + "has an object" + offsets_message},
      {"OffsetsBackwards", offsets("[8,0]"),
       a + "lies at [8, 0), but its shape and type need 8 bytes"},
      {"OffsetsWrap", offsets("[18446744073709551615,7]"),
       a + "lies at [18446744073709551615, 7), but its shape and type need 8 bytes"},
      {"TooFewBytes", offsets("[0,7]"), a + "lies at [0, 7), but its shape and type need 8 bytes"},
      {"HalfAByte", tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1),
       a + "has 12 bits; it needs whole bytes"},
      {"SixBits", tensor(R"("dtype":"F6_E3M2","shape":[3],"data_offsets":[0,2])", 2),
       a + "has 18 bits; it needs whole bytes"},
  };
}

std::vector<Case> faults_between_tensors() {
  const std::string empty = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const auto pair = [](const std::string& first, const std::string& second, std::size_t bytes) {
    const std::string head = R"({"dtype":"U8","shape":[2],"data_offsets":)";
    return made_file("{\"a\":" + head + first + "},\"b\":" + head + second + "}}",
                     std::string(bytes, '\0'));
  };
  return {
      {"NameTwice", made_file("{\"a\":" + empty + ",\"a\":" + empty + "}"),
       "f: tensor \"a\" comes twice"},
      {"NameTwiceEscaped", made_file("{\"a\":" + empty + ",\"\\u0061\":" + empty + "}"),
       "f: tensor \"a\" comes twice"},
      {"HoleAtTheStart", pair("[1,3]", "[3,5]", 5),
       "f: tensor \"a\" begins at byte 1 of the data, but the one before ends at 0 (a hole)"},
      {"Hole", pair("[0,2]", "[3,5]", 5),
       "f: tensor \"b\" begins at byte 3 of the data, but the one before ends at 2 (a hole)"},
      {"Overlap", pair("[0,2]", "[1,3]", 3),
       "f: tensor \"b\" begins at byte 1 of the data, but the one before ends at 2 (an overlap)"},
      {"SameBytes", pair("[0,2]", "[0,2]", 2),
       "f: tensor \"b\" begins at byte 0 of the data, but the one before ends at 2 (an overlap)"},
      {"DataCut", pair("[0,2]", "[2,4]", 3),
       "f: tensors need 4 bytes of data, but the file holds 3"},
      {"DataLeft", pair("[0,2]", "[2,4]", 5),
       "f: tensors need 4 bytes of data, but the file holds 5"},
      {"MetadataTwice", made_file("{\"__metadata__\":{},\"__metadata__\":{}}"),
       "f: __metadata__ comes twice"},
      {"MetadataKeyTwice", made_file("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"),
       "f: metadata key \"k\" comes twice"},
      {"MetadataNumber", made_file("{\"__metadata__\":{\"k\":1}}"),
       "f: metadata holds 1; it needs strings only"},
      {"MetadataNested", made_file("{\"__metadata__\":{\"k\":{}}}"),
       "f: metadata holds an object; it needs strings only"},
      {"MetadataListInside", made_file("{\"__metadata__\":{\"k\":[]}}"),
       "f: metadata holds a list; it needs strings only"},
      {"MetadataNull", made_file("{\"__metadata__\":null}"),
       "f: metadata is null; it needs an object of strings"},
      {"MetadataList", made_file("{\"__metadata__\":[]}"),
       "f: metadata is a list; it needs an object of strings"},
      {"MetadataString", made_file("{\"__metadata__\":\"pt\"}"),
       "f: metadata is \"pt\"; it needs an object of strings"},
  };
}

class Refused : public testing::TestWithParam<Case> {};

TEST_P(Refused, WithItsOwnMessage) { EXPECT_EQ(refusal(GetParam().file), GetParam().message); }

const auto name_of_case = [](const testing::TestParamInfo<Case>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Frame, Refused, testing::ValuesIn(faults_of_the_frame()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Tensor, Refused, testing::ValuesIn(faults_of_a_tensor()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Shape, Refused, testing::ValuesIn(faults_of_a_shape()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Offsets, Refused, testing::ValuesIn(faults_of_offsets()), name_of_case);
INSTANTIATE_TEST_SUITE_P(File, Refused, testing::ValuesIn(faults_between_tensors()), name_of_case);

TEST(Header, DeepNestingEndsAtOnce) {
  const std::size_t depth = 5'000'000;
  EXPECT_EQ(refusal(made_file("{\"a\":" + std::string(depth, '[') + "}")),
            "f: tensor \"a\" is a list; it needs an object of dtype, shape and data_offsets");
  std::string objects = "{\"a\":";
  for (std::size_t i = 0; i < 100'000; ++i) objects += "{\"dtype\":";
  EXPECT_EQ(refusal(made_file(objects + "}")),
            "f: tensor \"a\" has dtype an object; it needs a string");
}

TEST(Header, TruncatedAtEveryByteIsRefused) {
  const std::string whole = made_file(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}  )", "xy");
  EXPECT_NO_THROW(Safetensors(bytes_of(whole), "f"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);
    EXPECT_THROW(Safetensors(bytes_of(cut), "f"), FileError) << length;
  }
}

TEST(Header, TruncatedWithTheLengthMadeToFitIsRefused) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  for (std::size_t length = 0; length < header.size(); ++length) {
    const std::string cut = made_file(header.substr(0, length));
    EXPECT_THROW(Safetensors(bytes_of(cut), "f"), FileError) << length;
  }
}

TEST(Header, LongOrStrangeNamesStayOnOneLine) {
  EXPECT_EQ(refusal(made_file("{\"a\\nb\\u001b[31m\\u0085\xc3\xa9\":7}")),
            "f: tensor \"a\\x0ab\\x1b[31m\\xc2\\x85\xc3\xa9\" is 7; "
            "it needs an object of dtype, shape and data_offsets");
  const std::string name = std::string(79, 'x') + "\xc3\xa9" + std::string(1000, 'y');
  EXPECT_EQ(refusal(made_file("{\"" + name + "\":7}")),
            "f: tensor \"" + std::string(79, 'x') +
                "...\" is 7; it needs an object of dtype, shape and data_offsets");
  EXPECT_EQ(thrown<FileError>([] { Safetensors({}, "a\nb\xff"); }),
            "a\\x0ab\\xff: has 0 bytes; a safetensors file needs at least 8");
}

TEST(Header, Utf8IsToldFromOtherBytes) {
  using safetensors::find_invalid_utf8;
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(find_invalid_utf8(good), std::string::npos) << good;
  }
  for (const char* bad : {"\x80", "\xc1\xbf", "\xc2", "\xc2\x20", "\xe0\x9f\xbf", "\xe1\x80",
                          "\xe1\x80\x20", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf1\x80\x80",
                          "\xf1\x80\x80\x20", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(find_invalid_utf8("ab" + std::string(bad)), 2u) << bad;
  }
}

TEST(Header, EveryTypeOfTheFormatIsKnown) {
  const std::map<std::string, int> bits = {
      {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E4M3", 8}, {"F8_E5M2", 8},
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},      {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"I16", 16},        {"U16", 16},        {"F16", 16},    {"BF16", 16},
      {"I32", 32},    {"U32", 32},        {"F32", 32},        {"C64", 64},    {"F64", 64},
      {"I64", 64},    {"U64", 64}};
  for (const auto& [name, size] : bits) {
    const std::string bytes = std::to_string(size / 2);
    const std::string file = tensor(
        "\"dtype\":\"" + name + "\",\"shape\":[4],\"data_offsets\":[0," + bytes + "]", size / 2);
    EXPECT_EQ(Safetensors(bytes_of(file), "f").names(), std::vector<std::string>{"a"}) << name;
  }
}

}  // namespace
}  // namespace foci
