// SPDX-License-Identifier: Apache-2.0
// The last word of an attack: a handler that writes what was made ready for it, and nothing else.
#include "cli/torch/attack_stop.hpp"

#include "cli/terminal.hpp"

#include <unistd.h>

namespace foci::cli {
namespace {

std::string last_word;

void say_and_end(int number) {
  if (::write(STDERR_FILENO, last_word.data(), last_word.size()) < 0) return ::_exit(1);
  ::raise(number);  // SA_RESETHAND: as if nobody had listened
}

}  // namespace

LastWord::LastWord(std::string text) {
  last_word = (can_move() ? "\r\x1b[K" : "") + std::move(text) + "\n";
  for (std::size_t i = 0; i < signals.size(); ++i) {
    struct sigaction before {};
    sigaction(signals[i], nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction how {};
    how.sa_handler = say_and_end;
    how.sa_flags = SA_RESETHAND;
    sigemptyset(&how.sa_mask);
    taken_[i] = sigaction(signals[i], &how, nullptr) == 0;
  }
}

LastWord::~LastWord() {
  for (std::size_t i = 0; i < signals.size(); ++i) {
    if (taken_[i]) std::signal(signals[i], SIG_DFL);
  }
}

}  // namespace foci::cli
