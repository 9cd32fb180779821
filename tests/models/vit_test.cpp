// SPDX-License-Identifier: Apache-2.0
// Vision transformers: timm's names, sizes and numbers; the metric only in the layers that have it;
// branches that are left out; plain checkpoints, for images of another size too.
#include <foci/models.hpp>

#include "thrown.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>

namespace foci::models {
namespace {

namespace fs = std::filesystem;

VitOptions small(Settings words = {}) {
  return {.image = 16,
          .patch = 4,
          .channels = 3,
          .classes = 5,
          .dim = 16,
          .depth = 3,
          .heads = 2,
          .mechanism = {.words = std::move(words)}};
}

std::int64_t trained(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const at::Tensor& p : module.parameters()) count += p.numel();
  return count;
}

std::set<std::string> names_of(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& item : module.named_parameters()) names.insert(item.key());
  return names;
}

TEST(Vit, HasTimmsNames) {
  std::set<std::string> expected = {"cls_token",   "pos_embed", "patch_embed.proj.weight",
                                    "norm.weight", "norm.bias", "patch_embed.proj.bias",
                                    "head.weight", "head.bias"};
  for (int i = 0; i < 3; ++i) {
    for (const char* part : {"norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"}) {
      for (const char* kind : {".weight", ".bias"})
        expected.insert("blocks." + std::to_string(i) + "." + part + kind);
    }
  }
  EXPECT_EQ(names_of(*Vit(small())), expected);
}

TEST(Vit, HasTimmsSizes) {
  EXPECT_EQ(size_of(find("deit_tiny_patch16_224").vit).parameters, 5717416);
  EXPECT_EQ(size_of(find("deit_small_patch16_224").vit).parameters, 22050664);
  EXPECT_EQ(size_of(find("deit_base_patch16_224").vit).parameters, 86567656);
  EXPECT_NEAR(size_of(find("deit_tiny_patch16_224").vit).multiply_adds, 1.26e9, 0.02e9);
  EXPECT_EQ(size_of(small()).parameters, trained(*Vit(small())));
  const VitOptions& micro = find("vit_micro").vit;
  EXPECT_EQ(size_of(micro).parameters, trained(*Vit(micro)));
}

/// tests/models/timm_vit.safetensors: weights, images and logits of a small model of timm's.
TEST(Vit, GivesTimmsLogits) {
  const fs::path path = fs::path(FOCI_SOURCE_DIR) / "tests/models/timm_vit.safetensors";
  const fs::path weights = fs::temp_directory_path() / ("foci-vit-" + std::to_string(getpid()));
  const Safetensors file(path.string());
  std::map<std::string, View> plain;
  for (const std::string& name : file.names()) {
    if (name != "images" && name != "logits") plain[name] = file.find(name);
  }
  write_safetensors(weights.string(), plain);
  Vit model(small());
  load_plain(*model, weights.string());
  fs::remove(weights);
  model->eval();
  const auto tensor = [&](const char* name) {
    const View view = file.find(name);
    return at::from_blob(view.data, at::IntArrayRef(view.shape.data(), std::size_t(view.rank)),
                         at::TensorOptions().dtype(at::kFloat));
  };
  const at::NoGradGuard without;
  const at::Tensor logits = model->forward(tensor("images"));
  EXPECT_LT((logits - tensor("logits")).abs().max().item<double>(), 1e-5);
}

TEST(Vit, HasTheMetricWhereItIsAskedFor) {
  VitOptions options = small({{"metric", "layer-change"}, {"normalize", "mean"}});
  options.mechanism.first = 2;
  Vit model(options);
  EXPECT_EQ(model->blocks[0]->attn->mechanism().rfind("metric=dot ", 0), 0u);
  EXPECT_EQ(model->blocks[1]->attn->mechanism().rfind("metric=dot ", 0), 0u);
  EXPECT_EQ(model->blocks[2]->attn->mechanism().rfind("metric=layer-change ", 0), 0u);
  options.mechanism.first = 0;
  Vit all(options);
  EXPECT_EQ(all->blocks[0]->attn->mechanism().rfind("metric=dot ", 0), 0u);  // nothing below it
  EXPECT_EQ(all->blocks[1]->attn->mechanism().rfind("metric=layer-change ", 0), 0u);
}

