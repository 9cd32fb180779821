// SPDX-License-Identifier: Apache-2.0
// Every flag of every verb changes something: what is printed, what is written, or whether it is
// allowed. A flag that the tables declare and this list does not know makes the test fail.
#include "cli/flags.hpp"
#include "cli/command.hpp"

#include <foci/data.hpp>

#include <gtest/gtest.h>

#include <regex>
#include <set>

namespace {

using namespace cli_test;

/// Fields that differ from run to run by nature, and those that only repeat the flags.
void drop_fields(nlohmann::json& value) {
  constexpr const char* times[] = {"seconds", "spread", "gflops",   "repetitions",
                                   "peers",   "ratio",  "of_sgemm", "peak_rss_bytes"};
  constexpr const char* echoes[] = {
      "in",     "out",   "options", "metric",   "weighting", "dtype",  "pass",          "seed",
      "causal", "stats", "shape",   "kv_heads", "keys",      "values", "checked_shape", "key_bias"};
  if (value.is_object()) {
    for (const char* name : times) value.erase(name);
    for (const char* name : echoes) value.erase(name);
  }
  for (auto& part : value) {
    if (part.is_structured()) drop_fields(part);
  }
}

/// Names, shapes and bytes of the tensors in a file; its metadata would only repeat the flags.
std::string tensors_in(const std::string& path) {
  if (!fs::exists(path)) return "no file";
  std::string all;
  const foci::Safetensors file(path);
  for (const std::string& name : file.names()) {
    const foci::View view = file.find(name);
    all += name + foci::to_string(view.sizes());
    all.append(static_cast<const char*>(view.data),
               std::size_t(view.count()) * foci::size_of(view.dtype));
  }
  return all;
}

/// Text for people without its numbers and units of time.
std::string words_of(const std::string& text) {
  static const std::regex numbers("[0-9.]+( (us|ms|s)\\b)?");
  static const std::regex spaces(" +");
  return std::regex_replace(std::regex_replace(text, numbers, ""), spaces, " ");
}

/// What a run does, apart from times: status, standard output, the tensors it wrote.
std::string trace_of(const Words& words) {
  const std::string out = folder().file("trace.safetensors");
  fs::remove(out);
  const Ran ran = run_foci(words);
  std::string shown = words_of(ran.out);
  if (nlohmann::json value = nlohmann::json::parse(ran.out, nullptr, false);
      value.is_structured()) {
    drop_fields(value);
    shown = value.dump();
  }
  return std::to_string(ran.status) + "\n" + shown + "\n" + tensors_in(out);
}

struct Change {
  Words before;  ///< after the verb
  Words flag;    ///< the flag and its value
};

using Changes = std::map<std::string, Change>;

/// Mechanism flags, for verbs that print or write what the mechanism gives.
Changes mechanism_changes() {
  const Words change = {"--metric", "layer-change"}, covariance = {"--metric", "key-covariance"};
  const Words decay = {"--weighting", "decay", "--causal"};
  return {
      {"metric", {{}, {"--metric", "random"}}},
      {"form", {{}, {"--form", "distance"}}},
      {"normalize", {change, {"--normalize", "mean"}}},
      {"reduce", {change, {"--reduce", "median"}}},
      {"scope", {change, {"--scope", "prefix"}}},
      {"allow-leak", {change + Words{"--scope", "sequence", "--causal"}, {"--allow-leak"}}},
      {"ridge", {covariance, {"--ridge", "0.1"}}},
      {"prior", {covariance, {"--prior", "5"}}},
      {"period", {covariance + Words{"--causal"}, {"--period", "3"}}},
      {"floor", {{"--metric", "random"}, {"--floor", "0.7"}}},
      {"layer", {{"--metric", "random"}, {"--layer", "3"}}},
      {"given", {{"--metric", "given"}, {"--given", "full"}}},
      {"metric-grad", {change, {"--metric-grad", "through"}}},
      {"weighting", {{}, {"--weighting", "identity"}}},
      {"feature", {{"--weighting", "linear"}, {"--feature", "exp"}}},
      {"rate", {decay, {"--rate", "0.5"}}},
      {"content", {decay, {"--content"}}},
      {"rescale", {{"--weighting", "relu2"}, {"--rescale", "l2"}}},
      {"scale", {{}, {"--scale", "0.3"}}},
      {"causal", {{}, {"--causal"}}},
      {"backend", {{}, {"--backend", "ref"}}},
      {"dtype", {{}, {"--dtype", "f64"}}},
  };
}

constexpr const char* working[] = {"info", "attend", "check", "bench", "theory", "data", "corrupt"};

/// Flags of every verb that works.
Changes common_changes() {
  return {
      {"json", {{}, {"--json"}}},
      {"quiet", {{}, {"--quiet"}}},
      {"device", {{}, {"--device", "cuda"}}},
      {"threads", {{"--json"}, {"--threads", "3"}}},
      {"help", {{}, {"--help"}}},
  };
}

Changes shape_changes() {
  return {
      {"shape", {{"--json"}, {"--shape", "1,2,11,4"}}},
      {"kv-heads", {{"--json"}, {"--kv-heads", "1"}}},
      {"keys", {{"--json"}, {"--keys", "7"}}},
      {"values", {{"--json"}, {"--values", "3"}}},
  };
}

Changes data_changes() {
  const std::string made = folder().file("made-images");
  EXPECT_EQ(run_foci({"data", "make", "images", "--out", made, "--count", "10"}).status, 0);
  const Words show = {"show", made, "--json"};
  const Words make = {"make", "images", "--out", folder().file("more-images"), "--json"};
  return {
      {"out", {make, {"--out", folder().file("other-images")}}},
      {"split", {show, {"--split", "test"}}},
      {"count", {make, {"--count", "7"}}},
      {"sheet", {show, {"--sheet", folder().file("no/sheet.png")}}},
      {"check", {show, {"--check"}}},
      {"seed", {make, {"--seed", "3"}}},
  };
}

/// After `corrupt SET --sheet FILE --corrupt noise`, the set as data_changes() makes it.
Changes corrupt_changes() {
  const std::string ice = folder().file("ice");
  fs::create_directories(ice);
  foci::data::write_png(ice + "/1.png", foci::data::Image(200, 200, 3));
  return {
      {"out", {{}, {"--out", folder().file("harmed"), "--count", "1", "--severity", "2"}}},
      {"sheet", {{}, {"--sheet", folder().file("no/sheet.png")}}},
      {"split", {{"--json"}, {"--split", "train"}}},
      {"count", {{"--json"}, {"--count", "1"}}},
      {"side", {{"--json"}, {"--side", "20"}}},
      {"image", {{"--json"}, {"--image", "1"}}},
      {"corrupt", {{}, {"--corrupt", "blur"}}},
      {"severity", {{"--json"}, {"--severity", "2,3"}}},
      {"scale", {{"--json"}, {"--scale", "224"}}},
      {"frost", {{"--corrupt", "frost"}, {"--frost", ice}}},
      {"seed", {{"--json"}, {"--seed", "4"}}},
  };
}

Changes theory_changes() {
  const std::string some = folder().file("some.txt"), others = folder().file("others.txt");
  write(some, "1");
  write(others, "2");
  const Words linear = {"--json", "--weighting", "linear",       "--query", some,
                        "--mean", some,          "--covariance", some};
  const Words full = {"--json", "--metric", "key-covariance"};
  const Words fast = {"--json", "--experiment", "covariance", "--runs", "3"};
  const auto of = [](const char* name) {
    return Words{"--json", "--experiment", name, "--runs", "2", "--dim", "3", "--keys", "8"};
  };
  return {
      {"weighting", {{"--json"}, {"--weighting", "relu2"}}},
      {"metric", {{"--json"}, {"--metric", "key-covariance"}}},
      {"simulate", {{"--json"}, {"--simulate", "9"}}},
      {"curve", {{"--json"}, {"--curve", folder().file("curve.svg")}}},
      {"beta", {{"--json", "--weighting", "relu2"}, {"--beta", "1"}}},
      {"gamma", {{"--json"}, {"--gamma", "2"}}},
      {"query", {linear, {"--query", others, "--mean", others}}},
      {"mean", {linear, {"--mean", others}}},
      {"covariance", {linear, {"--covariance", others}}},
      {"rate", {{"--json", "--weighting", "decay", "--keys", "9"}, {"--rate", "0.5"}}},
      {"keys", {{"--json"}, {"--keys", "9"}}},
      {"dim", {full, {"--dim", "4"}}},
      {"distance2", {full, {"--distance2", "4"}}},
      {"temperature", {full, {"--temperature", "auto"}}},
      {"experiment", {{"--json"}, {"--experiment", "covariance", "--runs", "2"}}},
      {"runs", {fast, {"--runs", "2"}}},
      {"noise", {of("recovery"), {"--noise", "0.7"}}},
      {"layers", {of("collapse"), {"--layers", "2"}}},
      {"svg", {{"--experiment", "weights"}, {"--svg", folder().file("weights.svg")}}},
      {"markdown", {{"--experiment", "weights"}, {"--markdown"}}},
      {"seed", {fast, {"--seed", "4"}}},
      {"threads", {fast, {"--threads", "3"}}},
      {"quiet", {{"--experiment", "weights"}, {"--quiet"}}},
  };
}

Changes each_with(const std::string& flag, Changes changes) {
  for (auto& [name, change] : changes) change.before = change.before + Words{flag};
  return changes;
}

void add(Changes& to, const Changes& more) { to.insert(more.begin(), more.end()); }

std::string full_input() {
  Tensors tensors = plain_tensors();
  tensors["metric"] = foci::Tensor(foci::DType::f32, {1, 1, 1, 4});
  for (int d = 0; d < 4; ++d) tensors["metric"].data<float>()[d] = 0.25f * float(d + 1);
  return save("flags-in.safetensors", tensors,
              {{"options", R"({"metric":"layer-change","causal":true})"}});
}

/// For each verb: the words every run of it starts with, and its flags.
struct Verb {
  Words base;
  Changes changes;
};

std::map<std::string, Verb> verbs() {
  Tensors fewer = plain_tensors();
  fewer.erase("do");
  const std::string in = full_input(), other = save("flags-other.safetensors", fewer);
  const std::string trace = folder().file("trace.safetensors");
  std::map<std::string, Verb> all;
  all["info"] = {{"info"}, {{"markdown", {{}, {"--markdown"}}}}};
  all["attend"] = {{"attend", "--in", in, "--out", trace},
                   {{"in", {{}, {"--in", other}}},
                    {"out", {{}, {"--out", folder().file("elsewhere.safetensors")}}},
                    {"flags-from-metadata", {{}, {"--flags-from-metadata"}}},
                    {"seed", {{"--metric", "random"}, {"--seed", "4"}}}}};
  add(all["attend"].changes, mechanism_changes());
  all["attend"].changes = each_with("--quiet", all["attend"].changes);
  all["check"] = {{"check"},
                  {{"in", {{"--json"}, {"--in", in}}},
                   {"flags-from-metadata", {{"--json", "--in", in}, {"--flags-from-metadata"}}},
                   {"seed", {{"--json"}, {"--seed", "4"}}}}};
  all["bench"] = {{"bench", "--shape", "1,2,9,4", "--turns", "1", "--peers", "naive"},
                  {{"pass", {{"--json"}, {"--pass", "both"}}},
                   {"stats", {{"--json"}, {"--stats"}}},
                   {"key-bias", {{"--json"}, {"--key-bias"}}},
                   {"turns", {{"--json"}, {"--turns", "2"}}},
                   {"versus", {{"--json"}, {"--versus", "metric=layer-change"}}},
                   {"peers", {{}, {"--peers", "none"}}},
                   {"all", {{}, {"--all"}}},  // refused beside --turns; the table: Json.BenchAll
                   {"seed", {{"--json"}, {"--seed", "4"}}}}};
  all["bench"].changes["metric-grad"] = {
      {"--json", "--metric", "key-covariance", "--pass", "backward"},
      {"--metric-grad", "detached"}};
  for (const char* verb : {"check", "bench"}) {
    add(all[verb].changes, each_with("--json", mechanism_changes()));
    add(all[verb].changes, shape_changes());
  }
  all["data"] = {{"data"}, data_changes()};
  all["corrupt"] = {{"corrupt", folder().file("made-images"), "--sheet", folder().file("sheet.png"),
                     "--corrupt", "noise"},
                    corrupt_changes()};
  all["theory"] = {{"theory"}, theory_changes()};
  for (const char* verb : working) add(all[verb].changes, common_changes());
  const std::string checkpoint = FOCI_SOURCE_DIR "/tests/data/golden/training.pth";
  all["convert"] = {{"convert", checkpoint, trace},
                    {{"take", {{}, {"--take", "optimizer"}}},
                     {"drop", {{}, {"--drop", "1."}}},
                     {"map", {{}, {"--map", "hf-vit"}}},
                     {"keep-names", {{}, {"--keep-names"}}},
                     {"json", {{}, {"--json"}}},
                     {"quiet", {{}, {"--quiet"}}},
                     {"help", {{}, {"--help"}}}}};
  all["completion"] = {{"completion", "bash"}, {{"help", {{}, {"--help"}}}}};
  all["help"] = {{"help", "attend"}, {{"help", {{}, {"--help"}}}}};
  all["manual"] = {{"manual"}, {{"help", {{}, {"--help"}}}}};
  return all;
}

class Flags : public testing::TestWithParam<std::string> {};

TEST_P(Flags, EachChangesSomething) {
  const Verb verb = verbs().at(GetParam());
  const auto* page = foci::cli::find_verb(GetParam());
  ASSERT_NE(page, nullptr);
  for (const foci::cli::Flag& flag : page->flags) {
    const std::string name(flag.name);
    // The seed of info seeds nothing: it is there because every verb takes it.
    if (GetParam() == "info" && name == "seed") continue;
    ASSERT_TRUE(verb.changes.contains(name)) << "no change is listed for --" << name;
    const Change& change = verb.changes.at(name);
    const Words before = verb.base + change.before;
    EXPECT_TRUE(trace_of(before) != trace_of(before + change.flag))
        << "--" << name << " changed nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Verbs, Flags,
                         testing::Values("info", "attend", "check", "bench", "theory", "data",
                                         "convert", "corrupt", "completion", "help", "manual"));

TEST(Flags, WithoutAChangeNothingChanges) {
  for (const auto& [name, verb] : verbs()) {
    EXPECT_EQ(trace_of(verb.base), trace_of(verb.base)) << name;
    const Words json = verb.base + Words{"--json"};
    EXPECT_EQ(trace_of(json), trace_of(json)) << name;
  }
}

TEST(Flags, EveryVerbTakesTheCommonOnes) {
  for (const char* name : working) {
    std::set<std::string> flags;
    for (const foci::cli::Flag& flag : foci::cli::find_verb(name)->flags) flags.emplace(flag.name);
    for (const char* flag : {"json", "quiet", "seed", "threads", "device"}) {
      EXPECT_TRUE(flags.contains(flag)) << name << " --" << flag;
    }
  }
}

}  // namespace
