// SPDX-License-Identifier: Apache-2.0
// foci generate: a language model from a run or from others' files, with its tokenizer, and the
// text as it comes.
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/run.hpp"
#include "cli/torch/tasks.hpp"

#include <foci/error.hpp>
#include <foci/language.hpp>

#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <initializer_list>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// A model with the words it speaks.
struct Speaker {
  models::Language model = nullptr;
  std::int64_t pieces = 0;
  std::function<data::Tokens(const std::string&)> encode;
  std::function<std::string(const data::Tokens&)> decode;
  std::function<bool(std::int32_t)> ends;
};

/// The first of `names` that is in the folder; empty where none is.
std::string first_in(const fs::path& folder, std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (fs::exists(folder / name)) return (folder / name).string();
  }
  return {};
}

Speaker open_llama2c(const Generate& verb) {
  const data::Llama2c file = data::read_llama2c(verb.model);
  const fs::path folder = fs::path(verb.model).parent_path();
  const std::string own = fmt::format("tok{}.bin", file.vocabulary);
  const std::string path =
      verb.tokenizer.empty() ? first_in(folder, {"tokenizer.bin", own}) : verb.tokenizer;
  if (path.empty()) {
    throw FileError(fmt::format("{}: neither tokenizer.bin nor {} is beside it: --tokenizer FILE",
                                verb.model, own));
  }
  const data::ScoredPieces pieces(path);
  Speaker speaker;
  speaker.model = models::language_of(file);
  speaker.pieces = pieces.size();
  speaker.encode = [=](const std::string& text) { return pieces.encode(text); };
  speaker.decode = [=](const data::Tokens& tokens) { return pieces.decode(tokens); };
  speaker.ends = [](std::int32_t token) {
    return token == data::ScoredPieces::begin || token == data::ScoredPieces::end;
  };
  return speaker;
}

Speaker open_gpt2(const Generate& verb) {
  const fs::path folder = verb.tokenizer.empty() ? verb.model : verb.tokenizer;
  const std::string encoder = first_in(folder, {"encoder.json", "vocab.json"});
  const std::string merges = first_in(folder, {"vocab.bpe", "merges.txt"});
  if (encoder.empty() || merges.empty()) {
    throw FileError(fmt::format(
        "{}: holds no encoder.json and vocab.bpe (nor vocab.json and merges.txt): --tokenizer "
        "FOLDER",
        folder.string()));
  }
  const data::BytePairs pairs(encoder, merges);
  std::int32_t end = std::int32_t(pairs.size()) - 1;  // <|endoftext|>, where there is one
  while (end >= 0 && pairs.decode(data::Tokens{end}) != "<|endoftext|>") --end;
  Speaker speaker;
  speaker.model = models::read_gpt2(verb.model);
  speaker.pieces = pairs.size();
  speaker.encode = [=](const std::string& text) {
    data::Tokens tokens = pairs.encode(text);
    if (tokens.empty()) tokens.push_back(std::max(end, 0));  // a text begins where one ended
    return tokens;
  };
  speaker.decode = [=](const data::Tokens& tokens) {
    const bool from_end = !tokens.empty() && tokens[0] == end;
    return pairs.decode(std::span(tokens).subspan(from_end ? 1 : 0));
  };
  speaker.ends = [=](std::int32_t token) { return token == end; };
  return speaker;
}

/// A run of `foci train text`, with its own mechanism and tokenizer.
Speaker open_run(const Generate& verb) {
  const RunConfig config = read_config(verb.model);
  if (config.task != "text") {
    throw FileError(fmt::format("{}: is a run of {}; generate needs one of text", shown(verb.model),
                                config.task));
  }
  if (!verb.tokenizer.empty()) throw Misuse("a run has its own tokenizer; leave --tokenizer out");
  const train::Tokenizer tokenizer = tokenizer_of(verb.model, config);
  Speaker speaker;
  speaker.model = train::open_language(text_training(config.words, verb.common).model,
                                       tokenizer.size(), weights_of(verb.model, false));
  speaker.pieces = tokenizer.size();
  speaker.encode = [=](const std::string& text) {
    data::Tokens tokens = tokenizer.encode(text.empty() ? "\n" : text);
    const bool ends = text.empty() || text.back() == '\n';
    if (tokenizer.kind() == "words" && !ends) tokens.pop_back();  // <eos>: the line goes on
    return tokens;
  };
  speaker.decode = [=](const data::Tokens& tokens) { return tokenizer.decode(tokens); };
  speaker.ends = [](std::int32_t) { return false; };
  return speaker;
}

Speaker open(const Generate& verb) {
  if (!fs::exists(verb.model)) throw FileError(verb.model + ": no such file or folder");
  if (fs::is_directory(fs::path(verb.model) / "checkpoints")) return open_run(verb);
  const bool gpt2 = fs::is_directory(verb.model) || verb.model.ends_with(".safetensors");
  Speaker speaker = gpt2 ? open_gpt2(verb) : open_llama2c(verb);
  const std::int64_t vocabulary = speaker.model->options().vocabulary;
  if (speaker.pieces > vocabulary) {
    throw FileError(fmt::format("{}: a vocabulary of {}, and the tokenizer has {}", verb.model,
                                vocabulary, speaker.pieces));
  }
  return speaker;
}

}  // namespace

int run_torch(const Generate& verb) {
  if (verb.common.threads > 0) at::set_num_threads(verb.common.threads);
  if (verb.cuda && !torch::cuda::is_available())
    throw Unsupported("torch finds no CUDA device here; the nearest is --device cpu");
  Speaker speaker = open(verb);
  if (verb.cuda) speaker.model->to(at::kCUDA);
  data::Tokens tokens = speaker.encode(verb.prompt);
  const data::Tokens prompt = tokens;
  std::size_t shown = 0;
  const auto show = [&] {
    if (verb.common.json) return;
    const std::string text = speaker.decode(tokens);
    std::fwrite(text.data() + shown, 1, text.size() - shown, stdout);
    std::fflush(stdout);
    shown = text.size();
  };
  show();
  const auto begin = std::chrono::steady_clock::now();
  const models::Sampling how{.tokens = verb.tokens,
                             .temperature = verb.temperature,
                             .top_p = verb.top_p,
                             .seed = verb.common.seed};
  const std::int64_t made = models::generate(speaker.model, prompt, how, [&](std::int32_t token) {
    if (speaker.ends(token)) return false;
    if (token >= speaker.pieces) return true;  // an embedding that no text has
    tokens.push_back(token);
    show();
    return true;
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (verb.common.json) {
    print_json({{"text", speaker.decode(tokens)},
                {"prompt_tokens", prompt.size()},
                {"tokens", made},
                {"seconds", seconds},
                {"tokens_per_second", double(made) / seconds},
                {"seed", verb.common.seed}});
    return 0;
  }
  fmt::print("\n");
  if (!verb.common.quiet)
    fmt::print(stderr, "{} tokens, {:.1f} a second\n", made, double(made) / seconds);
  return 0;
}

}  // namespace foci::cli
