// SPDX-License-Identifier: Apache-2.0
// What `foci-torch` does with a verb that `foci` handed on.
#include "cli/torch/run.hpp"

#include <malloc.h>

#include <climits>
#include <new>
#include <string_view>
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

bool is_want_of_memory(const std::exception& fault) {
  if (dynamic_cast<const std::bad_alloc*>(&fault) != nullptr) return true;
  const std::string_view text = fault.what();  // torch's own, with all its callers behind it
  return text.find("can't allocate memory") != text.npos ||
         text.find("CUDA out of memory") != text.npos ||
         text.find("CUDA error: out of memory") != text.npos;
}

int run(const WithTorch& verb) {
  keep_freed_memory();
  try {
    return std::visit([](const auto& what) { return run_torch(what); }, verb.verb);
  } catch (const std::exception& fault) {
    if (is_want_of_memory(fault)) throw std::bad_alloc();
    throw;
  }
}

}  // namespace foci::cli
