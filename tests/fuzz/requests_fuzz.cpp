// SPDX-License-Identifier: Apache-2.0
// Throws arbitrary bytes at what reads HTTP, and what it makes of them at what answers: whole or in
// two pieces they must mean the same, and every request must get an answer with a known status. The
// folder that is served is empty.
#include "cli/site.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

using foci::cli::RequestReader;

namespace {

bool is_same(const RequestReader& a, const RequestReader& b) {
  if (a.is_whole() != b.is_whole() || a.refusal() != b.refusal() || a.why() != b.why())
    return false;
  if (!a.is_whole()) return true;
  const auto& x = a.request();
  const auto& y = b.request();
  return x.method == y.method && x.path == y.path && x.query == y.query && x.headers == y.headers &&
         x.body == y.body;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t middle = size == 0 ? 0 : data[size / 2] * size / 256;
  RequestReader whole, pieces;
  whole.take(bytes);
  pieces.take(bytes.substr(0, middle));
  pieces.take(bytes.substr(middle));
  if (!is_same(whole, pieces)) std::abort();
  if (!whole.is_whole()) return 0;
  static const foci::cli::Site site{.folder = FOCI_BINARY_DIR "/fuzz/requests", .port = 80};
  const int status = site.answer(whole.request()).status;
  if (status < 200 || status > 505) std::abort();
  return 0;
}
