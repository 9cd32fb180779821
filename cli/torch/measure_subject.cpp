// SPDX-License-Identifier: Apache-2.0
// From words to models and what goes through them.
#include "cli/torch/measure_subject.hpp"

#include "cli/metadata.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/speaker.hpp"
#include "cli/torch/tasks.hpp"

#include <foci/error.hpp>
#include <foci/run.hpp>
#include <foci/safetensors.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// GPT-2's folder has a config.json as well, and weights beside it.
bool is_folder_of_run(const std::string& path) {
  return fs::is_directory(fs::path(path) / "checkpoints") ||
         (has_config(path) && !fs::exists(fs::path(path) / "model.safetensors"));
}

/// Flags that are not for this kind of subject.
void refuse(const Measure& verb, std::initializer_list<const char*> flags, const char* kind) {
  for (const char* flag : flags) {
    if (verb.words.count(flag) == 0) continue;
    throw Misuse(fmt::format("--{} does not go with {}", flag, kind), "see foci help measure");
  }
}

bool has_mechanism(const Words& words) {
  return std::any_of(words.begin(), words.end(), [](const auto& word) {
    return word.first == "metric" || word.first == "weighting" || is_of_mechanism(word.first);
  });
}

/// Whole checkpoints of a run, oldest first.
std::vector<std::string> checkpoints_of(const std::string& run) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const auto& entry : fs::directory_iterator(fs::path(run) / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-") || !fs::exists(entry.path() / "training.safetensors")) continue;
    found.emplace_back(to_count(name.substr(5)), entry.path().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (const auto& [step, path] : found) paths.push_back(path);
  return paths;
}

Measured open_run(const Measure& verb, const std::string& run, const std::string& weights) {
  const RunConfig config = read_config(run);
  const TaskKind& task = task_of(config.task);
  Asked asked{run, config.words, verb.common};
  for (const char* flag : {"data", "split"}) {
    if (verb.words.count(flag) > 0) asked.words[flag] = verb.words.at(flag);
  }
  Measured of{.name = run, .run = run, .weights = weights, .words = asked.words, .passes = {}};
  of.unit = config.task == "text" ? "windows" : std::string(task.samples);
  of.passes = task.passes(asked, config.data, weights);
  return of;
}

std::vector<Measured> open_runs(const Measure& verb) {
  if (has_mechanism(verb.words))
    throw Misuse("a run has its own mechanism; the flags of one go with a file");
  refuse(verb, {"text", "tokenizer"}, "a run");
  const bool ema = verb.words.count("ema") > 0;
  std::vector<std::string> runs = {verb.subject};
  if (verb.words.count("beside") > 0) {
    for (const std::string& run : split(verb.words.at("beside"), ',')) runs.push_back(run);
  }
  std::vector<Measured> all;
  for (const std::string& run : runs) {
    read_config(run);  // says so where it is no run
    if (verb.words.count("checkpoints") == 0) {
      all.push_back(open_run(verb, run, weights_of(run, ema)));
      continue;
    }
    weights_of(run, ema);  // says so where there is none
    for (const std::string& path : checkpoints_of(run)) {
      all.push_back(open_run(verb, run, path + (ema ? "/ema" : "/model") + ".safetensors"));
      all.back().name += " " + fs::path(path).filename().string();
    }
  }
  return all;
}

at::Tensor tensor_of(const View& view) {
  static const std::map<DType, at::ScalarType> types = {
      {DType::f64, at::kDouble}, {DType::f32, at::kFloat},   {DType::bf16, at::kBFloat16},
      {DType::f16, at::kHalf},   {DType::i64, at::kLong},    {DType::i32, at::kInt},
      {DType::u8, at::kByte},    {DType::boolean, at::kBool}};
  return at::from_blob(const_cast<void*>(view.data),
                       at::IntArrayRef(view.shape.data(), std::size_t(view.rank)),
                       at::TensorOptions().dtype(types.at(view.dtype)))
      .clone();
}

/// The tensors of one call, as `foci attend` reads them; all its samples at once.
Measured open_tensors(const Measure& verb, const Safetensors& file) {
  refuse(verb, {"text", "tokenizer", "data", "split", "ema", "beside", "checkpoints"},
         "the tensors of a call");
  const Options how = options_of(verb.words);
  const DType type = dtype_of_q(file) == DType::f64 ? DType::f64 : DType::f32;
  const Problem problem = read_problem(file, verb.subject, how, type);
  const at::Device device = verb.common.cuda ? at::kCUDA : at::kCPU;
  const auto part = [&](const char* name) {
    const View view = problem.view(name);
    return view ? tensor_of(view).to(device) : at::Tensor();
  };
  const at::Tensor q = part("q"), k = part("k"), v = part("v");
  const nn::Extras extras{.v_prev = part("v_prev"),
                          .key_mask = part("key_mask"),
                          .key_bias = part("key_bias"),
                          .metric = part("metric"),
                          .q_offsets = part("q_offsets"),
                          .k_offsets = part("k_offsets")};
  Measured of{.name = verb.subject, .run = {}, .weights = {}, .passes = {}};
  of.passes.samples = q.size(0);
  of.passes.run = [=](std::span<const std::int64_t> which) {
    const at::Tensor rows = at::tensor(at::IntArrayRef(which.data(), which.size())).to(device);
    const auto some = [&](const at::Tensor& x) {
      return x.defined() && x.size(0) == q.size(0) ? x.index_select(0, rows) : x;
    };
    nn::Extras own = extras;
    own.v_prev = some(extras.v_prev);
    own.key_mask = some(extras.key_mask);
    own.key_bias = some(extras.key_bias);
    own.metric = some(extras.metric);
    nn::attend(some(q), some(k), some(v), own, how);
  };
  return of;
}

std::string text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) throw FileError(fmt::format("{}: is not there, or empty", shown(path)));
  return text;
}

