// SPDX-License-Identifier: Apache-2.0
// Corruptions of images against the formulas written down a second time (golden.txt), what is
// random against its own laws, sets written and read back, and the mean corruption error.
#include "data/folder.hpp"

#include <foci/corrupt.hpp>
#include <foci/random.hpp>

#include <numeric>
#include <set>
#include <sstream>

namespace foci::corrupt {
namespace {

using data::Image;
using data::ImageSet;
using data::Split;

/// That of make_golden.py.
Image picture() {
  Image image(24, 28, 3);
  for (int y = 0; y < 24; ++y) {
    for (int x = 0; x < 28; ++x) {
      for (int c = 0; c < 3; ++c)
        image.at(y, x)[c] = std::uint8_t((y * 37 + x * 59 + c * 83 + y * x * 11) % 251);
    }
  }
  return image;
}

Image flat(int side, int channels, int value) {
  Image image(side, side, channels);
  std::fill(image.pixels.begin(), image.pixels.end(), std::uint8_t(value));
  return image;
}

std::vector<Image> ice(int side) {
  Image picture(side, side, 3);
  for (std::size_t i = 0; i < picture.pixels.size(); ++i)
    picture.pixels[i] = std::uint8_t(i * 7 % 256);
  return {picture};
}

std::vector<Corruption> everything() {
  std::vector<Corruption> all;
  for (int i = 0; i < corruption_count; ++i) all.push_back(Corruption(i));
  return all;
}

struct Moments {
  double mean = 0, deviation = 0;
};
Moments moments_of(const Image& image) {
  Moments m;
  for (const int p : image.pixels) m.mean += p / 255.0;
  m.mean /= double(image.pixels.size());
  for (const int p : image.pixels) m.deviation += (p / 255.0 - m.mean) * (p / 255.0 - m.mean);
  m.deviation = std::sqrt(m.deviation / double(image.pixels.size()));
  return m;
}

double distance(const Image& a, const Image& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i)
    sum += std::abs(int(a.pixels[i]) - int(b.pixels[i]));
  return sum / double(a.pixels.size());
}

TEST(Corrupt, WhatHasNoChanceIsTheOriginals) {
  std::ifstream file(FOCI_SOURCE_DIR "/tests/corrupt/golden.txt");
  std::string name, hex;
  int set = 0, severity = 0, cases = 0;
  while (file >> name >> set >> severity >> hex) {
    const Image ours = corrupt(picture(), corruption_named(name), {severity, Scale(set)});
    ASSERT_EQ(hex.size(), 2 * ours.pixels.size());
    int most = 0;
    for (std::size_t i = 0; i < ours.pixels.size(); ++i) {
      const int theirs = std::stoi(hex.substr(2 * i, 2), nullptr, 16);
      most = std::max(most, std::abs(int(ours.pixels[i]) - theirs));
    }
    // Cutting to bytes may fall either side of a whole number; PIL's own must agree.
    const bool whole = name == "pixelate" || name == "jpeg_compression";
    EXPECT_LE(most, whole ? 0 : 1) << name << " " << set << " " << severity;
    ++cases;
  }
  EXPECT_EQ(cases, 15);
}

TEST(Corrupt, EverySetAndSeverityOfColourAndGreyIsSeededAndGrows) {
  const auto frost = ice(150);
  for (const Corruption corruption : everything()) {
    for (const int set : {0, 1, 2}) {
      for (const int channels : {1, 3}) {
        Image image = picture();
        if (channels == 1) {
          image = Image(24, 28, 1);
          for (std::size_t i = 0; i < image.pixels.size(); ++i)
            image.pixels[i] = picture().pixels[3 * i];
        }
        How how{1, Scale(set), 5, 0, frost};
        for (how.severity = 1; how.severity <= most_severity; ++how.severity) {
          const Image once = corrupt(image, corruption, how);
          EXPECT_EQ(once.channels, channels);
          EXPECT_EQ(once, corrupt(image, corruption, how)) << name_of(corruption);
          How other = how;
          other.index = 1;
          const bool same = once == corrupt(image, corruption, other);
          EXPECT_TRUE(same || is_random(corruption)) << name_of(corruption);
        }
        const bool changes = channels == 3 || corruption != Corruption::saturate;
        EXPECT_EQ(distance(corrupt(image, corruption, {5, Scale(set), 5, 0, frost}), image) > 0,
                  changes)
            << name_of(corruption) << set;
      }
    }
  }
}

TEST(Corrupt, EveryChanceDependsOnSeedAndImage) {
  const auto frost = ice(150);
  for (const Corruption corruption : everything()) {
    const How how{5, Scale::px64, 3, 7, frost};
    How seed = how, index = how;
    seed.seed = 4;
    index.index = 8;
    const Image once = corrupt(picture(), corruption, how);
    EXPECT_EQ(once != corrupt(picture(), corruption, seed), is_random(corruption));
    EXPECT_EQ(once != corrupt(picture(), corruption, index), is_random(corruption));
  }
}

TEST(Corrupt, NoiseHasItsMoments) {
  const Image grey = flat(224, 3, 102);  // 0.4
  // Bytes are cut, not rounded: half a level less.
  const double half = 0.5 / 255;
  Moments m = moments_of(corrupt(grey, Corruption::gaussian_noise, {1}));
  EXPECT_NEAR(m.mean, 0.4 - half, 0.002);
  EXPECT_NEAR(m.deviation, 0.08, 0.002);
  m = moments_of(corrupt(grey, Corruption::shot_noise, {1}));
  EXPECT_NEAR(m.mean, 0.4 - half, 0.002);
  EXPECT_NEAR(m.deviation, std::sqrt(0.4 / 60), 0.002);
  m = moments_of(corrupt(flat(64, 3, 204), Corruption::shot_noise, {1, Scale::px32}));
  EXPECT_NEAR(m.mean, 0.8 - half, 0.002);
  EXPECT_NEAR(m.deviation, std::sqrt(0.8 / 500), 0.002);
  m = moments_of(corrupt(grey, Corruption::speckle_noise, {1}));
  EXPECT_NEAR(m.deviation, 0.15 * 0.4, 0.002);
  const Image hit = corrupt(grey, Corruption::impulse_noise, {5});
  const auto white = std::count(hit.pixels.begin(), hit.pixels.end(), 255);
  const auto black = std::count(hit.pixels.begin(), hit.pixels.end(), 0);
  EXPECT_NEAR(double(white) / double(hit.pixels.size()), 0.135, 0.004);
  EXPECT_NEAR(double(black) / double(hit.pixels.size()), 0.135, 0.004);
}

TEST(Corrupt, ABlurKeepsWhatIsFlat) {
  for (const auto corruption :
       {Corruption::gaussian_blur, Corruption::defocus_blur, Corruption::glass_blur,
        Corruption::motion_blur, Corruption::zoom_blur, Corruption::elastic_transform,
        Corruption::contrast, Corruption::pixelate}) {
    for (const int set : {0, 1, 2}) {
      const Image image = flat(40, 3, 90);
      EXPECT_LE(distance(corrupt(image, corruption, {4, Scale(set)}), image), 1)
          << name_of(corruption);
    }
  }
}

TEST(Corrupt, FrostIsTheBlendOfAPartOfThePicture) {
  const std::vector<Image> pale = {flat(200, 3, 200)};
  const Image ours = corrupt(flat(40, 3, 100), Corruption::frost, {3, Scale::px224, 0, 0, pale});
  EXPECT_EQ(ours, flat(40, 3, 210));  // .7 * 100 + .7 * 200
  const Image grey = corrupt(flat(32, 1, 100), Corruption::frost, {5, Scale::px32, 0, 0, pale});
  EXPECT_EQ(grey, flat(32, 1, 165));  // .75 * 100 + .45 * 200
}

TEST(Corrupt, NamesAndGroups) {
  EXPECT_EQ(corruptions_named("all").size(), 15u);
  EXPECT_EQ(corruptions_named("extra").size(), 4u);
  EXPECT_EQ(corruptions_named("noise").size(), 3u);
  for (const char* group : {"blur", "weather", "digital"})
    EXPECT_EQ(corruptions_named(group).size(), 4u);
  for (const Corruption corruption : everything())
    EXPECT_EQ(corruption_named(name_of(corruption)), corruption);
  EXPECT_EQ(scale_for(flat(28, 1, 0)), Scale::px32);
  EXPECT_EQ(scale_for(flat(64, 1, 0)), Scale::px64);
  EXPECT_EQ(scale_for(flat(224, 1, 0)), Scale::px224);
}

TEST(Corrupt, BadInput) {
  const auto said = [](auto&& call) { return thrown<InvalidArgument>(call); };
  const Image image = picture();
  EXPECT_EQ(said([&] { corrupt(image, Corruption::fog, {0}); }), "severity 0; it must be 1 to 5");
  EXPECT_EQ(said([&] { corrupt(image, Corruption::fog, {6}); }), "severity 6; it must be 1 to 5");
  EXPECT_EQ(said([&] { corrupt(image, Corruption::frost, {1}); }),
            "frost has no pictures; it needs a folder of them (--frost FOLDER)");
  const auto small = ice(100);
  EXPECT_EQ(said([&] {
              corrupt(image, Corruption::frost, {1, Scale::px32, 0, 0, small});
            }),
            "a picture of frost is 100 x 100; an image of 24 x 28 needs one of 120 x 140");
  const std::vector<Image> one = {flat(300, 1, 0)};
  EXPECT_EQ(said([&] {
              corrupt(image, Corruption::frost, {1, Scale::px32, 0, 0, one});
            }),
            "a picture of frost has 1 channels; it must be RGB");
  EXPECT_EQ(said([&] { corrupt(flat(20, 2, 0), Corruption::fog, {1}); }),
            "an image of 2 channels; a corruption needs 1 (grey) or 3");
  EXPECT_EQ(said([&] { corrupt(flat(7, 3, 0), Corruption::fog, {1}); }),
            "an image of 7 x 7; a corruption needs at least 8 x 8");
  EXPECT_NE(said([&] { corruption_named("rain"); }).find("no corruption 'rain'; it is one of "),
            std::string::npos);
  EXPECT_EQ(said([&] { corruption_named("noise"); }),
            "'noise' is a group of corruptions; it needs one of them");
  const Tensor outside(DType::f32, {1, 3, 8, 8});
  *outside.view().at<float>({0, 1, 2, 3}) = 1.5f;
  EXPECT_EQ(
      said([&] { corrupt_values(outside, Corruption::fog, {1}); }),
      "image 0 has the value 1.5; images to corrupt lie in [0,1], before they are normalised");
  EXPECT_EQ(said([&] {
              corrupt_values(Tensor(DType::f32, {3, 8, 8}), Corruption::fog, {1});
            }),
            "images to corrupt must be (B,C,H,W) f32");
}

TEST(Corrupt, ABatchOfValuesIsItsImages) {
  const Image image = picture();
  const Tensor values(DType::f32, {2, 3, 24, 28});
  for (int b = 0; b < 2; ++b) {
    for (int i = 0; i < 3 * 24 * 28; ++i) {
      *values.view().at<float>({b, i / (24 * 28), i / 28 % 24, i % 28}) =
          float(image.pixels[std::size_t(i % (24 * 28) * 3 + i / (24 * 28))]) / 255;
    }
  }
  corrupt_values(values, Corruption::snow, {2, Scale::px32, 9, 4});
  for (int b = 0; b < 2; ++b) {
    const Image want = corrupt(image, Corruption::snow, {2, Scale::px32, 9, std::uint64_t(4 + b)});
    EXPECT_FLOAT_EQ(*values.view().at<float>({b, 2, 5, 6}), float(want.at(5, 6)[2]) / 255);
  }
}

class CorruptSets : public data::InFolder {};

TEST_F(CorruptSets, AreWrittenAndReadBack) {
  made("grey/t10k-images-idx3-ubyte", data::idx_images(5, 12, 10));
  made("grey/t10k-labels-idx1-ubyte", data::idx_labels(std::string("\1\0\3\2\1", 5)));
  std::string records;
  for (int i = 0; i < 4; ++i) {
    records += char(i * 3);
    for (int at = 0; at < 3072; ++at) records += char((at * 7 + i) % 253);
  }
  made("cifar/test_batch.bin", records);
  for (int i = 0; i < 3; ++i) {
    std::filesystem::create_directories(at("photos/test/" + std::to_string(i % 2)));
    data::write_png(at(fmt::format("photos/test/{}/{}.png", i % 2, i)), flat(20 + i, 3, 50 + i));
  }
  for (const std::string name : {"grey", "cifar", "photos"}) {
    const ImageSet set = data::open_images(at(name), Split::test);
    SetPlan plan{Corruption::gaussian_noise, {2, Scale::px32, 1}};
    if (name == "photos") plan.side = 16;
    const ImageSet harmed = corrupted(set, plan);
    write_set(at(name + "-c"), harmed);
    const ImageSet back = data::open_images(at(name + "-c"), Split::test);
    ASSERT_EQ(back.size(), set.size());
    EXPECT_EQ(back.classes(), set.classes());
    std::multiset<std::vector<std::uint8_t>> pixels, wanted;  // folders come in another order
    for (std::int64_t i = 0; i < set.size(); ++i) {
      pixels.insert(back.image(i).pixels);
      wanted.insert(harmed.image(i).pixels);
    }
    EXPECT_EQ(pixels, wanted) << name;
    EXPECT_TRUE(name == "photos" || back.label(2) == set.label(2));
  }
  const ImageSet grey = data::open_images(at("grey"), Split::test);
  SetPlan plan{Corruption::gaussian_noise, {2, Scale::px32, 1}};
  const ImageSet whole = corrupted(grey, plan);
  plan.first = 3;
  plan.threads = 1;
  EXPECT_EQ(corrupted(grey, plan).image(0), whole.image(3));
  const ImageSet photos = data::open_images(at("photos"), Split::test);
  EXPECT_EQ(bare(thrown<InvalidArgument>([&] { corrupted(photos, {}); })),
            "photos/test/0/2.png: is 22 x 22, the first image 20 x 20; a common side is needed "
            "(--side)");
  EXPECT_EQ(fault([&] { read_frost(at("none")); }),
            "none: is no folder; --frost needs one of pictures");
  EXPECT_EQ(fault([&] { read_frost(at("cifar")); }),
            "cifar: holds no JPEG or PNG; --frost needs pictures of it");
  EXPECT_EQ(read_frost(at("photos")).size(), 3u);
}

TEST(Corrupt, ASheetHasARowForEachCorruption) {
  const auto rows = corruptions_named("noise");
  const Image image = picture(), sheet = contact_sheet(image, rows, {1, Scale::px32, 3});
  EXPECT_EQ(sheet.height, 3 * 26);
  EXPECT_EQ(sheet.width, 6 * 30);
  EXPECT_TRUE(std::equal(image.at(5, 0), image.at(5, 27), sheet.at(26 + 5, 0)));
  const Image last = corrupt(image, Corruption::impulse_noise, {5, Scale::px32, 3});
  EXPECT_TRUE(std::equal(last.at(5, 0), last.at(5, 27), sheet.at(2 * 26 + 5, 5 * 30)));
}

/// ResNet-50's published errors under the 15, RobustBench's Standard_R50.
std::map<Corruption, double> resnet50() {
  constexpr double errors[] = {.68536, .70904, .74012, .61096, .73232, .61868, .63684, .67848,
                               .62684, .54500, .32156, .60896, .55044, .55140, .46156};
  std::map<Corruption, double> means;
  for (int i = 0; i < benchmark_count; ++i) means[Corruption(i)] = errors[i];
  return means;
}

TEST(Corrupt, MeanCorruptionErrorOfResNet50) {
  EXPECT_NEAR(mean_corruption_error(resnet50(), alexnet_errors()), 76.367, 0.001);
  double sum = 0;
  for (const auto& [corruption, error] : resnet50()) sum += error;
  EXPECT_NEAR(100 * (1 - sum / 15), 39.48, 0.005);
  EXPECT_NEAR(mean_corruption_error(resnet50(), resnet50()), 100, 1e-9);
  EXPECT_NEAR(relative_corruption_error(resnet50(), resnet50(), {.2, .2}), 100, 1e-9);
  auto some = resnet50();
  some.erase(Corruption::frost);
  EXPECT_EQ(thrown<InvalidArgument>([&] { mean_corruption_error(some, resnet50()); }),
            "the mean corruption error needs an error under frost");
  EXPECT_EQ(thrown<InvalidArgument>([&] { mean_corruption_error(resnet50(), some); }),
            "the mean corruption error needs the baseline's error under frost");
  some[Corruption::frost] = 0;
  EXPECT_EQ(thrown<InvalidArgument>([&] { mean_corruption_error(resnet50(), some); }),
            "the baseline's error under frost is 0 or its clean one; another baseline is needed");
  EXPECT_NEAR(means_of({{Corruption::fog, {.1, .2, .3, .4, .5}}}).at(Corruption::fog), .3, 1e-12);
}

}  // namespace
}  // namespace foci::corrupt
