// SPDX-License-Identifier: Apache-2.0
// foci train --weights from files of other programs: GPT-2's and llama2.c's language models with
// their shape and tokenizer, converted or not, and a vision transformer for other classes and
// another size; then judged and spoken with as any run.
#include "cli/made_language.hpp"
#include "train/made_sets.hpp"

#include <foci/data.hpp>
#include <foci/safetensors.hpp>

#include <gtest/gtest.h>

#include <cstring>

namespace {

using namespace train_test;

/// Two steps at rate 0 from these weights: the checkpoint has them still.
Words still(const std::string& task, const std::string& weights, const std::string& run) {
  fs::remove_all(run);
  return {"train",           task, "--weights",  weights,    "--run",           run,
          "--batch",         "4",  "--steps",    "2",        "--learning-rate", "0",
          "--weight-decay",  "0",  "--schedule", "constant", "--metric",        "layer-change",
          "--metric-layers", "1:", "--threads",  "1",        "--quiet"};
}

Words still_text(const std::string& weights, const std::string& run) {
  return still("text", weights, run) + Words{"--data", text_file(), "--sample", "2"};
}

std::vector<float> numbers_in(const std::string& path, const std::string& name) {
  const foci::Safetensors file(path);
  const foci::View view = file.find(name);
  if (!view || view.dtype != foci::DType::f32) return {};
  const auto* first = static_cast<const float*>(view.data);
  return {first, first + view.count()};
}

std::string model_of(const std::string& run) { return checkpoint(run, 2) + "/model.safetensors"; }

nlohmann::json flags_of(const std::string& run) {
  return nlohmann::json::parse(read(run + "/config.json")).at("flags");
}

/// eval and generate know the run by its folder alone.
void expect_it_speaks(const std::string& run) {
  const auto judged = call({"eval", run, "--json", "--threads", "1"});
  ASSERT_EQ(judged.status, 0) << judged.err;
  EXPECT_GT(judged.json().at("count").get<double>(), 100);
  EXPECT_GT(judged.json().at("perplexity").get<double>(), 1);
  const Ran ran = call({"generate", run, "--prompt", "ab", "--tokens", "3", "--quiet"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(ran.out.starts_with("ab")) << ran.out;
  const Ran resumed = call({"train", "text", "--run", run, "--resume", "--quiet"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
}

TEST(Weights, Llama2csBeginARunConvertedOrNot) {
  const std::string bin = made_model(2), converted = folder().file("converted.safetensors"),
                    run = folder().file("from-bin"), other = folder().file("from-converted");
  made_tokenizer();
  ASSERT_EQ(call({"convert", bin, converted}).status, 0);
  EXPECT_EQ(call({"generate", converted, "--prompt", "ab", "--quiet"}).out,
            call({"generate", bin, "--prompt", "ab", "--quiet"}).out);
  for (const auto& [weights, into] : {std::pair(bin, run), {converted, other}}) {
    SCOPED_TRACE(weights);
    const Ran ran = call(still_text(weights, into));
    ASSERT_EQ(ran.status, 0) << ran.err;
    const auto flags = flags_of(into);
    EXPECT_EQ(flags.at("model"), "stories260k");
    EXPECT_EQ(flags.at("positions"), "rotary");
    EXPECT_EQ(flags.at("tokenizer"), "pieces");
    EXPECT_EQ(flags.at("context"), 8);
    EXPECT_EQ(flags.at("depth"), 2);
    EXPECT_EQ(flags.at("kv-heads"), 1);
    for (const char* name : {"embed.weight", "blocks.1.attn.qkv.weight", "blocks.1.mlp.fc1.weight"})
      EXPECT_EQ(numbers_in(model_of(into), name), numbers_in(converted, name)) << name;
    expect_it_speaks(into);
  }
  EXPECT_EQ(curve(run), curve(other));
  const std::string again = folder().file("from-a-run");
  const Ran ran = call(
      still_text(model_of(run), again) +
      Words{"--model",    "stories260k", "--context",   "8",        "--dim",
            "4",          "--depth",     "2",           "--heads",  "2",
            "--kv-heads", "1",           "--mlp-ratio", "0.5",      "--positions",
            "rotary",     "--tokenizer", "pieces",      "--pieces", folder().file("tok263.bin")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(curve(again), curve(run));
}

TEST(Weights, Gpt2sBeginARun) {
  const std::string gpt2 = made_gpt2("others-gpt2"), run = folder().file("from-gpt2");
  const Ran bare = call(still_text(gpt2, run));
  EXPECT_EQ(bare.status, 2);
  EXPECT_EQ(bare.err, "foci: " + gpt2 +
                          ": no encoder.json and vocab.bpe (nor vocab.json and merges.txt) are "
                          "with it\nfoci: hint: --pairs FOLDER names the tokenizer of these "
                          "weights\n");
  add_pairs(gpt2);
  for (const std::string& weights : {gpt2, gpt2 + "/model.safetensors"}) {
    SCOPED_TRACE(weights);
    const Ran ran = call(still_text(weights, run) + Words{"--context", "12"});
    ASSERT_EQ(ran.status, 0) << ran.err;
    const auto flags = flags_of(run);
    EXPECT_EQ(flags.at("model"), "gpt2");
    EXPECT_EQ(flags.at("tokenizer"), "pairs");
    EXPECT_EQ(flags.at("context"), 12);
    EXPECT_EQ(flags.at("dim"), 16);
    EXPECT_EQ(flags.at("depth"), 3);
    EXPECT_EQ(flags.at("heads"), 2);
    const std::string file = gpt2 + "/model.safetensors";
    EXPECT_EQ(numbers_in(model_of(run), "embed.weight"), numbers_in(file, "wte.weight"));
    EXPECT_EQ(numbers_in(model_of(run), "blocks.2.attn.proj.bias"),
              numbers_in(file, "h.2.attn.c_proj.bias"));
    auto places = numbers_in(file, "wpe.weight");
    places.resize(12 * 16);
    EXPECT_EQ(numbers_in(model_of(run), "positions"), places);
    expect_it_speaks(run);
  }
  write(gpt2 + "/config.json", R"({"n_head":2,"activation_function":"gelu"})");
  const Ran gelu = call(still_text(gpt2, run));
  EXPECT_EQ(gelu.status, 1);
  EXPECT_NE(gelu.err.find(": has learned positions, LayerNorm with eps 1e-05, GELU, biases"),
            std::string::npos)
      << gelu.err;
}

TEST(Weights, WhatDoesNotFitIsTold) {
  const std::string bin = made_model(2), run = folder().file("unfit");
  const std::string pieces = made_tokenizer(), moved = folder().file("moved.tok");
  const Words base = still_text(bin, run);
  struct Case {
    Words more;
    int status;
    std::string says;
  };
  const std::vector<Case> all = {
      {{"--tokenizer", "words"}, 1, "model.bin: has vocabulary 263; this model has 9\n"},
      {{"--dim", "8"}, 1, "model.bin: has dim 4; this model has 8\n"},
      {{"--context", "9"}, 1, "model.bin: has context 8; this model has 9, which is longer\n"},
      {{"--positions", "learned"}, 1, "model.bin: has rotary positions of neighbours, "},
      {{"--weights", "no.bin"}, 1, "no.bin: cannot be opened"},
      {{"--tokenizer", "pieces", "--pieces", text_file()}, 1, "made.txt: "},
  };
  for (const Case& bad : all) {
    fs::remove_all(run);
    const Ran ran = call(base + bad.more);
    EXPECT_EQ(ran.status, bad.status) << bad.says << "\n" << ran.err;
    EXPECT_NE(ran.err.find(bad.says), std::string::npos) << bad.says << "\n" << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2) << ran.err;
  }
  const Ran unnamed = call({"train", "text", "--data", text_file(), "--run", run + "2", "--quiet",
                            "--tokenizer", "pieces"});
  EXPECT_EQ(unnamed.status, 2);
  EXPECT_NE(unnamed.err.find("--tokenizer pieces needs --pieces FILE\n"), std::string::npos);
  fs::rename(pieces, moved);
  const Ran alone = call(base);
  EXPECT_EQ(alone.status, 2);
  EXPECT_EQ(alone.err, "foci: " + bin +
                           ": neither tokenizer.bin nor tok263.bin is beside it\nfoci: hint: "
                           "--pieces FILE names the tokenizer of these weights\n");
  EXPECT_EQ(call(base + Words{"--pieces", moved}).status, 0);
  fs::rename(moved, pieces);
}

/// Pictures of so many classes, each of its own colour, 28 x 28.
std::string coloured(const std::string& name, int classes) {
  for (const char* split : {"/train", "/test"}) {
    for (int c = 0; c < classes; ++c) {
      const std::string of_class = folder().file(name) + split + "/" + std::to_string(c);
      fs::create_directories(of_class);
      for (int i = 0; i < 8; ++i) {
        foci::data::Image image(28, 28, 3);
        for (int at = 0; at < 28 * 28; ++at)
          image.at(at / 28, at % 28)[c] = std::uint8_t(80 + i * at);
        foci::data::write_png(of_class + "/" + std::to_string(i) + ".png", image);
      }
    }
  }
  return folder().file(name);
}

TEST(Weights, AVisionTransformerForOtherClassesAndAnotherSize) {
  const Words shape = {"--patch", "14", "--dim", "16", "--depth", "2", "--heads", "2"};
  const std::string plain = folder().file("plain"), tuned = folder().file("tuned"),
                    start = folder().file("start.safetensors"), two = coloured("two", 2),
                    three = coloured("three", 3);
  const Ran before = call(Words{"train", "images", "--data", two, "--run", plain, "--metric", "dot",
                                "--batch", "4", "--steps", "2", "--quiet", "--threads", "1"} +
                          shape);
  ASSERT_EQ(before.status, 0) << before.err;
  const auto tune = [&](const std::string& weights, const Words& more) {
    return call(still("images", weights, tuned) + Words{"--data", three} + shape + more);
  };
  const Ran whole = tune(model_of(plain), {});
  EXPECT_EQ(whole.status, 2);
  EXPECT_NE(whole.err.find("this model needs (3); for other classes leave it out: foci convert "
                           "--drop head."),
            std::string::npos)
      << whole.err;
  ASSERT_EQ(call({"convert", model_of(plain), start, "--drop", "head."}).status, 0);
  for (const char* size : {"28", "42"}) {
    const Ran ran = tune(start, {"--image", size});
    ASSERT_EQ(ran.status, 0) << ran.err;
    const bool same = std::strcmp(size, "28") == 0;
    EXPECT_EQ(ran.err, same ? ""
                            : "foci: warning: " + start +
                                  ": pos_embed is for 2 x 2 patches; resampled to 3 x 3\n");
    EXPECT_EQ(flags_of(tuned).at("metric"), "layer-change");
    for (const char* name : {"blocks.1.attn.qkv.weight", "patch_embed.proj.weight", "norm.bias"})
      EXPECT_EQ(numbers_in(model_of(tuned), name), numbers_in(start, name)) << name;
    EXPECT_EQ(numbers_in(model_of(tuned), "head.bias").size(), 3u);
    EXPECT_EQ(numbers_in(model_of(tuned), "pos_embed").size(), (same ? 5u : 10u) * 16);
    EXPECT_EQ(call({"eval", tuned, "--json"}).json().at("count"), 24);
  }
  const Ran pixels = call(still("segments", start, tuned) +
                          Words{"--data", pair_folder(), "--image", "42"} + shape);
  ASSERT_EQ(pixels.status, 0) << pixels.err;
  EXPECT_NE(pixels.err.find("resampled to 3 x 3\n"), std::string::npos) << pixels.err;
  EXPECT_EQ(numbers_in(model_of(tuned), "encoder.blocks.1.attn.qkv.weight"),
            numbers_in(start, "blocks.1.attn.qkv.weight"));
}

}  // namespace