TEST(Vit, TrainsWithEveryMetricAndWeighting) {
  at::manual_seed(3);
  const at::Tensor images = at::randn({2, 3, 16, 16});
  const std::vector<Settings> mechanisms = {
      {},
      {{"metric", "layer-change"}},
      {{"metric", "flat"}},
      {{"metric", "random"}},
      {{"metric", "jacobian"}},
      {{"metric", "key-covariance"}},
      {{"metric", "learned"}},
      {{"metric", "learned-full"}, {"init", "random"}},
      {{"metric", "layer-change"}, {"scope", "running"}, {"momentum", "0.9"}},
      {{"weighting", "relu2"}, {"metric", "layer-change"}},
      {{"weighting", "linear"}},
  };
  for (const Settings& words : mechanisms) {
    SCOPED_TRACE(to_text(words));
    Vit model(small(words));
    const at::Tensor logits = model->forward(images);
    ASSERT_EQ(logits.sizes(), at::IntArrayRef({2, 5}));
    at::cross_entropy_loss(logits, at::tensor({1, 4}, at::kLong)).backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    }
  }
}

TEST(Vit, LeavesBranchesOutInTrainingAlone) {
  at::manual_seed(5);
  const at::Tensor ones = at::ones({4000, 2, 3});
  EXPECT_TRUE(drop_path(ones, 0.25, false).equal(ones));
  const at::Tensor dropped = drop_path(ones, 0.25, true);
  const at::Tensor samples = dropped.flatten(1);
  EXPECT_TRUE(samples.amin(1).equal(samples.amax(1)));  // a sample goes whole
  EXPECT_NEAR(dropped.mean().item<double>(), 1, 0.05);
  EXPECT_NEAR(samples.select(1, 0).eq(0).to(at::kDouble).mean().item<double>(), 0.25, 0.03);
  VitOptions options = small();
  options.drop_path = 0.5;
  Vit model(options);
  const at::Tensor images = at::randn({2, 3, 16, 16});
  EXPECT_FALSE(model->forward(images).equal(model->forward(images)));
  model->eval();
  EXPECT_TRUE(model->forward(images).equal(model->forward(images)));
}

TEST(Vit, SaysWhatIsWrong) {
  VitOptions options = small();
  options.patch = 5;
  EXPECT_EQ(thrown<InvalidArgument>([&] { Vit model(options); }),
            "images of 16 pixels in patches of 5: the first must be a multiple of the second");
  options = small();
  options.classes = -1;
  EXPECT_EQ(thrown<InvalidArgument>([&] { Vit model(options); }),
            "3 channels, -1 classes and 3 layers; classes may be 0, the others not");
  options.classes = 0;
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              Vit(options)->forward(at::zeros({1, 3, 16, 16}));
            }),
            "this model has 0 classes: it gives tokens alone");
  options = small();
  options.drop_path = 1;
  EXPECT_EQ(thrown<InvalidArgument>([&] { Vit model(options); }),
            "drop_path is 1; it must lie in [0, 1)");
  options = small();
  options.mechanism.first = 4;
  EXPECT_EQ(thrown<InvalidArgument>([&] { Vit model(options); }),
            "metric layers 4:3 of a model of 3 layers");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              Vit model(small({{"metric", "learned"}, {"init", "x"}}));
            }),
            "init does not know 'x'; it is identity, estimate or random");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              Vit model(small({{"metric", "flat"}, {"scope", "running"}, {"momentum", "much"}}));
            }),
            "momentum is 'much', which is no number");
  Vit model(small());
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              model->forward(at::zeros({1, 3, 8, 8}));
            }),
            "images have shape (1, 3, 8, 8); this model takes (batch, 3, 16, 16)");
  EXPECT_EQ(thrown<InvalidArgument>([] { find("deit_tiny_patch16_223"); }),
            "no model is called 'deit_tiny_patch16_223'; did you mean deit_tiny_patch16_224?");
}

