// SPDX-License-Identifier: Apache-2.0
// Pictures decode to what PIL makes of them (stored answers); folders of classes, lists and masks
// are found; and each bad file or folder is told with its place.
#include "data/folder.hpp"

#include <foci/subset.hpp>

#include <span>

namespace foci::data {
namespace {

bool has(const std::string& format) {
  const auto formats = image_formats();
  return std::find(formats.begin(), formats.end(), format) != formats.end();
}

class Pictures : public InFolder {
 protected:
  void SetUp() override {
    if (!has("jpeg") || !has("png")) GTEST_SKIP() << "this build lacks libjpeg or libpng";
  }
  /// A PNG whose pixels are these.
  std::string mask(const std::string& name, std::vector<std::uint8_t> values, int width) const {
    Image image(int(values.size()) / width, width, 1);
    image.pixels = std::move(values);
    made(name, "");
    write_png(at(name), image);
    return at(name);
  }
  std::string picture(const std::string& name) const {
    return made(name, read_all(golden + "colour.jpg"));
  }
  static std::string flaw(const std::string& bytes) {
    return thrown<FileError>([&] { decode_image(std::as_bytes(std::span(bytes)), "f"); });
  }
};

TEST_F(Pictures, AreWhatPilMakesOfThem) {
  for (const std::string name : {"colour.jpg", "grey.jpg", "ink.jpg", "progressive.jpg",
                                 "palette.png", "alpha.png", "bits.png"}) {
    const Image image = read_image(golden + name);
    const Image answer = read_image(golden + name.substr(0, name.find('.')) + "-rgb.png");
    EXPECT_EQ(image.channels, 3);
    EXPECT_TRUE(image == answer) << name;
  }
}

TEST_F(Pictures, PngComesBack) {
  for (const int channels : {1, 3}) {
    Image image(5, 7, channels);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = std::uint8_t(i * 11);
    write_png(at("x.png"), image);
    if (channels == 3) {
      EXPECT_EQ(read_image(at("x.png")), image);
    } else {
      EXPECT_EQ(read_mask(at("x.png")), image);
    }
  }
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_png(at("x.png"), Image(1, 1, 2)); }),
            "an image of 2 channels; PNG needs 1 or 3");
  EXPECT_EQ(thrown<InvalidArgument>([&] { Image(0, 1, 2); }),
            "an image of 0 x 1 x 2; it needs sizes of at least 1");
  EXPECT_EQ(fault([&] { write_png(at("no/x.png"), Image(1, 1, 1)); }),
            "no/x.png: cannot be written: No such file or directory");
}

TEST_F(Pictures, AMaskKeepsItsIndices) {
  const Image mask = read_mask(golden + "palette.png");
  EXPECT_EQ(mask.channels, 1);
  EXPECT_LT(*std::max_element(mask.pixels.begin(), mask.pixels.end()), 13);
}

TEST_F(Pictures, CorruptOnesAreRefused) {
  const std::string jpeg = read_all(golden + "colour.jpg"), png = read_all(golden + "alpha.png");
  EXPECT_EQ(flaw(""), "f: is empty; it needs a JPEG or PNG image");
  EXPECT_EQ(flaw("GIF89a"), "f: begins with 47 49 46 38; it needs a JPEG or PNG image");
  EXPECT_TRUE(flaw(jpeg.substr(0, 1000)).starts_with("f: is corrupt near byte "));
  EXPECT_TRUE(flaw(jpeg.substr(0, 1000)).ends_with(" of 1000: Premature end of JPEG file"));
  EXPECT_TRUE(flaw(jpeg.substr(0, 100)).starts_with("f: is corrupt near byte ")) << flaw(jpeg);
  EXPECT_EQ(flaw(png.substr(0, 700)), "f: is corrupt near byte 700 of 700: the file ends early");
  std::string broken = png;
  broken[100] = char(broken[100] + 1);
  EXPECT_TRUE(flaw(broken).starts_with("f: is corrupt near byte ")) << flaw(broken);
  const std::string tall = png.substr(0, 16) + big(1 << 19) + big(1 << 19) + png.substr(24);
  EXPECT_TRUE(flaw(tall).starts_with("f: is corrupt near byte 33")) << flaw(tall);
}

