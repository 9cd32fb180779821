// SPDX-License-Identifier: Apache-2.0
// foci measure on tensors of calls that were made here: every sample once, whatever the batch;
// pictures where there is one key, where all tokens are alike, and under the metric of a prefix.
#include "train/child.hpp"

#include <foci/random.hpp>
#include <foci/record.hpp>
#include <foci/safetensors.hpp>
#include <foci/tensor.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace {

using namespace train_test;

constexpr int size = 4;

/// Self-attention of these samples, each sharper than the one before, behind `pads` tokens that are
/// masked.
std::string call_of(const std::string& name, const std::vector<int>& samples, int tokens,
                    int pads = 0) {
  const int B = int(samples.size()), N = tokens + pads;
  foci::Tensor x(foci::DType::f32, {B, 1, N, size}), keep(foci::DType::boolean, {B, N});
  for (int b = 0; b < B; ++b) {
    foci::data::Random random(7, std::uint64_t(samples[std::size_t(b)]), 0);
    for (int i = 0; i < N; ++i) {
      keep.data<bool>()[b * N + i] = i >= pads;
      for (int d = 0; d < size; ++d) {
        const double value = i < pads ? 5 : double(random.below(1000)) / 500 - 1;
        x.data<float>()[(b * N + i) * size + d] =
            float(value * (1 + 0.2 * samples[std::size_t(b)]));
      }
    }
  }
  std::map<std::string, foci::View> all = {{"q", x}, {"k", x}, {"v", x}};
  if (pads > 0) all.emplace("key_mask", keep);
  foci::write_safetensors(folder().file(name), all);
  return folder().file(name);
}

nlohmann::json measured(const std::string& path, const Words& more) {
  const Ran ran = call(Words{"measure", path, "--json", "--threads", "1"} + more);
  EXPECT_EQ(ran.status, 0) << ran.err;
  return ran.json().at("measured").at(0).at("layers").at(0);
}

/// All numbers of a JSON within rounding of the other's, and the same words and counts.
void expect_same(const nlohmann::json& got, const nlohmann::json& want, const std::string& where) {
  if (want.is_number_float()) {
    EXPECT_NEAR(got.get<double>(), want.get<double>(), 1e-6 * std::max(1.0, want.get<double>()))
        << where;
    return;
  }
  if (!want.is_structured()) {
    EXPECT_EQ(got, want) << where;
    return;
  }
  ASSERT_EQ(got.size(), want.size()) << where;
  for (const auto& [key, part] : want.items()) {
    const auto& other = got.is_array() ? got[std::stoul(key)] : got.at(key);
    expect_same(other, part, where + "/" + key);
  }
}

TEST(MeasureTensors, EverySampleCountsOnceWhateverTheBatch) {
  std::vector<int> all(64);
  for (int i = 0; i < 64; ++i) all[std::size_t(i)] = i;
  const std::string path = call_of("many.safetensors", all, 5);
  const Words closely = {"--samples", "0", "--closely", "16"};
  const nlohmann::json whole = measured(path, closely + Words{"--batch", "64"});
  EXPECT_EQ(whole.at("concentration").at("n"), 64);
  EXPECT_EQ(whole.at("distance").at("n"), 16);
  expect_same(measured(path, closely), whole, "batches of 50");
  expect_same(measured(path, closely + Words{"--batch", "7"}), whole, "batches of 7");
  const std::string some = call_of("some.safetensors", {0, 21, 42}, 5);
  expect_same(measured(path, {"--samples", "3", "--batch", "2"}), measured(some, {}), "samples");
}

TEST(MeasureTensors, WhatNoRowHasIsNull) {
  const std::string path = call_of("padded.safetensors", {0, 1, 2}, 4, 2);
  const std::string out = folder().file("null");
  measured(path, {"--weighting", "relu2", "--per", "query", "--out", out});
  const auto layer = nlohmann::json::parse(read(out + "/measure.json"))["measured"][0]["layers"][0];
  EXPECT_TRUE(layer.at("entropy").is_null());
  EXPECT_TRUE(layer.at("by_query").at("entropy").is_null());
  for (const char* name : {"concentration", "effective_keys", "largest", "distance", "top_mass"}) {
    const auto& row = layer.at("by_query").at(name).at(0);
    ASSERT_EQ(row.size(), 6u) << name;
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(row[i].is_null(), i < 2) << name << " " << i;
  }
}

