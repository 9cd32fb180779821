// SPDX-License-Identifier: Apache-2.0
// Encoders of sequences, where padding changes nothing whatever the mechanism; Segmenter against
// its definition; windows over an image, and what is counted over pixels, by hand.
#include <foci/language.hpp>
#include <foci/models.hpp>

#include "thrown.hpp"

#include <foci/error.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace foci::models {
namespace {

SequenceOptions words(Settings mechanism = {}, Pooling pooling = Pooling::mean) {
  return {.vocabulary = 7,
          .length = 12,
          .classes = 3,
          .dim = 16,
          .depth = 3,
          .heads = 2,
          .pooling = pooling,
          .mechanism = {.words = std::move(mechanism)}};
}

SegmenterOptions pixels(Settings mechanism = {}) {
  return {.encoder = {.image = 16,
                      .patch = 4,
                      .dim = 16,
                      .depth = 2,
                      .heads = 2,
                      .mechanism = {.words = mechanism}},
          .classes = 5,
          .decoder_depth = 2,
          .decoder_heads = 2,
          .decoder = {.words = mechanism}};
}

const std::vector<Settings> mechanisms = {
    {},
    {{"metric", "layer-change"}},
    {{"metric", "layer-change"}, {"normalize", "mean"}, {"reduce", "median"}},
    {{"metric", "flat"}},
    {{"metric", "random"}},
    {{"metric", "jacobian"}},
    {{"metric", "key-covariance"}},
    {{"metric", "learned"}},
    {{"weighting", "relu2"}, {"metric", "layer-change"}},
    {{"weighting", "identity"}, {"rescale", "l1"}},
    {{"weighting", "linear"}, {"metric", "layer-change"}},
    {{"weighting", "decay"}, {"causal", "true"}},
    {{"metric", "layer-change"}, {"causal", "true"}},
};

std::int64_t trained(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const at::Tensor& p : module.parameters()) count += p.numel();
  return count;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

at::Tensor whole(std::initializer_list<std::int64_t> numbers) {
  return at::tensor(at::ArrayRef<std::int64_t>(numbers), at::kLong);
}

/// Weights large enough that attention is far from even.
template <class Model>
void spread(Model& model) {
  const at::NoGradGuard without;
  for (auto& p : model->named_parameters()) {
    if (p.key().find("norm") == std::string::npos) p.value().normal_(0, 0.3);
  }
  model->eval();
}

TEST(Sequence, PaddingChangesNoLogit) {
  at::manual_seed(1);
  const at::Tensor tokens = at::randint(7, {2, 8}, at::kLong);
  const at::Tensor steps = at::randn({2, 8, 3});
  const at::NoGradGuard without;
  for (const Settings& mechanism : mechanisms) {
    for (const Pooling pooling : {Pooling::mean, Pooling::cls}) {
      SCOPED_TRACE(to_text(mechanism) + (pooling == Pooling::cls ? " cls" : " mean"));
      if (mechanism.contains("causal") && pooling == Pooling::cls) continue;
      SequenceOptions options = words(mechanism, pooling);
      Sequence of_words(options);
      options.vocabulary = 0;
      options.channels = 3;
      Sequence of_steps(options);
      for (auto& [model, x] : {std::pair(of_words, tokens), {of_steps, steps}}) {
        Sequence m = model;
        spread(m);
        const at::Tensor alone = m->forward(x);
        const at::Tensor more =
            x.dim() == 2 ? at::randint(7, {2, 4}, at::kLong) : 100 * at::randn({2, 4, 3});
        const at::Tensor padded = m->forward(at::cat({x, more}, 1), whole({8, 8}));
        EXPECT_LT(difference(alone, padded), 2e-5);
        EXPECT_GT(difference(alone[0], alone[1]), 1e-3);
      }
    }
  }
}

TEST(Sequence, EachSampleHasItsOwnLength) {
  at::manual_seed(2);
  const at::Tensor tokens = at::randint(7, {3, 9}, at::kLong);
  Sequence model(words({{"metric", "layer-change"}}));
  spread(model);
  const at::NoGradGuard without;
  const at::Tensor together = model->forward(tokens, whole({9, 4, 1}));
  for (const auto& [i, length] : {std::pair(0, 9), {1, 4}, {2, 1}}) {
    const at::Tensor alone = model->forward(tokens.slice(0, i, i + 1).slice(1, 0, length));
    EXPECT_LT(difference(together[i], alone[0]), 2e-5) << i;
  }
}

TEST(Sequence, TrainsEveryWeight) {
  at::manual_seed(3);
  for (const Settings& mechanism : mechanisms) {
    SCOPED_TRACE(to_text(mechanism));
    const bool causal = mechanism.contains("causal");
    SequenceOptions options = words(mechanism, causal ? Pooling::mean : Pooling::cls);
    options.dropout = 0.1;
    options.drop_path = 0.1;
    Sequence model(options);
    const at::Tensor logits =
        model->forward(at::randint(7, {8, 12}, at::kLong), whole({12, 5, 1, 7, 8, 9, 10, 11}));
    at::cross_entropy_loss(logits, whole({0, 1, 2, 0, 1, 2, 0, 1})).backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    }
    EXPECT_FALSE(model->forward(whole({1, 2}).view({1, 2}))
                     .equal(model->forward(whole({1, 2}).view({1, 2}))));
  }
}