TEST_F(Pictures, NotEveryPictureIsAMask) {
  EXPECT_EQ(fault([&] { read_mask(picture("m.jpg")); }),
            "m.jpg: is a JPEG, which does not keep classes; a mask needs to be a PNG");
  EXPECT_EQ(fault([&] { read_mask(made("m.png", read_all(golden + "colour-rgb.png"))); }),
            "m.png: has 3 channels; a mask needs 1, a class per pixel");
  EXPECT_EQ(fault([&] { read_mask(made("m.gif", "GIF89a")); }),
            "m.gif: begins with 47 49 46 38; it needs a JPEG or PNG image");
}

TEST_F(Pictures, AFolderForEachClass) {
  picture("train/dog/b.jpg");
  picture("train/dog/images/a.JPEG");
  picture("train/cat/c.jpg");
  made("train/cat/notes.txt", "x");
  made("classes.txt", "cat\ta cat\ndog\ta dog\n");
  const ImageSet set = open_images(folder_, Split::train);
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(set.classes(), (std::vector<std::string>{"a cat", "a dog"}));
  EXPECT_EQ(bare(set.name(1)), "train/dog/b.jpg");
  EXPECT_EQ(set.label(0), 0);
  EXPECT_EQ(set.label(2), 1);
  EXPECT_EQ(set.image(2), read_image(golden + "colour.jpg"));
  EXPECT_FALSE(bool(set.pixels()));
  made("val/x", "");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::valid); }),
            "val: is neither folders of classes nor has a list val.txt");
  picture("val/v.jpg");
  made("val.txt", "v.jpg\tdog\t0\t0\n");
  EXPECT_EQ(open_images(folder_, Split::valid).label(0), 1);
}

TEST_F(Pictures, TinyImageNetAsItIsPublished) {
  picture("train/n01/images/n01_0.JPEG");
  picture("train/n02/images/n02_0.JPEG");
  made("train/n01/n01_boxes.txt", "n01_0.JPEG\t0\t0\t1\t1\n");
  picture("val/images/val_0.JPEG");
  picture("val/images/val_1.JPEG");
  made("val/val_annotations.txt",
       "val_0.JPEG\tn02\t0\t32\t44\t62\nval_1.JPEG\tn01\t52\t55\t57\t59\n");
  picture("test/images/test_0.JPEG");
  EXPECT_EQ(open_images(folder_, Split::train).size(), 2);
  const ImageSet valid = open_images(folder_, Split::valid);
  ASSERT_EQ(valid.size(), 2);
  EXPECT_EQ(valid.classes(), (std::vector<std::string>{"n01", "n02"}));
  EXPECT_EQ(bare(valid.name(0)), "val/images/val_0.JPEG");
  EXPECT_EQ(valid.label(0), 1);
  EXPECT_EQ(valid.label(1), 0);
  EXPECT_EQ(valid.image(0), read_image(golden + "colour.jpg"));
  EXPECT_EQ(fault([&] { open_images(folder_, Split::test); }),
            "test: images without their classes are no split that is known: judge by val/, "
            "--split valid");
  made("val/val_annotations.txt", "val_0.JPEG\tn03\t0\t32\t44\t62\n");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::valid); }),
            "val/val_annotations.txt: line 1: class 'n03' is none of the 2 of the training split");
}

TEST_F(Pictures, BadFoldersAreRefused) {
  const auto open = [&] { open_images(folder_, Split::train); };
  EXPECT_EQ(fault([&] { open_images(at("none"), Split::train); }),
            "none: is no folder; it needs one that holds a set of images");
  EXPECT_NE(fault(open).find("has no train split that is known; it needs IDX"), std::string::npos);
  EXPECT_NE(fault([&] { read_image_folder(folder_); }).find("has no folders; it needs one"),
            std::string::npos);
  made("train/dog/notes.txt", "x");
  EXPECT_EQ(fault(open),
            "train/dog: has no images; a class needs at least one .jpg, .jpeg or .png");
  made("train/dog/a.jpg", "");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::train).image(0); }),
            "train/dog/a.jpg: is empty; it needs a JPEG or PNG image");
  const auto valid = [&] { open_images(folder_, Split::valid); };
  picture("val/v.jpg");
  made("val.txt", "v.jpg dog\n");
  EXPECT_EQ(fault(valid),
            "val.txt: line 1: 'v.jpg dog' has no tab; it needs a file's name, a tab, its class");
  made("val.txt", "v.jpg\tdog\nv.jpg\tcow\n");
  EXPECT_EQ(fault(valid), "val.txt: line 2: class 'cow' is none of the 1 of the training split");
  made("val.txt", "w.jpg\tdog\n");
  EXPECT_EQ(fault(valid), "val.txt: line 1: there is no file val/w.jpg");
  made("val.txt", "");
  EXPECT_EQ(fault(valid), "val.txt: names no images; the split is empty");
}

