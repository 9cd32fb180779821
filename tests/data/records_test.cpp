// SPDX-License-Identifier: Apache-2.0
// IDX and CIFAR: what a good file gives, plain and packed; and each way a file can be wrong, told
// with its place. SHA-256 against published sums.
#include "data/folder.hpp"

namespace foci::data {
namespace {

class Idx : public InFolder {
 protected:
  std::string bad(const std::string& images, const std::string& labels) const {
    return fault([&] { read_idx(made("i", images), made("l", labels)); });
  }
};

TEST_F(Idx, GivesImagesAndLabels) {
  const ImageSet set = read_idx(made("i", idx_images(3, 2, 4)), made("l", idx_labels({0, 2, 1})));
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.classes(), (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_FALSE(set.has_masks());
  EXPECT_EQ(set.label(1), 2);
  const Image image = set.image(1);
  EXPECT_EQ(image.height, 2);
  EXPECT_EQ(image.width, 4);
  EXPECT_EQ(image.channels, 1);
  EXPECT_EQ(image.pixels, (std::vector<std::uint8_t>{40, 45, 50, 55, 60, 65, 70, 75}));
  EXPECT_EQ(*image.at(1, 2), 70);
  EXPECT_EQ(bare(set.name(2)), "i #2");
  EXPECT_EQ(to_string(set.pixels().sizes()), "(3, 2, 4, 1)");
  EXPECT_EQ(thrown<InvalidArgument>([&] { set.image(3); }), "image 3 of a set of 3");
  EXPECT_EQ(thrown<InvalidArgument>([&] { set.mask(0); }), "this set has classes and no masks");
}

TEST_F(Idx, ReadsGzip) {
  if (!reads_gzip()) GTEST_SKIP() << "this build has no zlib";
  const std::string images = made("i", idx_images(3, 2, 4));
  ASSERT_EQ(std::system(("gzip -k " + images).c_str()), 0);
  const std::string labels = made("l", idx_labels({0, 2, 1}));
  EXPECT_EQ(read_idx(images + ".gz", labels).image(2), read_idx(images, labels).image(2));
  const std::string packed = read_all(images + ".gz");
  const auto cut = fault([&] { read_idx(made("c", packed.substr(0, 30)), labels); });
  EXPECT_EQ(cut, "c: gzip data end early, at byte 30");
  std::string broken = packed;
  broken[12] = char(0xff);
  EXPECT_TRUE(fault([&] {
                read_idx(made("b", broken), labels);
              }).starts_with("b: gzip data are corrupt at byte "));
}

TEST_F(Idx, RefusesWhatIsWrong) {
  const std::string images = idx_images(3, 2, 4), labels = idx_labels({0, 2, 1});
  EXPECT_EQ(bad("", labels), "i: ends at byte 0; the header of IDX needs 16");
  EXPECT_EQ(bad(labels + "12345", labels),
            "i: has magic 0x00000801 at byte 0; it needs 0x00000803, bytes of rank 3");
  EXPECT_EQ(bad(images.substr(0, 20), labels),
            "i: has 4 bytes after its header of 16; its sizes (3, 2, 4) need 24");
  EXPECT_EQ(bad(images + "x", labels),
            "i: has 25 bytes after its header of 16; its sizes (3, 2, 4) need 24");
  EXPECT_EQ(bad(idx_images(0, 2, 4), idx_labels("")),
            "i: holds nothing: its first size, at byte 4, is 0");
  EXPECT_EQ(bad(big(0x803) + big(1) + big(0) + big(4), labels),
            "i: has 0 as size 1 at byte 8; it needs 1 to 32768");
  EXPECT_EQ(bad(images, idx_labels("ab")), "l: has 2 labels; i has 3 images");
  EXPECT_EQ(fault([&] { read_idx(at("none"), at("l")); }),
            "none: cannot be opened: No such file or directory");
  EXPECT_TRUE(thrown<FileError>([&] {
                read_idx(folder_, at("l"));
              }).ends_with(": is a folder; it needs a file"));
}

class CifarFile : public InFolder {
 protected:
  static std::string record(const std::string& labels, int shade) {
    std::string bytes = labels;
    for (int c = 0; c < 3; ++c) bytes += std::string(1024, char(shade + c));
    return bytes;
  }
};

TEST_F(CifarFile, GivesInterleavedPixels) {
  const ImageSet set = read_cifar(
      {made("a", record("\3", 10) + record("\7", 20)), made("b", record("\1", 30))}, Cifar::ten);
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.classes()[3], "cat");
  EXPECT_EQ(set.label(2), 1);
  const Image image = set.image(1);
  EXPECT_EQ(image.height, 32);
  EXPECT_EQ(image.channels, 3);
  EXPECT_EQ(image.at(31, 31)[0], 20);
  EXPECT_EQ(image.at(31, 31)[2], 22);
  EXPECT_EQ(bare(set.name(1)), "a #1");
  EXPECT_EQ(bare(set.name(2)), "b #0");
}

TEST_F(CifarFile, TakesTheFineLabelOfAHundred) {
  const ImageSet set = read_cifar({made("a", record("\3\x63", 10))}, Cifar::hundred);
  EXPECT_EQ(set.label(0), 99);
  EXPECT_EQ(set.classes().size(), 100u);
}

TEST_F(CifarFile, RefusesWhatIsWrong) {
  const std::string two = record("\3", 1) + record("\x0a", 2);
  EXPECT_EQ(fault([&] { read_cifar({made("a", two)}, Cifar::ten); }),
            "a: has label 10 at byte 3073 (record 1); it needs 0 to 9");
  EXPECT_EQ(fault([&] { read_cifar({made("a", two.substr(0, 4000))}, Cifar::ten); }),
            "a: has 4000 bytes, which end inside record 1; it needs whole records of 3073 and at "
            "least one");
  EXPECT_EQ(fault([&] { read_cifar({made("a", "")}, Cifar::hundred); }),
            "a: has 0 bytes, which end inside record 0; it needs whole records of 3074 and at "
            "least one");
  EXPECT_EQ(thrown<InvalidArgument>([&] { read_cifar({}, Cifar::ten); }),
            "read_cifar got no files; it needs at least one");
}

class Sum : public InFolder {};

TEST_F(Sum, IsThePublishedOne) {
  EXPECT_EQ(sha256_of_file(made("e", "")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_of_file(made("abc", "abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of_file(made("a", std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(fault([&] { sha256_of_file(at("none")); }), "none: cannot be opened");
}

TEST_F(Sum, OfAFolderKnowsNamesAndBytes) {
  const std::string folder = std::filesystem::path(made("b", "two")).parent_path().string();
  made("a", "one");
  const auto line = [](const char* text, const char* name) {
    return sha256_of_text(text) + "  " + name + "\n";
  };
  const Fingerprint whole = fingerprint_of(folder);
  EXPECT_TRUE(whole.read);
  EXPECT_EQ(whole.sha256, sha256_of_text(line("one", "a") + line("two", "b")));
  const Fingerprint seen = fingerprint_of(folder, 5);
  EXPECT_FALSE(seen.read);
  EXPECT_EQ(seen.sha256, sha256_of_text("3  a\n3  b\n"));
  EXPECT_EQ(fingerprint_of(made("abc", "abc")).sha256, sha256_of_text("abc"));
}

}  // namespace
}  // namespace foci::data
