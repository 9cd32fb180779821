// SPDX-License-Identifier: Apache-2.0
// What every fuzzer of a reader asks for: a refusal is a FileError of one line that begins with the
// file's name, and whatever was read can be touched.
#pragma once

#include <foci/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

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

template <class Read>
void refusals_are_told(Read&& read) {
  try {
    read();
  } catch (const foci::FileError& error) {
    require(std::strncmp(error.what(), "fuzz: ", 6) == 0, "a message names the file");
    require(!std::strchr(error.what(), '\n'), "a message is one line");
  }
}
