// SPDX-License-Identifier: Apache-2.0
// JSON of files that somebody else may have written. What lies deeper than in any file of ours is
// left out: a copy of it, or its text in a message, would need a stack as deep.
#pragma once

#include "cli/mechanism.hpp"

#include <utility>

namespace foci::cli {

inline bool is_near(int depth, Json::parse_event_t, const Json&) {
  constexpr int most = 64;
  return depth < most;
}

/// Of a text or a stream; discarded where it is no JSON.
template <class From>
Json parsed(From&& from) {
  return Json::parse(std::forward<From>(from), is_near, /*allow_exceptions=*/false);
}
/// The same for what people write: comments may stand in it.
template <class From>
Json parsed_with_comments(From&& from) {
  return Json::parse(std::forward<From>(from), is_near, false, /*ignore_comments=*/true);
}

}  // namespace foci::cli
