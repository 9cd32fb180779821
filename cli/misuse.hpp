// SPDX-License-Identifier: Apache-2.0
// What the command line throws when it was called wrongly: one line that says what it got and what
// it needs, and a second that may help. Nothing about the library's own errors.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace foci::cli {

/// Ends with exit status 2.
class Misuse : public std::runtime_error {
 public:
  explicit Misuse(const std::string& message, std::string hint = {})
      : std::runtime_error(message), hint_(std::move(hint)) {}
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

}  // namespace foci::cli
