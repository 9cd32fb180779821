// SPDX-License-Identifier: Apache-2.0
// Language models: a cache that changes nothing, no token that sees a later one, rotary positions
// beside a metric by their definition, perplexity by its own.
#include <foci/language.hpp>

#include "thrown.hpp"

#include <foci/error.hpp>

#include <gtest/gtest.h>

#include <cmath>

namespace foci::models {
namespace {

LanguageOptions small(const Settings& words = {}, Positions positions = Positions::learned) {
  const bool rotary = positions == Positions::rotary;
  return {.vocabulary = 11,
          .context = 16,
          .dim = 16,
          .depth = 3,
          .heads = 4,
          .kv_heads = 2,
          .hidden = 20,
          .positions = positions,
          .norm = rotary ? Norm::rms : Norm::layer,
          .activation = rotary ? Activation::swiglu : Activation::gelu,
          .biases = !rotary,
          .tied = !rotary,
          .mechanism = {.words = words}};
}

/// A model far from its start, where attention is nearly uniform.
Language made(const LanguageOptions& options) {
  at::manual_seed(7);
  Language model(options);
  const at::NoGradGuard without;
  for (at::Tensor& p : model->parameters()) p.add_(at::randn_like(p), 0.3);
  model->eval();
  return model;
}

at::Tensor some_tokens(std::int64_t batch, std::int64_t count) {
  at::manual_seed(8);
  return at::randint(11, {batch, count}, at::kLong);
}

double farthest(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

const std::vector<Settings>& mechanisms() {
  static const std::vector<Settings> all = {
      {},
      {{"form", "distance"}},
      {{"metric", "layer-change"}},
      {{"metric", "layer-change"}, {"normalize", "mean"}, {"form", "distance"}},
      {{"metric", "flat"}},
      {{"metric", "jacobian"}},
      {{"metric", "random"}},
      {{"metric", "key-covariance"}, {"period", "4"}},
      {{"metric", "learned"}},
      {{"metric", "learned-full"}, {"init", "random"}},
      {{"metric", "layer-change"}, {"weighting", "relu2"}},
      {{"metric", "layer-change"}, {"weighting", "linear"}},
      {{"metric", "layer-change"}, {"weighting", "identity"}},
      {{"weighting", "decay"}},
  };
  return all;
}

template <class Check>
void for_each_mechanism(Check&& check) {
  for (const Positions positions : {Positions::learned, Positions::rotary}) {
    for (const Settings& words : mechanisms()) {
      SCOPED_TRACE(to_text(words) + (positions == Positions::rotary ? " rotary" : " learned"));
      check(made(small(words, positions)));
    }
  }
}

TEST(Language, ACacheChangesNothing) {
  const at::Tensor tokens = some_tokens(2, 12);
  for_each_mechanism([&](Language model) {
    const at::NoGradGuard without;
    const at::Tensor whole = model->forward(tokens);
    LanguageCache cache(12);
    std::vector<at::Tensor> parts;
    for (const std::int64_t n : {5, 1, 1, 4, 1})
      parts.push_back(model->step(tokens.slice(1, cache.length(), cache.length() + n), cache));
    EXPECT_LT(farthest(model->logits(at::cat(parts, 1)), whole), 2e-4);
  });
}

TEST(Language, ALaterTokenChangesNoEarlierLogit) {
  const at::Tensor tokens = some_tokens(1, 12);
  at::Tensor other = tokens.clone();
  other.slice(1, 7).copy_((tokens.slice(1, 7) + 1).remainder(11));
  for_each_mechanism([&](Language model) {
    const at::NoGradGuard without;
    const at::Tensor a = model->forward(tokens), b = model->forward(other);
    EXPECT_TRUE(a.slice(1, 0, 7).equal(b.slice(1, 0, 7)));
    EXPECT_FALSE(a.slice(1, 7).equal(b.slice(1, 7)));
  });
}

TEST(Language, TrainsWithEveryMechanism) {
  const at::Tensor tokens = some_tokens(2, 12);
  for_each_mechanism([&](Language model) {
    model->train();
    const at::Tensor logits = model->forward(tokens).flatten(0, 1);
    at::cross_entropy_loss(logits, tokens.flatten()).backward();
    for (const auto& item : model->named_parameters()) {
      ASSERT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
    }
  });
}

/// Attention of one layer by its definition, in scalars: turned pairs, m of query n the mean of
/// |v - v_prev| over tokens up to n, averaged within pairs, divided by its largest entry.
struct Plain {
  std::int64_t H, G, N, D;
  Pairs pairs;

  std::pair<std::int64_t, std::int64_t> pair(std::int64_t i) const {
    return pairs == Pairs::halves ? std::pair(i, i + D / 2) : std::pair(2 * i, 2 * i + 1);
  }
  at::Tensor turned(const at::Tensor& x) const {  // (heads,N,D)
    at::Tensor y = x.clone();
    for (std::int64_t n = 0; n < N; ++n) {
      for (std::int64_t i = 0; i < D / 2; ++i) {
        const double angle = double(n) * std::pow(10000.0, -2.0 * double(i) / double(D));
        const auto [a, b] = pair(i);
        const at::Tensor u = x.select(1, n).select(1, a), w = x.select(1, n).select(1, b);
        y.select(1, n).select(1, a).copy_(u * std::cos(angle) - w * std::sin(angle));
        y.select(1, n).select(1, b).copy_(u * std::sin(angle) + w * std::cos(angle));
      }
    }
    return y;
  }
  at::Tensor metric(const at::Tensor& v, const at::Tensor& below, std::int64_t n) const {  // (G,D)
    const at::Tensor mean = (v - below).abs().slice(1, 0, n + 1).mean(1);
    at::Tensor m = mean.clone();
    for (std::int64_t i = 0; i < D / 2; ++i) {
      const auto [a, b] = pair(i);
      const at::Tensor both = (mean.select(1, a) + mean.select(1, b)) / 2;
      m.select(1, a).copy_(both);
      m.select(1, b).copy_(both);
    }
    return m / m.amax(1, true);
  }
  /// q (H,N,D), k, v, below (G,N,D); below undefined on the lowest layer.
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& below) const {
    const at::Tensor tq = turned(q), tk = turned(k);
    at::Tensor o = at::zeros_like(q);
    for (std::int64_t n = 0; n < N; ++n) {
      const at::Tensor m = below.defined() ? metric(v, below, n) : at::ones({G, D}, q.options());
      for (std::int64_t h = 0; h < H; ++h) {
        const std::int64_t g = h / (H / G);
        const at::Tensor scores =
            (tk[g].slice(0, 0, n + 1) * m[g] * tq[h][n]).sum(1) / std::sqrt(double(D));
        o[h][n].copy_(at::matmul(at::softmax(scores, 0), v[g].slice(0, 0, n + 1)));
      }
    }
    return o;
  }
};

TEST(Language, RotaryPairsShareTheirMetric) {
  for (const Pairs pairs : {Pairs::halves, Pairs::neighbours}) {
    LanguageOptions options = small({{"metric", "layer-change"}}, Positions::rotary);
    options.pairs = pairs;
    Language model = made(options);
    model->to(at::kDouble);
    const at::NoGradGuard without;
    const at::Tensor tokens = some_tokens(1, 9);
    const Plain plain{4, 2, 9, 4, pairs};
    at::Tensor x = model->embed(tokens)[0], below;  // (N,dim)
    for (LanguageBlock& block : model->blocks) {
      const auto split = block->attn->qkv(block->norm1(x)).split_with_sizes({16, 8, 8}, 1);
      const auto heads = [](const at::Tensor& t) { return t.view({9, -1, 4}).transpose(0, 1); };
      const at::Tensor v = heads(split[2]);
      const at::Tensor o = plain.attend(heads(split[0]), heads(split[1]), v, below);
      x = x + block->attn->proj(o.transpose(0, 1).reshape({9, 16}));
      const at::Tensor y = block->norm2(x);
      x = x + block->fc2(at::silu(block->gate(y)) * block->fc1(y));
      below = v;
    }
    EXPECT_LT(farthest(model->states(tokens)[0], model->norm(x)), 1e-6);
  }
}

TEST(Language, GoesOnWithTheLikeliestToken) {
  Language model = made(small({{"metric", "layer-change"}}));
  const std::vector<std::int32_t> prompt = {3, 1, 4};
  std::vector<std::int32_t> greedy;
  const auto into = [](std::vector<std::int32_t>& to) {
    return [&to](std::int32_t token) {
      to.push_back(token);
      return true;
    };
  };
  EXPECT_EQ(generate(model, prompt, {.tokens = 100}, into(greedy)), 14);  // a context of 16
  at::Tensor seen = at::tensor({3, 1, 4}, at::kLong).unsqueeze(0);
  const at::NoGradGuard without;
  for (const std::int32_t token : greedy) {
    EXPECT_EQ(model->forward(seen)[0][-1].argmax().item<std::int64_t>(), token);
    seen = at::cat({seen, at::full({1, 1}, token, at::kLong)}, 1);
    if (seen.size(1) == 16) break;
  }
  std::vector<std::int32_t> cut, one, again, other;
  generate(model, prompt, {.tokens = 14, .temperature = 1, .top_p = 1e-9}, into(cut));
  EXPECT_EQ(cut, greedy);
  generate(model, prompt, {.tokens = 14, .temperature = 2, .seed = 1}, into(one));
  generate(model, prompt, {.tokens = 14, .temperature = 2, .seed = 1}, into(again));
  generate(model, prompt, {.tokens = 14, .temperature = 2, .seed = 2}, into(other));
  EXPECT_EQ(one, again);
  EXPECT_NE(one, other);
  EXPECT_EQ(generate(model, prompt, {}, [](std::int32_t) { return false; }), 1);
}

TEST(Language, DrawsAsOftenAsTheSoftmaxSays) {
  Language model = made(small());
  const std::vector<std::int32_t> prompt = {3, 1, 4};
  const at::NoGradGuard without;
  const at::Tensor p =
      at::softmax(model->forward(at::tensor({3, 1, 4}, at::kLong).unsqueeze(0))[0][-1] / 3.0, 0);
  std::vector<double> seen(11);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    generate(model, prompt, {.tokens = 1, .temperature = 3, .seed = seed},
             [&](std::int32_t token) { return seen[std::size_t(token)] += 1.0 / 2000; });
  }
  for (int token = 0; token < 11; ++token)
    EXPECT_NEAR(seen[std::size_t(token)], p[token].item<double>(), 0.04) << token;
}

TEST(Language, PerplexityIsThatOfItsDefinition) {
  Language model = made(small({{"metric", "layer-change"}}));
  const at::Tensor all = some_tokens(1, 40)[0];
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < 40; ++i) tokens.push_back(all[i].item<std::int32_t>());
  const at::NoGradGuard without;
  for (const auto& [window, stride] : {std::pair(8, 3), std::pair(8, 8), std::pair(16, 1)}) {
    double sum = 0;
    for (std::int64_t t = 1; t < 40; ++t) {
      std::int64_t begin = 0;  // the first window that reaches token t
      while (begin + window < t) begin += stride;
      const at::Tensor logits = model->forward(all.slice(0, begin, t).unsqueeze(0))[0][-1];
      sum -= at::log_softmax(logits, 0)[all[t].item<std::int64_t>()].item<double>();
    }
    const Perplexity found = perplexity(model, tokens, window, stride);
    EXPECT_EQ(found.counted, 39);
    EXPECT_NEAR(found.loss, sum / 39, 1e-5);
    EXPECT_NEAR(found.perplexity(), std::exp(sum / 39), 1e-3);
    EXPECT_NEAR(found.bits_per_byte(100), sum / std::log(2.0) / 100, 1e-4);
  }
}