TEST_F(Pictures, ClassesOfATestSplitGoByName) {
  for (const char* name : {"train/ant/a.jpg", "train/bee/b.jpg", "train/cow/c.jpg"}) picture(name);
  picture("test/cow/x.jpg");
  picture("test/bee/y.jpg");
  const ImageSet test = open_images(folder_, Split::test);
  EXPECT_EQ(test.classes(), (std::vector<std::string>{"ant", "bee", "cow"}));
  EXPECT_EQ(test.label(0), 1);
  EXPECT_EQ(test.label(1), 2);
  picture("test/dog/z.jpg");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::test); }),
            "test/dog: is none of the 3 classes of the training split");
}

TEST_F(Pictures, OtherSetsTakeTheClassesOfARun) {
  picture("a/train/cow/x.jpg");
  picture("a/train/ant/y.jpg");
  const ImageSet set = open_images(at("a"), Split::train);
  const ImageSet named = with_classes(set, {"ant", "bee", "cow"});
  EXPECT_EQ(named.label(0), 0);
  EXPECT_EQ(named.label(1), 2);
  EXPECT_EQ(named.classes().size(), 3u);
  EXPECT_EQ(fault([&] {
              with_classes(set, {"ant", "bee"});
            }),
            "a/train/cow/x.jpg: class 'cow' is none of the 2 of the training set");
  EXPECT_EQ(with_classes(set, {"0", "1", "2"}).label(1), 1);  // numbers are places
  picture("b/test/3/x.jpg");  // but not where both are numbers, of which one set has a few
  EXPECT_EQ(with_classes(open_images(at("b"), Split::test), {"0", "1", "2", "3"}).label(0), 3);
  EXPECT_EQ(fault([&] { with_classes(set, {"0"}); }),
            "a/train/cow/x.jpg: has label 1; the training set has 1 classes");
}

TEST_F(Pictures, AFolderWithoutSplitsKeepsAFifthOfEachClass) {
  const auto names = [](const ImageSet& set) {
    std::vector<std::string> all;
    for (std::int64_t i = 0; i < set.size(); ++i) all.push_back(set.name(i));
    return all;
  };
  for (int i = 0; i < 11; ++i) picture("ant/" + std::to_string(i) + ".jpg");
  for (int i = 0; i < 3; ++i) picture("bee/" + std::to_string(i) + ".jpg");
  made("notes.txt", "x");
  EXPECT_TRUE(splits_itself(folder_));
  const ImageSet train = open_images(folder_, Split::train),
                 test = open_images(folder_, Split::test);
  EXPECT_EQ(train.size(), 9 + 2);
  EXPECT_EQ(test.size(), 2 + 1);
  EXPECT_EQ(test.label(0), 0);
  EXPECT_EQ(test.label(2), 1);
  std::vector<std::string> both = names(train);
  for (const std::string& name : names(test)) {
    EXPECT_EQ(std::count(both.begin(), both.end(), name), 0) << name;
  }
  const auto bare_names = [&](const std::string& folder) {
    std::vector<std::string> all = names(open_images(folder, Split::test));
    for (std::string& name : all) name = name.substr(name.rfind('/', name.rfind('/') - 1));
    return all;
  };
  EXPECT_EQ(bare_names(folder_ + "/"), bare_names(folder_));  // however it is spelt
  const std::vector<std::string> before = bare_names(folder_);
  picture("cow/0.jpg");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::test); }),
            "cow: has one image; without train/ and test/ a class needs two");
  picture("cow/1.jpg");
  const std::vector<std::string> after = bare_names(folder_);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));  // the others stay
  EXPECT_NE(fault([&] { open_images(folder_, Split::valid); }).find("has no valid split"),
            std::string::npos);
  picture("train/ant/a.jpg");
  EXPECT_FALSE(splits_itself(folder_));
}