TEST(Vit, TakesAPlainCheckpointWhateverItsMetric) {
  const fs::path path = fs::temp_directory_path() / ("foci-plain-" + std::to_string(getpid()));
  Vit plain(small()), learned(small({{"metric", "learned"}}));
  std::map<std::string, View> views;
  for (const auto& item : plain->named_parameters()) {
    const at::Tensor& t = item.value();
    views[item.key()] =
        View(t.data_ptr(), DType::f32, std::span(t.sizes().data(), std::size_t(t.dim())));
  }
  write_safetensors(path.string(), views);
  load_plain(*learned, path.string());
  for (const auto& item : plain->named_parameters())
    EXPECT_TRUE(learned->named_parameters()[item.key()].equal(item.value())) << item.key();
  views.erase("head.bias");
  write_safetensors(path.string(), views);
  EXPECT_EQ(thrown<InvalidArgument>([&] { load_plain(*learned, path.string()); }),
            path.string() + " has no tensor head.bias, which this model needs");
  views["head.bias"] = views["norm.bias"];
  write_safetensors(path.string(), views);
  EXPECT_EQ(thrown<InvalidArgument>([&] { load_plain(*learned, path.string()); }),
            path.string() +
                ": head.bias has shape (16); this model needs (5); for other classes "
                "leave it out: foci convert --drop head.");
  for (const char* name : {"head.weight", "head.bias"}) views.erase(name);
  write_safetensors(path.string(), views);
  Vit other(small());
  const at::Tensor head = other->head->weight.clone();
  load_plain(*other, path.string());
  EXPECT_TRUE(other->head->weight.equal(head));
  EXPECT_TRUE(other->norm->weight.equal(plain->norm->weight));
  EXPECT_TRUE(other->named_parameters()["pos_embed"].equal(plain->named_parameters()["pos_embed"]));
  fs::remove(path);
}

std::vector<std::string>& warnings() {
  static std::vector<std::string> all;
  return all;
}

/// A model of so many patches a side, and its weights as views.
struct Sized {
  explicit Sized(std::int64_t side) {
    VitOptions options = small();
    options.image = 4 * side;
    model = Vit(options);
    for (const auto& item : model->named_parameters()) {
      const at::Tensor& t = item.value();
      views[item.key()] =
          View(t.data_ptr(), DType::f32, std::span(t.sizes().data(), std::size_t(t.dim())));
    }
  }
  Vit model = nullptr;
  std::map<std::string, View> views;
};

/// tests/models/positions.safetensors: what torch's interpolate gives (make_positions.py).
TEST(Vit, ResamplesPositionsForImagesOfAnotherSize) {
  const Safetensors stored(FOCI_SOURCE_DIR "/tests/models/positions.safetensors");
  const std::string path =
      (fs::temp_directory_path() / ("foci-places-" + std::to_string(getpid()))).string();
  Sized five(5);
  five.views["pos_embed"] = stored.find("5");
  write_safetensors(path, five.views);
  set_warning_handler([](std::string_view text) { warnings().emplace_back(text); });
  for (const std::int64_t side : {8, 3, 5}) {
    SCOPED_TRACE(side);
    warnings().clear();
    Sized other(side);
    load_plain(*other.model, path);
    const View expected = stored.find(std::to_string(side));
    const at::Tensor wanted = at::from_blob(expected.data, {1, 1 + side * side, 16}, at::kFloat);
    EXPECT_LT((other.model->pos_embed - wanted).abs().max().item<double>(), 1e-6);
    EXPECT_TRUE(other.model->norm->weight.equal(five.model->norm->weight));
    std::vector<std::string> said;
    if (side != 5) {
      said.push_back(path + ": pos_embed is for 5 x 5 patches; resampled to " +
                     std::to_string(side) + " x " + std::to_string(side));
    }
    EXPECT_EQ(warnings(), said);
  }
  set_warning_handler(nullptr);
  const std::vector<float> zeros(27 * 16);
  five.views["pos_embed"] = View(zeros.data(), DType::f32, Shape{1, 27, 16});
  write_safetensors(path, five.views);
  EXPECT_EQ(thrown<InvalidArgument>([&] { load_plain(*Sized(8).model, path); }),
            path +
                ": pos_embed has shape (1, 27, 16): 26 patches and a class token are no square "
                "grid that could be resampled; this model needs (1, 65, 16)");
  five.views["pos_embed"] = View(zeros.data(), DType::f32, Shape{1, 17, 8});
  write_safetensors(path, five.views);
  EXPECT_EQ(thrown<InvalidArgument>([&] { load_plain(*Sized(8).model, path); }),
            path + ": pos_embed has shape (1, 17, 8); this model needs (1, 65, 16)");
  fs::remove(path);
}

}  // namespace
}  // namespace foci::models
