// SPDX-License-Identifier: Apache-2.0
// The names of JSON fields are a promise: each verb prints one object with exactly these, and
// nothing else.
#include "cli/command.hpp"

#include <gtest/gtest.h>

#include <set>

namespace {

using namespace cli_test;
using Names = std::set<std::string>;

Names names_of(const nlohmann::json& object) {
  Names names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

nlohmann::json json_of(const Words& words) {
  const Ran ran = run_foci(words + Words{"--json"});
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out.substr(0, 2), "{\n");
  return ran.json();
}

TEST(Json, Info) {
  const auto info = json_of({"info"});
  EXPECT_EQ(names_of(info), (Names{"version", "commit", "backends", "absent", "isas", "isa",
                                   "devices", "machine", "threads", "mechanisms"}));
  EXPECT_EQ(info.at("backends"), nlohmann::json({"ref", "cpu"}));
  EXPECT_EQ(names_of(info.at("absent")), (Names{"cuda"}));
  EXPECT_EQ(info.at("isas").back(), "portable");
  EXPECT_EQ(info.at("devices"), nlohmann::json({"cpu"}));
  EXPECT_EQ(info.at("mechanisms").size(), 7u * 5u * 3u);
  for (const auto& cell : info.at("mechanisms")) {
    EXPECT_EQ(names_of(cell), (Names{"metric", "weighting", "backend", "supported", "why_not"}));
    EXPECT_EQ(cell.at("supported").get<bool>(), cell.at("why_not") == "");
    EXPECT_TRUE(cell.at("backend") != "cuda" || !cell.at("supported").get<bool>());
  }
}

TEST(Json, Attend) {
  const std::string out = folder().file("json.safetensors");
  const auto result = json_of({"attend", "--in", save("json-in.safetensors", plain_tensors()),
                               "--out", out, "--metric", "layer-change"});
  EXPECT_EQ(names_of(result),
            (Names{"in", "out", "shape", "kv_heads", "keys", "values", "options", "threads",
                   "seconds", "concentration", "effective_keys", "tensors", "flags"}));
  EXPECT_EQ(result.at("shape"), nlohmann::json({1, 2, 9, 4}));
  EXPECT_EQ(names_of(result.at("tensors")),
            (Names{"o", "lse", "metric", "concentration", "effective_keys", "entropy", "largest",
                   "largest_at", "dq", "dk", "dv", "dv_prev", "dmetric"}));
  const auto metadata = foci::Safetensors(out).metadata();
  EXPECT_EQ(nlohmann::json::parse(metadata.at("options")), result.at("options"));
  EXPECT_EQ(metadata.at("foci"), json_of({"info"}).at("version").get<std::string>());
}

TEST(Json, AnAllowedLeakIsFlagged) {
  const std::string in = save("leak-in.safetensors", plain_tensors());
  const auto result =
      json_of({"attend", "--in", in, "--out", folder().file("leak.safetensors"), "--metric",
               "layer-change", "--causal", "--scope", "sequence", "--allow-leak"});
  ASSERT_EQ(result.at("flags").size(), 1u);
  EXPECT_EQ(names_of(result.at("flags")[0]), (Names{"name", "means", "do"}));
  EXPECT_EQ(result.at("flags")[0].at("name"), "leak-allowed");
}

TEST(Json, AWarningOfTheLibraryIsFlagged) {
  Tensors tensors = plain_tensors();
  tensors["k"] = numbers({1, 1, 3, 4});
  tensors["v"] = numbers({1, 1, 3, 4}, 2);
  const auto result = json_of({"attend", "--in", save("warn-in.safetensors", tensors), "--out",
                               folder().file("warn.safetensors"), "--metric", "key-covariance"});
  ASSERT_EQ(result.at("flags").size(), 1u);
  EXPECT_EQ(result.at("flags")[0].at("name"), "warning");
  EXPECT_NE(result.at("flags")[0].at("means").get<std::string>().find("key-covariance"),
            std::string::npos);
}

TEST(Json, Check) {
  const auto result = json_of({"check", "--shape", "1,2,9,4", "--metric", "jacobian"});
  EXPECT_EQ(names_of(result), (Names{"shape", "options", "backend", "dtype", "threads", "error",
                                     "naive_error", "tolerance", "passed", "tensors", "flags"}));
  EXPECT_EQ(result.at("passed"), true);
  EXPECT_EQ(result.at("dtype"), "f32");
  EXPECT_GT(result.at("naive_error").get<double>(), 0);
  Names against;
  for (const auto& tensor : result.at("tensors")) {
    EXPECT_EQ(names_of(tensor), (Names{"name", "against", "error", "naive_error", "tolerance",
                                       "passed", "compared", "note"}));
    against.insert(tensor.at("against").get<std::string>());
  }
  EXPECT_EQ(against, (Names{"ref f64", "finite differences"}));
}

TEST(Json, Bench) {
  const auto result = json_of({"bench", "--shape", "2,4,12,8", "--kv-heads", "2", "--keys", "20",
                               "--causal", "--pass", "both", "--threads", "2", "--peers", "naive"});
  EXPECT_EQ(
      names_of(result),
      (Names{"shape",      "kv_heads", "keys",  "values",       "metric",        "weighting",
             "options",    "backend",  "dtype", "pass",         "causal",        "stats",
             "key_bias",   "threads",  "turns", "seconds",      "spread",        "repetitions",
             "gflops",     "of_sgemm", "error", "tensors",      "naive_error",   "peak_rss_bytes",
             "peak_bytes", "versus",   "peers", "absent_peers", "checked_shape", "machine",
             "commit",     "flags"}));
  EXPECT_EQ(result.at("shape"), nlohmann::json({2, 4, 12, 8}));
  EXPECT_EQ(result.at("checked_shape"), result.at("shape"));
  EXPECT_TRUE(result.at("versus").is_null());
  EXPECT_TRUE(result.at("of_sgemm").is_null());
  EXPECT_EQ(names_of(result.at("peers").at("naive")),
            (Names{"seconds", "spread", "repetitions", "gflops", "what", "difference"}));
  EXPECT_LT(result.at("peers").at("naive").at("difference").get<double>(), 1e-4);
  const double flops = 3.5 * 0.5 * 4 * 2 * 4 * 12 * 20 * 8;
  const double seconds = result.at("seconds").get<double>();
  EXPECT_NEAR(result.at("gflops").get<double>() * seconds * 1e9, flops, 1e-6 * flops);
}

TEST(Json, BenchOfALargeShapeSaysWhatItChecked) {
  const auto result = json_of({"bench", "--shape", "1,2,1200,64", "--kv-heads", "1", "--weighting",
                               "decay", "--causal", "--peers", "none", "--turns", "1"});
  EXPECT_EQ(result.at("checked_shape"), nlohmann::json({4, 2, 97, 64}));
}

TEST(Json, BenchAll) {
  const auto result = json_of({"bench", "--all", "--shape", "1,2,9,4"});
  const auto causal = json_of({"bench", "--all", "--shape", "1,2,9,4", "--causal", "--seed", "3"});
  EXPECT_EQ(causal.at("seed"), 3);
  EXPECT_NE(causal.at("mechanisms")[0].at("options"), result.at("mechanisms")[0].at("options"));
  EXPECT_EQ(names_of(result),
            (Names{"shape", "kv_heads", "keys", "values", "tensors", "seed", "dtype", "backend",
                   "machine", "commit", "mechanisms", "flags"}));
  Names refused, pairs;
  for (const auto& row : result.at("mechanisms")) {
    const auto pair =
        row.at("metric").get<std::string>() + " " + row.at("weighting").get<std::string>();
    if (row.at("supported").get<bool>()) {
      EXPECT_EQ(names_of(row),
                (Names{"metric", "weighting", "options", "backend", "supported", "why_not", "error",
                       "seconds", "peak_bytes", "concentration", "effective_keys"}));
      EXPECT_GT(row.at("concentration").get<double>(), 0) << pair;
      EXPECT_LT(row.at("error").get<double>(), 1e-3) << pair;
      pairs.insert(pair);
    } else {
      refused.insert(pair);
    }
  }
  EXPECT_EQ(refused, (Names{"key-covariance relu2", "key-covariance linear"}));
  for (const char* metric :
       {"dot", "layer-change", "flat", "jacobian", "key-covariance", "random", "given"}) {
    EXPECT_TRUE(pairs.contains(std::string(metric) + " softmax")) << metric;
  }
  for (const char* weighting : {"relu2", "identity", "linear", "decay"}) {
    EXPECT_TRUE(pairs.contains(std::string("dot ") + weighting)) << weighting;
    EXPECT_TRUE(pairs.contains(std::string("layer-change ") + weighting)) << weighting;
  }
}

TEST(Json, Theory) {
  const Names always = {"form", "concentration", "effective_fraction", "simulated",
                        "standard_error"};
  const auto plain = json_of({"theory", "--weighting", "relu2", "--beta", "-1", "--gamma", "3"});
  EXPECT_EQ(names_of(plain), always);
  EXPECT_NEAR(plain.at("concentration").get<double>(), 0.336399, 5e-7);
  EXPECT_TRUE(plain.at("simulated").is_null());
  const auto drawn = json_of({"theory", "--metric", "key-covariance", "--dim", "4", "--distance2",
                              "2", "--temperature", "2", "--simulate", "20000", "--keys", "10"});
  EXPECT_EQ(names_of(drawn), (Names{"form", "concentration", "effective_fraction", "simulated",
                                    "standard_error", "effective_keys"}));
  EXPECT_NEAR(drawn.at("simulated").get<double>(), drawn.at("concentration").get<double>(),
              4 * drawn.at("standard_error").get<double>());
  EXPECT_TRUE(json_of({"theory", "--gamma", "3", "--simulate", "5"})
                  .at("doubt")
                  .get<std::string>()
                  .starts_with("the error of 5 keys is"));
  const std::string picture = folder().file("curve.svg");
  const auto curves = json_of({"theory", "--weighting", "identity", "--curve", picture});
  EXPECT_EQ(curves.at("curves").size(), 5u);
  EXPECT_EQ(names_of(curves.at("curves")[0]), (Names{"beta", "gamma", "concentration"}));
  EXPECT_NE(read(picture).find("</svg>"), std::string::npos);
  const auto full = json_of({"theory", "--metric", "key-covariance", "--temperature", "auto",
                             "--gamma", "1", "--curve", picture});
  EXPECT_NEAR(full.at("concentration").get<double>(), std::exp(-0.5), 1e-10);
  EXPECT_GT(full.at("temperature").get<double>(), 1);
  EXPECT_EQ(names_of(full.at("curves")[0]), (Names{"distance2", "temperature", "concentration"}));
}

TEST(Json, Experiment) {
  const std::string picture = folder().file("experiment.svg");
  const auto found = json_of({"theory", "--experiment", "weights", "--runs", "2", "--keys", "64",
                              "--dim", "4", "--seed", "7", "--threads", "2", "--svg", picture});
  EXPECT_EQ(names_of(found), (Names{"experiment", "asks", "seed", "threads", "dim", "runs", "keys",
                                    "table", "charts", "flags"}));
  EXPECT_EQ(found.at("seed"), 7);
  EXPECT_EQ(found.at("threads"), 2);
  const auto row = found.at("table").at(0);
  EXPECT_EQ(names_of(row), (Names{"name", "values"}));
  EXPECT_EQ(names_of(row.at("values").at("effective keys")), (Names{"value", "standard_error"}));
  const auto chart = found.at("charts").at(0);
  EXPECT_EQ(names_of(chart), (Names{"title", "x", "y", "series"}));
  EXPECT_EQ(names_of(chart.at("series").at(0)),
            (Names{"name", "kind", "x", "y", "standard_error"}));
  EXPECT_NE(read(picture).find("</svg>"), std::string::npos);
}

}  // namespace