TEST_F(Pictures, MasksInCamvidsLayout) {
  picture("train/a.jpg");
  mask("trainannot/a.png", {0, 10, 11, 3}, 2);
  const ImageSet set = open_images(folder_, Split::train);
  EXPECT_TRUE(set.has_masks());
  EXPECT_EQ(set.label(0), -1);
  EXPECT_EQ(set.classes().size(), 11u);
  EXPECT_EQ(set.mask(0).pixels, (std::vector<std::uint8_t>{0, 10, ignored, 3}));
  mask("trainannot/a.png", {0, 1, 2, 37}, 2);
  EXPECT_EQ(
      fault([&] { set.mask(0); }),
      "trainannot/a.png: has 37 at row 1, column 1, which is no class; it needs 0 to 10 or 11");
  picture("train/b.jpg");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::train); }),
            "train/b.jpg: has no mask in trainannot");
  made("valannot/x", "");
  made("val/x", "");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::valid); }),
            "val: has no images; the split is empty");
}

TEST_F(Pictures, MasksInAde20ksLayout) {
  picture("images/validation/a.jpg");
  mask("annotations/validation/a.png", {0, 1, 150}, 3);
  const ImageSet set = open_images(folder_, Split::valid);
  EXPECT_EQ(set.classes()[149], "150");
  EXPECT_EQ(set.mask(0).pixels, (std::vector<std::uint8_t>{ignored, 0, 149}));
  mask("annotations/validation/a.png", {151}, 1);
  EXPECT_EQ(fault([&] { set.mask(0); }),
            "annotations/validation/a.png: has 151 at row 0, column 0, which is no class; it needs "
            "1 to 150 or 0");
  std::string names = "Idx,Ratio,Train,Val,Stuff,Name\n";
  for (int i = 1; i <= 150; ++i)
    names += std::to_string(i) + ",0,1,1,1,name" + std::to_string(i) + ";other\n";
  made("objectInfo150.csv", names);
  EXPECT_EQ(open_images(folder_, Split::valid).classes()[7], "name8");
  EXPECT_EQ(fault([&] { ade20k_rule(made("few.csv", "Idx\n1,0,1,1,1,wall\n")); }),
            "few.csv: names 1 classes; ADE20K has 150");
  EXPECT_EQ(
      fault([&] { ade20k_rule(made("few.csv", "Idx\n1,wall\n")); }),
      "few.csv: line 2: '1,wall' has too few fields; it needs Idx,Ratio,Train,Val,Stuff,Name");
}

TEST_F(Pictures, BadRulesAreRefused) {
  const auto rule = [&](MaskRule r) {
    return thrown<InvalidArgument>([&] { read_mask_folder("a", "b", r); });
  };
  EXPECT_EQ(rule({.classes = {}, .first = 0, .unlabelled = {}}),
            "0 classes from value 0 on; a mask holds values 0 to 254");
  EXPECT_EQ(rule({.classes = {"a", "b"}, .first = 0, .unlabelled = {1}}),
            "unlabelled value 1; it needs a byte that is no class");
}

class Opened : public InFolder {};

TEST_F(Opened, IdxWithNames) {
  made("t10k-images-idx3-ubyte", idx_images(2, 2, 2));
  EXPECT_NE(fault([&] { open_images(folder_, Split::test); }).find("but no labels beside it"),
            std::string::npos);
  made("t10k-labels-idx1-ubyte", idx_labels({1, 3}));
  EXPECT_EQ(open_images(folder_, Split::test).classes().size(), 4u);
  made("classes.txt", "a\nb\nc\nd\ne\n");
  EXPECT_EQ(open_images(folder_, Split::test).classes()[4], "e");
  made("classes.txt", "a\nb\n");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::test); }),
            "t10k-images-idx3-ubyte #1: has label 3; classes.txt names 2 classes");
  made("classes.txt", "1\tone\nthree\n");
  EXPECT_EQ(fault([&] { open_images(folder_, Split::test); }),
            "classes.txt: line 2: 'three' has no tab; it needs a class, a tab and its name");
}

TEST_F(Opened, Cifar) {
  const std::string record = std::string(1, '\4') + std::string(3072, 'x');
  made("cifar-10-batches-bin/test_batch.bin", record);
  EXPECT_EQ(open_images(folder_, Split::test).label(0), 4);
  made("cifar-10-batches-bin/data_batch_1.bin", record);
  EXPECT_EQ(fault([&] { open_images(folder_, Split::train); }),
            "cifar-10-batches-bin: has no data_batch_2.bin");
  made("train.bin", "\1" + record);
  EXPECT_EQ(open_images(folder_, Split::train).classes().size(), 100u);
}

}  // namespace
}  // namespace foci::data
