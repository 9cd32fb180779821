// SPDX-License-Identifier: Apache-2.0
// What `foci serve` answers: the page made of a folder's results as they are now, the results
// themselves, their figures, and the explorer; to whom may see them, and nothing else.
#pragma once

#include "cli/server.hpp"

#include <string>

namespace foci::cli {

struct Site {
  std::string folder;
  int port = 0;
  std::string token;     ///< empty = none is asked for
  bool loopback = true;  ///< whether only names of this machine are answered to

  Answer answer(const Request& request) const;

 private:
  Answer refusal(const Request& request) const;
  bool is_known(const Request& request) const;
  bool is_ours(std::string_view host) const;
  Answer results(const Request& request) const;
  Answer page(const Request& request) const;
  Answer figure(const std::string& name) const;
};

/// 128 bits of chance in hexadecimal.
std::string made_token();

}  // namespace foci::cli
