// SPDX-License-Identifier: Apache-2.0
// Resizing and every operation equal PIL's stored answers; what is random is the same for a seed,
// stays in its bounds, and mixes what it should.
#include "data/folder.hpp"

#include <foci/image.hpp>

#include <cmath>
#include <cstdlib>

namespace foci::data {
namespace {

class Operations : public testing::Test {
 protected:
  void SetUp() override {
    if (image_formats().size() < 2) GTEST_SKIP() << "this build lacks libjpeg or libpng";
    image = answer("colour-rgb");
  }
  static Image answer(const std::string& name) { return read_image(golden + name + ".png"); }
  /// The largest difference of any byte.
  static int distance(const Image& a, const Image& b) {
    if (a.height != b.height || a.width != b.width || a.channels != b.channels) return 256;
    int most = 0;
    for (std::size_t i = 0; i < a.pixels.size(); ++i) {
      most = std::max(most, std::abs(a.pixels[i] - b.pixels[i]));
    }
    return most;
  }
  Image image;
};

TEST_F(Operations, ResizeIsPils) {
  const int sizes[][2] = {{11, 17}, {46, 74}, {7, 37}, {23, 9}, {40, 13}, {3, 2}};
  for (const auto& [h, w] : sizes) {
    const std::string size = std::to_string(h) + "x" + std::to_string(w);
    EXPECT_EQ(distance(resize(image, h, w, Filter::bicubic), answer("bicubic-" + size)), 0) << size;
    EXPECT_EQ(distance(resize(image, h, w, Filter::bilinear), answer("bilinear-" + size)), 0)
        << size;
  }
  EXPECT_EQ(resize(image, 11, 17, Filter::nearest), answer("nearest-11x17"));
  EXPECT_EQ(resize(image, 40, 13, Filter::nearest), answer("nearest-40x13"));
  EXPECT_EQ(resize(image, 23, 37, Filter::bicubic), image);
  EXPECT_EQ(resize_shorter(image, 11, Filter::bicubic), answer("bicubic-11x17"));
  EXPECT_EQ(thrown<InvalidArgument>([&] { resize(image, 0, 4, Filter::bicubic); }),
            "resize of 23 x 37 to 0 x 4; it needs sizes of at least 1");
}

TEST_F(Operations, ArePils) {
  EXPECT_EQ(autocontrast(contrast(image, 0.5)), answer("autocontrast"));
  EXPECT_EQ(equalize(image), answer("equalize"));
  EXPECT_EQ(posterize(image, 2), answer("posterize-2"));
  EXPECT_EQ(solarize(image, 90), answer("solarize-90"));
  EXPECT_EQ(invert(invert(image)), image);
  EXPECT_EQ(*solarize_add(Image(1, 1, 1), 60).at(0, 0), 60);
  for (const int percent : {10, 55, 181}) {
    const std::string name = "-" + std::to_string(percent);
    const double factor = percent / 100.0;
    EXPECT_EQ(distance(color(image, factor), answer("color" + name)), 0) << percent;
    EXPECT_EQ(distance(contrast(image, factor), answer("contrast" + name)), 0) << percent;
    EXPECT_EQ(distance(brightness(image, factor), answer("brightness" + name)), 0) << percent;
    EXPECT_EQ(distance(sharpness(image, factor), answer("sharpness" + name)), 0) << percent;
  }
}

TEST_F(Operations, TransformsArePils) {
  for (const Filter filter : {Filter::bilinear, Filter::bicubic}) {
    const std::string name = filter == Filter::bilinear ? "-bilinear" : "-bicubic";
    const auto moved = [&](const std::array<double, 6>& matrix) {
      return transform(image, {.matrix = matrix, .filter = filter, .fill = {124, 116, 104}});
    };
    EXPECT_EQ(distance(moved(rotation(image, -21.5)), answer("rotate" + name)), 0) << name;
    EXPECT_EQ(distance(moved({1, 0.27, 0, 0, 1, 0}), answer("shear" + name)), 0) << name;
    EXPECT_EQ(distance(moved({1, 0, 0, 0, 1, -0.3 * 23}), answer("shift" + name)), 0) << name;
  }
}

TEST_F(Operations, CropsAndFlips) {
  const Image part = crop(image, {2, 3, 4, 5});
  EXPECT_EQ(part.at(1, 2)[0], image.at(3, 5)[0]);
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              crop(image, {20, 0, 4, 5});
            }),
            "a crop of 4 x 5 at 20, 0 of an image of 23 x 37");
  EXPECT_EQ(flip(flip(image)), image);
  EXPECT_EQ(flip(image).at(3, 0)[1], image.at(3, 36)[1]);
  EXPECT_EQ(center_crop(image, 21, 35), crop(image, {1, 1, 21, 35}));
  const Image padded = center_crop(image, 27, 37);
  EXPECT_EQ(padded.at(1, 0)[0], 0);
  EXPECT_EQ(padded.at(2, 9)[2], image.at(0, 9)[2]);
}

