// SPDX-License-Identifier: Apache-2.0
// Who has which part of a thing that several processes work on: of a batch, of a set. No torch.
#pragma once

#include <cstdint>

namespace foci {

/// [first, end)
struct Range {
  std::int64_t first = 0, end = 0;
  std::int64_t count() const { return end - first; }
};

/// One of `size` processes. Their parts follow one another and differ by one item at most.
struct Share {
  int rank = 0, size = 1;
  Range of(std::int64_t count) const { return {count * rank / size, count * (rank + 1) / size}; }
};

}  // namespace foci
