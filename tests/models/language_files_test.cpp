// SPDX-License-Identifier: Apache-2.0
// Language models from others' files: the logits of GPT-2 and llama2.c by their stored answers, a
// run's model that begins with their weights, and what is said of files that are wrong.
#include <foci/language.hpp>

#include "models/stored.hpp"
#include "thrown.hpp"

#include <foci/convert.hpp>
#include <foci/error.hpp>

#include <gtest/gtest.h>

#include <cstdlib>

namespace foci::models {
namespace {

double farthest(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// The stored logits are those of a formula in plain torch (make_gpt2.py), which
/// tests/python/test_gpt2.py holds to Hugging Face's own where transformers is installed.
TEST(LanguageFiles, HasTheLogitsOfGpt2sFormula) {
  const Stored stored("gpt2.safetensors");
  EXPECT_TRUE(stored.metadata().at("logits by").starts_with("make_gpt2.py's own formula"));
  for (const char* prefix : {"", "transformer."}) {
    const std::string folder = stored.write_gpt2(prefix);
    Language model = read_gpt2(folder);
    model->eval();
    const at::NoGradGuard without;
    EXPECT_EQ(model->options().heads, 2);
    EXPECT_TRUE(model->options().tied);
    EXPECT_LT(farthest(model->forward(stored.tensor("tokens")), stored.tensor("logits")), 1e-4);
    Language other = read_gpt2(folder, {.words = {{"metric", "layer-change"}}});
    EXPECT_GT(farthest(other->forward(stored.tensor("tokens")), stored.tensor("logits")), 1e-2);
  }
}

TEST(LanguageFiles, HasLlama2csLogits) {
  const Stored stored("llama2c.safetensors");
  Language model = language_of(data::read_llama2c(stored.write_bytes("model")));
  const at::NoGradGuard without;
  const at::Tensor tokens = stored.tensor("tokens").unsqueeze(0);
  EXPECT_LT(farthest(model->forward(tokens)[0], stored.tensor("logits")), 1e-4);
}

/// llama2.c's stored model as `foci convert` writes it.
std::string converted(
    const Stored& stored, const Folder& folder,
    const std::function<void(data::Checkpoint&)>& change = [](auto&) {}) {
  fs::copy_file(stored.write_bytes("model"), folder.at("model.bin"),
                fs::copy_options::overwrite_existing);
  data::Checkpoint checkpoint = data::read_checkpoint(folder.at("model.bin"));
  change(checkpoint);
  write_safetensors(folder.at("converted.safetensors"), checkpoint.tensors, checkpoint.metadata);
  return folder.at("converted.safetensors");
}

TEST(LanguageFiles, HasLlama2csLogitsOfAConvertedFile) {
  const Stored stored("llama2c.safetensors");
  const Folder folder;
  const at::NoGradGuard without;
  const at::Tensor tokens = stored.tensor("tokens").unsqueeze(0);
  Language model = read_language(converted(stored, folder));
  EXPECT_LT(farthest(model->forward(tokens)[0], stored.tensor("logits")), 1e-4);
  Language other =
      read_language(folder.at("converted.safetensors"), {.words = {{"metric", "flat"}}});
  EXPECT_GT(farthest(other->forward(tokens)[0], stored.tensor("logits")), 1e-3);
  const auto fault = [&](const std::function<void(data::Checkpoint&)>& change) {
    const std::string path = converted(stored, folder, change);
    const std::string said = thrown<FileError>([&] { read_language(path); });
    return said.substr(said.rfind('/') + 1);
  };
  EXPECT_EQ(fault([](auto& c) { c.metadata.erase("heads"); }),
            "converted.safetensors: does not say its heads; foci convert writes it for llama2.c's "
            "models, and a run's own weights go by the run");
  for (const char* number : {"", "0", "4x", "1e300", "99999999999999999999"}) {
    EXPECT_EQ(fault([&](auto& c) { c.metadata["context"] = number; }),
              "converted.safetensors: its metadata's context is no number from 1 to 1048576");
  }
  EXPECT_EQ(fault([](auto& c) { c.metadata["heads"] = "7"; }).find(" with 7 heads and "),
            std::string("converted.safetensors: 3 layers of dim 16").size());
  EXPECT_EQ(fault([](auto& c) { c.tensors["embed.weight"] = c.tensors["norm.weight"]; }),
            "converted.safetensors: has no matrix embed.weight, which a model of llama2.c has");
}

TEST(LanguageFiles, BeginsWithOthersWeights) {
  const Stored stored("gpt2.safetensors");
  const std::string path = stored.write_gpt2("");
  Language read = read_gpt2(path);
  LanguageOptions options = read->options();
  options.context = 12;
  Language plain(options);
  options.mechanism = {.words = {{"metric", "learned"}}, .first = 1};
  Language learned(options);
  begin_with(plain, read, path);
  begin_with(learned, read, path);
  read->eval();
  plain->eval();
  const at::NoGradGuard without;
  const at::Tensor tokens = stored.tensor("tokens").slice(1, 0, 12);
  EXPECT_TRUE(plain->forward(tokens).equal(read->forward(tokens)));
  for (const auto& [name, weight] : plain_weights(*plain))
    EXPECT_TRUE(plain_weights(*learned).at(name).equal(weight)) << name;
  const auto fault = [&](const std::function<void(LanguageOptions&)>& change) {
    LanguageOptions other = read->options();
    change(other);
    Language model(other);
    return thrown<FileError>([&] { begin_with(model, read, "f"); });
  };
  EXPECT_EQ(fault([](auto& o) { o.vocabulary = 9; }), "f: has vocabulary 61; this model has 9");
  EXPECT_EQ(fault([](auto& o) { o.heads = 4; }), "f: has heads 2; this model has 4");
  EXPECT_EQ(fault([](auto& o) { o.kv_heads = 1; }), "f: has kv-heads 2; this model has 1");
  EXPECT_EQ(fault([](auto& o) { o.hidden = 63; }), "f: has hidden size 64; this model has 63");
  EXPECT_EQ(fault([](auto& o) { o.context = 25; }),
            "f: has context 24; this model has 25, which is longer");
  EXPECT_EQ(fault([](auto& o) {
              o.positions = Positions::rotary;
              o.tied = false;
            }),
            "f: has learned positions, LayerNorm with eps 1e-05, GELU by tanh, biases, the "
            "embedding as its head; this model has rotary positions of halves, base 10000, "
            "LayerNorm with eps 1e-05, GELU by tanh, biases, a head of its own");
}

TEST(LanguageFiles, SaysWhatIsWrongWithGpt2sFile) {
  const Stored stored("gpt2.safetensors");
  using Tensors = std::map<std::string, View>;
  const auto fault = [&](const std::string& config, const std::function<void(Tensors&)>& spoil) {
    const std::string folder = stored.write_gpt2("", config, spoil);
    return stored.bare(thrown<FileError>([&] { read_gpt2(folder); }));
  };
  const std::string config = R"({"n_head":2})";
  EXPECT_EQ(fault(config, [](Tensors& t) { t.erase("h.1.mlp.c_proj.bias"); }),
            "model.safetensors: has no tensor h.1.mlp.c_proj.bias, which GPT-2 has");
  EXPECT_EQ(fault(config, [](Tensors& t) { t["h.1.ln_1.bias"] = t["h.1.mlp.c_fc.bias"]; }),
            "model.safetensors: h.1.ln_1.bias has shape (64); this model needs (16)");
  EXPECT_EQ(fault(config, [](Tensors& t) { t["wte.weight"] = t["ln_f.bias"]; }),
            "model.safetensors: wte.weight has shape (16) of f32; GPT-2's has 2 extents of floats");
  EXPECT_EQ(fault(config, [](Tensors& t) { t["odd"] = t["ln_f.bias"]; }),
            "model.safetensors: holds odd, which GPT-2 does not have");
  EXPECT_EQ(fault("", [](Tensors&) {}),
            "model.safetensors: 0 heads over dim 16; config.json must say n_head");
  EXPECT_EQ(fault("[", [](Tensors&) {}), "config.json: is no JSON object");
  const auto whole = [](const std::string& number) {
    return "config.json: n_head is " + number + "; it must be a whole number, 1 or more";
  };
  EXPECT_EQ(fault(R"({"n_head":"2"})", [](Tensors&) {}), whole("\"2\""));
  EXPECT_EQ(fault(R"({"n_head":1e300})", [](Tensors&) {}), whole("1e+300"));
  EXPECT_EQ(fault(R"({"n_head":2.5})", [](Tensors&) {}), whole("2.5"));
  EXPECT_EQ(fault(R"({"n_head":-2})", [](Tensors&) {}), whole("-2"));
  EXPECT_EQ(fault(R"({"n_head":18446744073709551615})", [](Tensors&) {}),
            whole("18446744073709551615"));
  EXPECT_EQ(fault(R"({"n_head":2,"layer_norm_epsilon":-1e300})", [](Tensors&) {}),
            "config.json: layer_norm_epsilon is -1e+300; it must be a number between 0 and 1");
  EXPECT_EQ(fault(R"({"n_head":2,"activation_function":"relu"})", [](Tensors&) {}),
            "config.json: activation_function is \"relu\"; it must be gelu_new, "
            "gelu_pytorch_tanh or gelu");
  EXPECT_EQ(fault(R"({"n_head":2,"activation_function":3})", [](Tensors&) {}),
            "config.json: activation_function is 3; it must be gelu_new, gelu_pytorch_tanh or "
            "gelu");
}

/// Needs the pack with the model: $FOCI_DATA, or the folder beside the repository.
TEST(LanguageFiles, TellsTheStoryOfStories260K) {
  const char* data = std::getenv("FOCI_DATA");
  const std::string folder = unpacked_stories(data ? data : FOCI_SOURCE_DIR "/../shared/data");
  if (folder.empty()) {
    GTEST_SKIP() << "NOT TESTED: stories260k.tar.xz (1 MB) is not in "
                 << (data ? "$FOCI_DATA" : "../shared/data") << "; set FOCI_DATA to its folder";
  }
  Language model = language_of(data::read_llama2c(folder + "/stories260K.bin"));
  const data::ScoredPieces pieces(folder + "/tok512.bin");
  data::Tokens tokens = pieces.encode("");
  generate(model, data::Tokens(tokens), {.tokens = 60}, [&](std::int32_t token) {
    tokens.push_back(token);
    return true;
  });
  const std::string story = pieces.decode(tokens);
  EXPECT_EQ(story.rfind("Once upon a time, there was a little girl named Lily. She loved to play "
                        "outside in the park",
                        0),
            0u)
      << story;
}

}  // namespace
}  // namespace foci::models
