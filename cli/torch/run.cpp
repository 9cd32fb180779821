// SPDX-License-Identifier: Apache-2.0
// What `foci-torch` does with a verb that `foci` handed on.
#include "cli/torch/run.hpp"

#include <malloc.h>

#include <climits>
#include <variant>

namespace foci::cli {
namespace {

/// Tensors of a step are freed and asked for again in the next one. By default glibc gives pages
/// back in between and the kernel clears new ones: a quarter of the micro model's step.
void keep_freed_memory() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
  ::mallopt(M_TOP_PAD, 1 << 26);
#endif
}

}  // namespace

int run(const WithTorch& verb) {
  keep_freed_memory();
  return std::visit([](const auto& what) { return run_torch(what); }, verb.verb);
}

}  // namespace foci::cli
