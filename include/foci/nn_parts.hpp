// SPDX-License-Identifier: Apache-2.0
// A training batch that several processes have parts of: what a layer's metric remembers of it
// (running scope, init estimate) is that of the whole batch.
#pragma once

#include <foci/export.h>

#include <ATen/core/Tensor.h>

#include <functional>

namespace foci::nn {

/// While it lives, on the thread that made it, `sum` makes a contiguous tensor the sum over all
/// parts. It is called in the same order in each.
class FOCI_API InParts {
 public:
  explicit InParts(std::function<void(const at::Tensor&)> sum);
  ~InParts();
  InParts(const InParts&) = delete;
  InParts& operator=(const InParts&) = delete;

 private:
  std::function<void(const at::Tensor&)> before_;
};

}  // namespace foci::nn