TEST(Encoders, SizesAreThoseOfTheModels) {
  int seen = 0;
  for (const Listed& model : listed()) {
    SCOPED_TRACE(model.name);
    if (model.sequence) {
      EXPECT_EQ(size_of(model).parameters, trained(*Sequence(*model.sequence)));
    } else if (model.segmenter) {
      EXPECT_EQ(size_of(model).parameters, trained(*Segmenter(*model.segmenter)));
    } else if (model.language && model.name != "gpt2") {
      EXPECT_EQ(size_of(model).parameters, trained(*Language(*model.language)));
    } else {
      continue;
    }
    EXPECT_GT(size_of(model).multiply_adds, 1e6);
    ++seen;
  }
  EXPECT_EQ(seen, 11);
  EXPECT_EQ(size_of(find("gpt2")).parameters, 124439808);
  const LanguageOptions llama{.vocabulary = 50,
                              .context = 8,
                              .dim = 16,
                              .depth = 2,
                              .heads = 4,
                              .kv_heads = 2,
                              .hidden = 40,
                              .positions = Positions::rotary,
                              .norm = Norm::rms,
                              .activation = Activation::swiglu,
                              .biases = false,
                              .tied = false};
  EXPECT_EQ(size_of(llama).parameters, trained(*Language(llama)));
}

TEST(Sequence, SaysWhatIsWrong) {
  const auto said = [](const SequenceOptions& options) {
    return thrown<InvalidArgument>([&] { Sequence model(options); });
  };
  SequenceOptions options = words();
  options.channels = 2;
  EXPECT_EQ(said(options), "a vocabulary of 7 and 2 channels; one of them must be 0");
  options = words();
  options.length = 0;
  EXPECT_EQ(said(options), "length 0, 3 classes and 3 layers; each must be at least 1");
  options = words();
  options.dropout = 1;
  EXPECT_EQ(said(options), "dropout is 1; it must lie in [0, 1)");
  EXPECT_EQ(said(words({{"causal", "true"}}, Pooling::cls)),
            "a class token stands first, and a causal layer shows it nothing else: pool the mean");
  Sequence model(words());
  const auto of = [&](const at::Tensor& x, const at::Tensor& lengths = {}) {
    return thrown<InvalidArgument>([&] { model->forward(x, lengths); });
  };
  const at::Tensor good = at::zeros({2, 3}, at::kLong);
  EXPECT_EQ(of(at::zeros({2, 13}, at::kLong)),
            "the input has shape (2, 13); this model takes (batch, 1 to 12) of whole numbers");
  EXPECT_EQ(of(good, whole({3})), "lengths have shape (1); they must be (2) whole numbers");
  EXPECT_EQ(of(good, whole({3, 0})), "sample 1 has length 0; it must be 1 to 3");
  EXPECT_EQ(of(good, whole({4, 1})), "sample 0 has length 4; it must be 1 to 3");
  model = Sequence(words({{"metric", "key-covariance"}, {"scale", "auto"}}));
  EXPECT_EQ(model->forward(good, whole({3, 3})).size(0), 2);
  EXPECT_EQ(of(good, whole({3, 2})),
            "scale auto is matched over all tokens, padding too: give sequences of one length, or "
            "a number as scale");
  options = words();
  options.vocabulary = 0;
  options.channels = 2;
  model = Sequence(options);
  EXPECT_EQ(of(at::zeros({2, 3, 1})),
            "the input has shape (2, 3, 1); this model takes (batch, 1 to 12, 2)");
}

