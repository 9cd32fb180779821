// SPDX-License-Identifier: Apache-2.0
// The ways from text to tokens, and the files that keep them with a run. No torch.
#include <foci/train_text.hpp>

#include <foci/error.hpp>
#include <foci/llama2c.hpp>

#include <fmt/core.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

namespace foci::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* word_file = "vocabulary.txt";
constexpr const char* piece_file = "tokenizer.bin";

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes << std::flush;
  if (!file) throw FileError(fmt::format("{}: cannot be written", path.string()));
}

std::string first_in(const fs::path& folder, const char* name, const char* other) {
  for (const char* here : {name, other}) {
    if (fs::is_regular_file(folder / here)) return (folder / here).string();
  }
  throw FileError(
      fmt::format("{}: has neither {} nor {} of byte pairs", folder.string(), name, other));
}

/// Beyond the last end of a line before `at`; `at` itself where there is none.
std::size_t line_before(std::string_view text, std::size_t at) {
  const std::size_t end = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  return end == std::string_view::npos ? at : end + 1;
}

}  // namespace

struct Tokenizer::Contents {
  /// As they are: of byte pairs two, of pieces the first.
  struct Files {
    std::string encoder, merges;
    bool operator==(const Files&) const = default;
  };

  std::optional<data::WordVocabulary> words;
  std::optional<data::BytePairs> pairs;
  std::optional<data::ScoredPieces> pieces;
  Files files;
};

Tokenizer::Tokenizer() : contents_(std::make_shared<Contents>()) {}

Tokenizer::Tokenizer(const data::WordVocabulary& words)
    : contents_(std::make_shared<Contents>(Contents{words, {}, {}, {}})) {}

Tokenizer Tokenizer::pairs(const std::string& folder) {
  const std::string encoder = first_in(folder, "encoder.json", "vocab.json");
  const std::string merges = first_in(folder, "vocab.bpe", "merges.txt");
  Tokenizer made;
  made.contents_ =
      std::make_shared<Contents>(Contents{{},
                                          data::BytePairs(encoder, merges),
                                          {},
                                          {data::read_text(encoder), data::read_text(merges)}});
  return made;
}

Tokenizer Tokenizer::pieces(const std::string& path) {
  const std::string bytes = data::read_text(path);
  Tokenizer made;
  made.contents_ = std::make_shared<Contents>(
      Contents{{}, {}, data::ScoredPieces(std::as_bytes(std::span(bytes)), path), {bytes, {}}});
  return made;
}

std::string_view Tokenizer::kind() const {
  if (contents_->words) return "words";
  if (contents_->pieces) return "pieces";
  return contents_->pairs ? "pairs" : "bytes";
}

std::int64_t Tokenizer::size() const {
  if (contents_->words) return contents_->words->size();
  if (contents_->pieces) return contents_->pieces->size();
  return contents_->pairs ? contents_->pairs->size() : 256;
}

data::Tokens Tokenizer::encode(std::string_view text) const {
  if (contents_->words) return contents_->words->encode(text);
  if (contents_->pieces) return contents_->pieces->encode(text);
  return contents_->pairs ? contents_->pairs->encode(text) : data::byte_tokens(text);
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  if (contents_->words) return contents_->words->decode(tokens);
  if (contents_->pieces) return contents_->pieces->decode(tokens);
  if (contents_->pairs) return contents_->pairs->decode(tokens);
  return std::string(tokens.begin(), tokens.end());
}

void Tokenizer::save(const std::string& folder) const {
  if (contents_->words) {
    std::string lines;
    for (const std::string& word : contents_->words->words()) lines += word + "\n";
    write(fs::path(folder) / word_file, lines);
  }
  if (contents_->pieces) write(fs::path(folder) / piece_file, contents_->files.encoder);
  if (contents_->pairs) {
    write(fs::path(folder) / "encoder.json", contents_->files.encoder);
    write(fs::path(folder) / "vocab.bpe", contents_->files.merges);
  }
}

Tokenizer Tokenizer::load(std::string_view kind, const std::string& folder) {
  if (kind == "pairs") return pairs(folder);
  if (kind == "pieces") return pieces((fs::path(folder) / piece_file).string());
  if (kind == "bytes") return Tokenizer();
  const std::string path = (fs::path(folder) / word_file).string();
  std::istringstream lines(data::read_text(path));
  std::vector<std::string> words;
  for (std::string line; std::getline(lines, line);) words.push_back(line);
  try {
    return Tokenizer(data::WordVocabulary(std::move(words)));
  } catch (const InvalidArgument& fault) {
    throw FileError(fmt::format("{}: {}", path, fault.what()));
  }
}

bool Tokenizer::operator==(const Tokenizer& other) const {
  const Contents &a = *contents_, &b = *other.contents_;
  if (kind() != other.kind()) return false;
  return a.words ? a.words->words() == b.words->words() : a.files == b.files;
}

std::string read_split(const std::string& path, data::Split split) {
  if (!fs::is_regular_file(path)) return data::read_text(data::find_text(path, split));
  const std::string all = data::read_text(path);
  const std::size_t valid = line_before(all, all.size() * 18 / 20);
  const std::size_t test = std::max(valid, line_before(all, all.size() * 19 / 20));
  if (split == data::Split::train) return all.substr(0, valid);
  return split == data::Split::valid ? all.substr(valid, test - valid) : all.substr(test);
}

TokenText::TokenText(const Tokenizer& tokenizer, std::string_view text, std::string name)
    : name(std::move(name)), tokens(tokenizer.encode(text)), bytes(std::int64_t(text.size())) {
  if (tokens.size() < 2) {
    throw FileError(
        fmt::format("{}: has {} tokens; a text to learn from or to be judged by needs "
                    "at least 2",
                    this->name, tokens.size()));
  }
}

}  // namespace foci::train