TEST(Language, SaysWhatIsWrong) {
  const auto fault = [](const LanguageOptions& options) {
    return thrown<InvalidArgument>([&] { Language model(options); });
  };
  LanguageOptions options = small();
  options.context = 0;
  EXPECT_EQ(fault(options),
            "a vocabulary of 11, a context of 0 and 3 layers; each must be at least 1");
  options = small();
  options.dropout = 1;
  EXPECT_EQ(fault(options), "dropout is 1; it must lie in [0, 1)");
  options = small({}, Positions::rotary);
  options.dim = 12;
  EXPECT_EQ(fault(options), "rotary positions need an even head size; it is 3");
  const auto unsupported = [](const Settings& words) {
    return thrown<Unsupported>([&] { Language model(small(words, Positions::rotary)); });
  };
  EXPECT_EQ(unsupported({{"metric", "layer-change"}, {"scope", "running"}}),
            "scope running with rotary positions: use learned positions");
  EXPECT_EQ(unsupported({{"metric", "learned"}, {"init", "estimate"}}),
            "init estimate with rotary positions: use learned positions");
  EXPECT_EQ(unsupported({{"metric", "flat"}, {"scope", "sequence"}, {"allow_leak", "true"}}),
            "scope sequence with rotary positions: use learned positions");
  EXPECT_EQ(unsupported({{"metric", "jacobian"}, {"metric_grad", "through"}}),
            "metric jacobian with metric_grad through with rotary positions: use learned "
            "positions");
  Language model = made(small());
  const auto said = [](auto&& call) { return thrown<InvalidArgument>(call); };
  EXPECT_EQ(said([&] { model->forward(some_tokens(1, 17)); }),
            "17 tokens after 0; there is room for 16");
  EXPECT_EQ(said([&] { model->forward(at::zeros({3}, at::kLong)); }),
            "tokens have shape (3); they must be (batch, tokens)");
  LanguageCache cache(4);
  EXPECT_EQ(said([&] { model->step(some_tokens(1, 1), cache); }),
            "a cache keeps no gradients: decode under torch::NoGradGuard");
  EXPECT_EQ(said([] { LanguageCache(0); }), "a cache of 0 tokens; it must hold at least 1");
  const std::vector<std::int32_t> prompt = {3}, none, wrong = {11, 0}, longer(17);
  const auto generated = [&](const std::vector<std::int32_t>& tokens, const Sampling& how) {
    return said([&] { generate(model, tokens, how, [](std::int32_t) { return true; }); });
  };
  EXPECT_EQ(generated(none, {}), "an empty prompt; it must have at least one token");
  EXPECT_EQ(generated(longer, {}), "a prompt of 17 tokens; the model's context is 16");
  EXPECT_EQ(generated(wrong, {}), "token 11 of a vocabulary of 11");
  EXPECT_EQ(generated(prompt, {.temperature = -1}), "temperature is -1; it must be 0 or more");
  EXPECT_EQ(generated(prompt, {.top_p = 0}), "top_p is 0; it must lie in (0, 1]");
  EXPECT_EQ(said([&] { perplexity(model, wrong, 17, 1); }),
            "windows of 17 tokens every 1; it must be 1 <= stride <= window <= 16");
  EXPECT_EQ(said([&] { perplexity(model, prompt, 16, 1); }),
            "a text of fewer than two tokens has no perplexity");
}

}  // namespace
}  // namespace foci::models