/// The decoder written out, with softmax over all tokens.
at::Tensor masks_by_hand(Segmenter& model, const at::Tensor& images) {
  const auto p = model->named_parameters();
  const auto w = [&](const std::string& name) { return p["decoder." + name]; };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return x.matmul(w(name + ".weight").t()) + w(name + ".bias");
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name, double eps) {
    const at::Tensor middle = x - x.mean(-1, true);
    return middle / (middle.pow(2).mean(-1, true) + eps).sqrt() * w(name + ".weight") +
           w(name + ".bias");
  };
  const at::Tensor patches = model->encoder->tokens(images).slice(1, 1);
  const std::int64_t B = images.size(0), P = patches.size(1);
  at::Tensor x = at::cat({linear(patches, "proj_dec"), w("cls_emb").expand({B, 5, 16})}, 1);
  for (const std::string block : {"blocks.0.", "blocks.1."}) {
    const auto qkv =
        linear(norm(x, block + "norm1", 1e-6), block + "attn.qkv").view({B, -1, 3, 2, 8});
    const auto part = [&](int i) { return qkv.select(2, i).transpose(1, 2); };
    const at::Tensor weights =
        (part(0).matmul(part(1).transpose(2, 3)) / std::sqrt(8.0)).softmax(-1);
    x = x +
        linear(weights.matmul(part(2)).transpose(1, 2).reshape({B, -1, 16}), block + "attn.proj");
    x = x + linear(at::gelu(linear(norm(x, block + "norm2", 1e-6), block + "mlp.fc1")),
                   block + "mlp.fc2");
  }
  x = norm(x, "decoder_norm", 1e-5);
  const at::Tensor a = x.slice(1, 0, P).matmul(w("proj_patch")),
                   b = x.slice(1, P).matmul(w("proj_classes"));
  const at::Tensor cosines = (a.unsqueeze(2) * b.unsqueeze(1)).sum(-1) / a.norm(2, {-1}, true) /
                             b.norm(2, {-1}).unsqueeze(1);  // (B,P,5)
  return norm(cosines, "mask_norm", 1e-5).permute({0, 2, 1}).view({B, 5, 4, 4});
}

TEST(Segmenter, IsItsDefinition) {
  at::manual_seed(4);
  const at::NoGradGuard without;
  Segmenter model(pixels());
  spread(model);
  const at::Tensor images = at::randn({2, 3, 16, 16});
  const at::Tensor masks = model->masks(images);
  EXPECT_LT(difference(masks, masks_by_hand(model, images)), 5e-5);
  const at::Tensor logits = model->forward(images);
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({2, 5, 16, 16}));
  // Pixel 5 lies at (5 + 1/2)/4 - 1/2 = 7/8 of the patches' grid.
  const double at55 = logits[0][0][5][5].item<double>();
  const auto m = [&](int y, int x) { return masks[0][0][y][x].item<double>(); };
  const double f = 7.0 / 8;
  EXPECT_NEAR(at55,
              (1 - f) * (1 - f) * m(0, 0) + f * (1 - f) * (m(0, 1) + m(1, 0)) + f * f * m(1, 1),
              1e-5);
}

TEST(Segmenter, TrainsWithEveryMechanism) {
  at::manual_seed(5);
  const at::Tensor images = at::randn({2, 3, 16, 16});
  const at::Tensor labels = at::randint(5, {2, 16, 16}, at::kLong);
  for (const Settings& mechanism : mechanisms) {
    SCOPED_TRACE(to_text(mechanism));
    Segmenter model(pixels(mechanism));
    at::cross_entropy_loss(model->forward(images), labels).backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    }
  }
}