/// What the flags say of the mechanism, in the library's names.
Settings mechanism_in(const Measure& verb) {
  Settings settings;
  for (const auto& [flag, text] : verb.words) {
    if (flag != "metric" && flag != "weighting" && !is_of_mechanism(flag)) continue;
    std::string name = flag;
    std::replace(name.begin(), name.end(), '-', '_');
    settings[name] = text;
  }
  if (settings.count("metric") > 0 && settings.at("metric") == "random")
    settings["seed"] = std::to_string(verb.common.seed);
  return settings;
}

/// llama2.c's or GPT-2's weights, under any mechanism, over a text.
Measured open_model(const Measure& verb) {
  refuse(verb, {"data", "split", "ema", "beside", "checkpoints"}, "a model's file");
  if (verb.words.count("text") == 0)
    throw Misuse("a language model needs --text FILE to go over", "see foci help measure");
  const auto tokenizer = verb.words.find("tokenizer");
  const Speaker speaker = open_speaker(
      {verb.subject, tokenizer == verb.words.end() ? "" : tokenizer->second, {mechanism_in(verb)}},
      verb.common);
  const auto model = std::make_shared<models::Language>(speaker.model);
  if (verb.common.cuda) (*model)->to(at::kCUDA);
  const auto tokens =
      std::make_shared<const data::Tokens>(speaker.encode(text_in(verb.words.at("text"))));
  Measured of{.name = verb.subject, .run = {}, .unit = "windows", .weights = {}, .passes = {}};
  of.passes = train::passes_of(model, *tokens);
  of.passes.run = [tokens, run = of.passes.run](std::span<const std::int64_t> which) {
    run(which);
  };
  const auto window = std::min((*model)->options().context, std::int64_t(tokens->size()));
  of.tokens = [tokens, window, decode = speaker.decode](std::int64_t sample) {
    std::vector<std::string> names;
    for (std::int64_t i = sample * window; i < (sample + 1) * window; ++i)
      names.push_back(decode({(*tokens)[std::size_t(i)]}));
    return names;
  };
  return of;
}

}  // namespace

std::vector<Measured> open_measured(const Measure& verb) {
  train::use_threads(verb.common.threads);
  const std::string& path = verb.subject;
  if (!fs::exists(path)) throw FileError(fmt::format("{}: no such file or folder", shown(path)));
  if (fs::is_directory(path) && is_folder_of_run(path)) return open_runs(verb);
  std::vector<Measured> all;
  if (path.ends_with(".safetensors")) {
    const Safetensors file(path);
    if (file.contains("q") && file.contains("k")) all.push_back(open_tensors(verb, file));
  }
  if (all.empty()) all.push_back(open_model(verb));
  return all;
}

}  // namespace foci::cli
