// SPDX-License-Identifier: Apache-2.0
// What every fuzzer of a reader asks for: a refusal is a FileError of one line that begins with the
// file's name, and whatever was read can be touched. Readers that share a fuzzer are counted one by
// one.
#pragma once

#include <foci/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Reads every byte, so that the sanitizer sees one that is not there.
inline void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += unsigned(byte);
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

inline void require_line(const char* message) {
  require(*message != '\0' && !std::strchr(message, '\n'), "a message is one line");
}

template <class Read>
void refusals_are_told(Read&& read, const std::string& name = "fuzz") {
  try {
    read();
  } catch (const foci::FileError& error) {
    require(std::string_view(error.what()).starts_with(name + ": "), "a message names the file");
    require_line(error.what());
  }
}

/// The readers of one fuzzer: an input's first byte picks one, unless FOCI_FUZZ_READER in the
/// environment has the number of the one that gets them all. The end of the fuzzer tells how many
/// inputs each was given; bench/fuzz.py adds them up.
class Readers {
 public:
  explicit Readers(std::vector<const char*> names) : names_(std::move(names)) {
    runs_.resize(names_.size());
  }
  ~Readers() {
    for (std::size_t i = 0; i < names_.size(); ++i)
      std::fprintf(stderr, "reader %s: %llu\n", names_[i], runs_[i]);
  }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  std::size_t picked_by(std::uint8_t byte) {
    const std::size_t which = (forced_ ? std::size_t(std::atoi(forced_)) : byte) % names_.size();
    ++runs_[which];
    return which;
  }

 private:
  std::vector<const char*> names_;
  std::vector<unsigned long long> runs_;
  const char* forced_ = std::getenv("FOCI_FUZZ_READER");
};