/// Everything that pictures are made of, and what was written.
nlohmann::json pictured(const std::string& path, const Words& more) {
  const std::string out = folder().file("pictured");
  fs::remove_all(out);
  const Ran ran =
      call(Words{"measure", path, "--json", "--threads", "1", "--pictures", out} + more);
  EXPECT_EQ(ran.status, 0) << ran.err;
  auto json = nlohmann::json::parse(read(out + "/pictures.json"));
  json["files"] = ran.json().at("pictures");
  return json;
}

TEST(MeasureTensors, PicturesOfOneKeyAndOfTokensThatAreAlike) {
  const Words full = {"--metric", "key-covariance", "--prior", "4"};
  const std::string one = call_of("one.safetensors", {1}, 1);
  foci::Tensor same(foci::DType::f32, {1, 2, 6, size});
  std::fill_n(same.data<float>(), 2 * 6 * size, 1.5f);
  const std::string alike = folder().file("alike.safetensors");
  foci::write_safetensors(alike, {{"q", same}, {"k", same}, {"v", same}});
  for (const Words& how : {Words{}, full}) {
    for (const auto& [path, keys] : {std::pair(one, 1u), {alike, 6u}}) {
      SCOPED_TRACE(path + (how.empty() ? "" : how[1]));
      const auto json = pictured(path, how);
      ASSERT_FALSE(json.at("planes").empty());
      const auto& weights = json.at("planes").back().at("weights");
      ASSERT_EQ(weights.size(), keys);
      for (const auto& weight : weights) EXPECT_NEAR(weight.get<double>(), 1.0 / keys, 1e-6);
      std::string names;
      for (const auto& file : json.at("files")) names += file.get<std::string>() + " ";
      for (const char* name : {"layers.svg", "ellipse.svg", "tokens.svg"})
        EXPECT_NE(names.find(name), std::string::npos) << names;
    }
  }
}

/// Masked tokens in front change no picture: a chunk is that of the keys that count.
TEST(MeasureTensors, PicturesUnderAPrefixCountUnmaskedKeys) {
  const Words how = {"--metric", "key-covariance", "--prior", "4", "--causal", "--period", "2"};
  const auto plain = pictured(call_of("plain.safetensors", {3}, 6), how + Words{"--query", "4"});
  const auto padded =
      pictured(call_of("behind.safetensors", {3}, 6, 3), how + Words{"--query", "7"});
  ASSERT_EQ(plain.at("planes").size(), 2u);
  expect_same(padded.at("planes")[1].at("metric"), plain.at("planes")[1].at("metric"), "metric");
  expect_same(padded.at("planes")[1].at("weights"), plain.at("planes")[1].at("weights"), "weights");
}

/// Eigenvalues are taken of few samples, and their Records say so.
TEST(MeasureTensors, AFullMetricsRecordsSayOverHowMany) {
  const std::string run = folder().file("full-metric");
  ASSERT_EQ(call(tiny(run) + Words{"--metric", "key-covariance"}).status, 0);
  const Ran ran =
      call({"measure", run, "--samples", "12", "--closely", "3", "--json", "--threads", "1"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto metric = ran.json().at("measured").at(0).at("layers").at(1).at("metric");
  EXPECT_EQ(metric.at("n"), 3);
  EXPECT_GT(metric.at("error").at("anisotropy").get<double>(), 0);
  EXPECT_FALSE(metric.at("error").contains("most"));
  int seen = 0;
  for (const auto& record : foci::read_records(run + "/records.jsonl")) {
    if (!record.name.starts_with("metric_")) continue;
    EXPECT_EQ(record.n, 3) << record.name;
    EXPECT_EQ(record.spread.has_value(),
              metric.at("error").contains(record.name.substr(7, record.name.find(' ') - 7)))
        << record.name;
    const auto few = [](const auto& flag) { return flag.name == "few-samples"; };
    EXPECT_TRUE(std::any_of(record.flags.begin(), record.flags.end(), few)) << record.name;
    ++seen;
  }
  EXPECT_GE(seen, 9);
}

}  // namespace
