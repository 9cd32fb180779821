// SPDX-License-Identifier: Apache-2.0
// A language model from a run or from others' files, with its tokenizer.
#include "cli/torch/speaker.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/tasks.hpp"
#include "cli/torch/text_weights.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// llama2.c's file, or what was converted from it.
Speaker open_llama2c(const Spoken& what) {
  Speaker speaker;
  speaker.model = what.model.ends_with(".safetensors")
                      ? models::read_language(what.model, what.mechanism)
                      : models::language_of(data::read_llama2c(what.model), what.mechanism);
  const std::string folder = fs::path(what.model).parent_path().string();
  const std::string own = fmt::format("tok{}.bin", speaker.model->options().vocabulary);
  const std::string path =
      what.tokenizer.empty() ? first_in(folder, {"tokenizer.bin", own}) : what.tokenizer;
  if (path.empty()) {
    throw FileError(fmt::format("{}: neither tokenizer.bin nor {} is beside it: --tokenizer FILE",
                                what.model, own));
  }
  const data::ScoredPieces pieces(path);
  speaker.pieces = pieces.size();
  speaker.encode = [=](const std::string& text) { return pieces.encode(text); };
  speaker.decode = [=](const data::Tokens& tokens) { return pieces.decode(tokens); };
  speaker.ends = [](std::int32_t token) {
    return token == data::ScoredPieces::begin || token == data::ScoredPieces::end;
  };
  return speaker;
}

Speaker open_gpt2(const Spoken& what) {
  const std::string folder = what.tokenizer.empty() ? what.model : what.tokenizer;
  const std::string encoder = first_in(folder, {"encoder.json", "vocab.json"});
  const std::string merges = first_in(folder, {"vocab.bpe", "merges.txt"});
  if (encoder.empty() || merges.empty()) {
    throw FileError(fmt::format(
        "{}: holds no encoder.json and vocab.bpe (nor vocab.json and merges.txt): --tokenizer "
        "FOLDER",
        folder));
  }
  const data::BytePairs pairs(encoder, merges);
  std::int32_t end = std::int32_t(pairs.size()) - 1;  // <|endoftext|>, where there is one
  while (end >= 0 && pairs.decode(data::Tokens{end}) != "<|endoftext|>") --end;
  Speaker speaker;
  speaker.model = models::read_gpt2(what.model, what.mechanism);
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
Speaker open_run(const Spoken& what, const Common& common) {
  const RunConfig config = read_config(what.model);
  if (config.task != "text") {
    throw FileError(fmt::format("{}: is a run of {}; generate needs one of text", shown(what.model),
                                config.task));
  }
  if (!what.tokenizer.empty()) throw Misuse("a run has its own tokenizer; leave --tokenizer out");
  const train::Tokenizer tokenizer = tokenizer_of(what.model, config);
  Speaker speaker;
  speaker.model = train::open_language(text_training(config.words, common).model, tokenizer.size(),
                                       weights_of(what.model, false));
  speaker.pieces = tokenizer.size();
  speaker.encode = [=](const std::string& text) {
    if (tokenizer.kind() == "pieces") return tokenizer.encode(text);  // <s> begins it
    data::Tokens tokens = tokenizer.encode(text.empty() ? "\n" : text);
    const bool ends = text.empty() || text.back() == '\n';
    if (tokenizer.kind() == "words" && !ends) tokens.pop_back();  // <eos>: the line goes on
    return tokens;
  };
  speaker.decode = [=](const data::Tokens& tokens) { return tokenizer.decode(tokens); };
  speaker.ends = [=](std::int32_t token) {
    return tokenizer.kind() == "pieces" &&
           (token == data::ScoredPieces::begin || token == data::ScoredPieces::end);
  };
  return speaker;
}

bool is_gpt2(const std::string& path) {
  if (fs::is_directory(path)) return true;
  return path.ends_with(".safetensors") && !Safetensors(path).contains("embed.weight");
}

}  // namespace

Speaker open_speaker(const Spoken& what, const Common& common) {
  if (!fs::exists(what.model)) throw FileError(what.model + ": no such file or folder");
  if (fs::is_directory(fs::path(what.model) / "checkpoints")) return open_run(what, common);
  Speaker speaker = is_gpt2(what.model) ? open_gpt2(what) : open_llama2c(what);
  const std::int64_t vocabulary = speaker.model->options().vocabulary;
  if (speaker.pieces > vocabulary) {
    throw FileError(fmt::format("{}: a vocabulary of {}, and the tokenizer has {}", what.model,
                                vocabulary, speaker.pieces));
  }
  return speaker;
}

}  // namespace foci::cli