TEST_F(Operations, NormalizeGoesByChannel) {
  Image one(1, 2, 3);
  one.pixels = {0, 255, 51, 255, 0, 102};
  float to[6];
  normalize(to, one, std::vector<float>{0.5f, 0, 0}, std::vector<float>{0.5f, 1, 2});
  EXPECT_EQ(std::vector<float>(to, to + 6), (std::vector<float>{-1, 1, 1, 0, 0.1f, 0.2f}));
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              normalize(to, one, std::vector<float>{1, 2}, std::vector<float>{1, 2});
            }),
            "2 means and 2 deviations for 3 channels");
}

TEST_F(Operations, RandomOnesHangOnTheSeedAlone) {
  const auto prepared = [&](std::uint64_t seed) {
    std::vector<float> values(3 * 16 * 16);
    ImagePlan plan;
    plan.size = 16;
    plan.jitter = 0.3;
    Random random(seed);
    prepare_training(values.data(), image, plan, random);
    return values;
  };
  EXPECT_EQ(prepared(7), prepared(7));
  EXPECT_NE(prepared(7), prepared(8));
  std::vector<float> whole(3 * 16 * 16);
  ImagePlan plan;
  plan.size = 16;
  prepare_evaluation(whole.data(), image, plan);
  EXPECT_TRUE(std::isfinite(whole[0]));
  plan.crop_share = 0;
  EXPECT_EQ(thrown<InvalidArgument>([&] { prepare_evaluation(whole.data(), image, plan); }),
            "crop_share 0; it needs (0, 1]");
}

TEST_F(Operations, EveryOneOfRandAugmentChangesTheImage) {
  const auto names = rand_augment_names();
  ASSERT_EQ(names.size(), 15u);
  const Image pale = contrast(image, 0.5);
  for (int i = 0; i < int(names.size()); ++i) {
    Random random(3);
    EXPECT_GT(distance(apply_operation(pale, i, 9, Filter::bicubic, random), pale), 0)
        << names[std::size_t(i)];
  }
  Random random(3);
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { apply_operation(image, 15, 9, Filter::bicubic, random); }),
      "operation 15 of 15");
}

TEST(RandomBoxes, StayInside) {
  Random random(1);
  for (const auto& [h, w] : {std::pair{10, 10}, std::pair{3, 90}, std::pair{90, 3}}) {
    const Image image(h, w, 1);
    for (int i = 0; i < 300; ++i) {
      const Box box = random_crop_box(image, {}, random);
      EXPECT_NO_THROW(crop(image, box)) << h << " x " << w;
    }
  }
}

TEST(RandomBoxes, ErasingTouchesItsShareAlone) {
  int erased = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    std::vector<float> values(3 * 20 * 20, 100.0f);
    Random random(seed);
    random_erasing(values.data(), {3, 20, 20}, {}, random);
    const auto touched =
        std::count_if(values.begin(), values.end(), [](float v) { return v != 100; });
    EXPECT_LE(touched, 3 * 400 * 0.4);
    erased += touched > 0;
  }
  EXPECT_NEAR(erased, 100, 30);
}

TEST(Mixed, SharesAndTargetsAgree) {
  const Mixing how;
  const std::vector<int> labels = {0, 1, 2};
  int cuts = 0;
  double shares = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const Mix mix = draw_mix(how, 8, 8, random);
    cuts += mix.box.height > 0;
    shares += mix.share;
    Tensor values(DType::f32, {3, 1, 8, 8});
    for (int i = 0; i < 3 * 64; ++i) values.data<float>()[i] = float(i / 64);
    apply_mix(values, mix);
    double sum = 0;
    for (int i = 0; i < 64; ++i) sum += values.data<float>()[i];
    EXPECT_NEAR(sum / 64, 2 * (1 - mix.share), 1e-5);
    EXPECT_EQ(values.data<float>()[64], 1.0f);
    const Tensor targets = mixed_targets(labels, 4, how, mix);
    EXPECT_NEAR(targets.data<float>()[0], 0.9 * mix.share + 0.025, 1e-6);
    EXPECT_NEAR(targets.data<float>()[3], 0.025, 1e-6);
    EXPECT_NEAR(targets.data<float>()[5], 0.925, 1e-6);
  }
  EXPECT_NEAR(cuts, 95, 30);
  EXPECT_NEAR(shares / 200, 0.55, 0.1);
  EXPECT_EQ(thrown<InvalidArgument>([&] { mixed_targets(labels, 2, how, {}); }),
            "label 2 of 2 classes");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              apply_mix(Tensor(DType::u8, {1, 2}), {});
            }),
            "apply_mix of u8 (1, 2); it needs (B, C, H, W) f32");
}

}  // namespace
}  // namespace foci::data