TEST(Segmenter, WindowsAreAveraged) {
  at::manual_seed(6);
  const at::NoGradGuard without;
  Segmenter model(pixels());
  spread(model);
  const at::Tensor image = at::randn({3, 21, 36});
  at::Tensor sum = at::zeros({5, 21, 36}), count = at::zeros({21, 36});
  for (const std::int64_t y : {0, 5}) {
    for (const std::int64_t x : {0, 10, 20}) {
      const at::Tensor one = image.slice(1, y, y + 16).slice(2, x, x + 16).unsqueeze(0);
      sum.slice(1, y, y + 16).slice(2, x, x + 16) += model->forward(one)[0];
      count.slice(0, y, y + 16).slice(1, x, x + 16) += 1;
    }
  }
  for (const std::int64_t batch : {1, 4, 8}) {
    EXPECT_LT(difference(sliding_logits(model, image, 10, batch), sum / count), 2e-5);
  }
  const at::Tensor exact = at::randn({3, 16, 16}), small = at::randn({3, 9, 16});
  EXPECT_LT(difference(sliding_logits(model, exact, 16), model->forward(exact.unsqueeze(0))[0]),
            2e-5);
  const at::Tensor filled = at::constant_pad_nd(small, {0, 0, 0, 7}).unsqueeze(0);
  EXPECT_LT(difference(sliding_logits(model, small, 8), model->forward(filled)[0].slice(1, 0, 9)),
            2e-5);
}

TEST(Confusion, CountsByHand) {
  Confusion all(4);
  const at::Tensor labels = whole({0, 0, 0, 1, 1, 255, 2, 255}),
                   guesses = whole({0, 0, 1, 1, 0, 3, 2, 0});
  all.add(labels.slice(0, 0, 4).to(at::kByte), guesses.slice(0, 0, 4));
  all.add(labels.slice(0, 4).view({2, 2}), guesses.slice(0, 4).view({2, 2}));
  EXPECT_EQ(all.counts().sum().item<std::int64_t>(), 6);
  EXPECT_DOUBLE_EQ(all.pixel_accuracy(), 4.0 / 6);
  EXPECT_DOUBLE_EQ(all.mean_accuracy(), (2.0 / 3 + 1.0 / 2 + 1) / 3);
  EXPECT_DOUBLE_EQ(all.mean_iou(), (2.0 / 4 + 1.0 / 3 + 1) / 3);
  EXPECT_TRUE(std::isnan(all.iou()[3].item<double>()));  // neither a label nor a guess
  all.add(whole({0}), whole({3}));                       // now a guess: IoU 0, no accuracy
  EXPECT_DOUBLE_EQ(all.mean_iou(), (2.0 / 5 + 1.0 / 3 + 1 + 0) / 4);
  EXPECT_DOUBLE_EQ(all.mean_accuracy(), (2.0 / 4 + 1.0 / 2 + 1) / 3);
}

TEST(Segmenter, SaysWhatIsWrong) {
  SegmenterOptions options = pixels();
  options.classes = 0;
  EXPECT_EQ(thrown<InvalidArgument>([&] { Segmenter model(options); }),
            "0 classes and 2 layers of the decoder; each must be at least 1");
  Segmenter model(pixels());
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              sliding_logits(model, at::zeros({1, 16, 16}), 8);
            }),
            "an image has shape (1, 16, 16); it must be (3, height, width)");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              sliding_logits(model, at::zeros({3, 16, 16}), 17);
            }),
            "stride 17 and batch 8; windows of 16 need a stride of 1 to 16 and a batch of 1 or "
            "more");
  Confusion confusion(3);
  EXPECT_EQ(thrown<InvalidArgument>([&] { confusion.add(whole({3}), whole({0})); }),
            "a label is 3; there are 3 classes");
  EXPECT_EQ(thrown<InvalidArgument>([&] { confusion.add(whole({0}), whole({-1})); }),
            "a guess is -1; there are 3 classes");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              confusion.add(whole({0, 1}), whole({0}));
            }),
            "labels have shape (2) and guesses (1); they must be the same");
  EXPECT_EQ(thrown<InvalidArgument>([] { Confusion too_many(256); }),
            "256 classes; there may be 1 to 255");
}

}  // namespace
}  // namespace foci::models
