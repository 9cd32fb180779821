// SPDX-License-Identifier: Apache-2.0
// The way a warning goes out: to the caller's handler, or once per text to standard error.
#include <foci/error.hpp>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>

namespace foci {
namespace {

void print_once(std::string_view message) {
  // Never destroyed: a warning may come from a thread that outlives main's statics.
  static std::mutex& lock = *new std::mutex;
  static std::set<std::string, std::less<>>& seen = *new std::set<std::string, std::less<>>;
  const std::lock_guard guard(lock);
  if (seen.find(message) != seen.end()) return;
  seen.emplace(message);
  std::fprintf(stderr, "foci: warning: %.*s\n", int(message.size()), message.data());
}

std::atomic<WarningHandler> current_handler = print_once;

}  // namespace

WarningHandler set_warning_handler(WarningHandler handler) {
  return current_handler.exchange(handler ? handler : print_once);
}

void warn(std::string_view message) { current_handler.load()(message); }

}  // namespace foci
