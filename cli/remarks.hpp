// SPDX-License-Identifier: Apache-2.0
// Remarks that travel with a result: a leak that was allowed, a warning of the library, numbers
// that are not numbers. Each says what it means and what to do; in JSON they are the list `flags`.
#pragma once

#include "cli/mechanism.hpp"

#include <foci/error.hpp>

#include <string>
#include <vector>

namespace foci::cli {

struct Remark {
  std::string name, means, act;
  bool operator==(const Remark&) const = default;
};

/// Collects the library's warnings for as long as it lives; one at a time.
class Remarks {
 public:
  Remarks();
  ~Remarks();
  Remarks(const Remarks&) = delete;
  Remarks& operator=(const Remarks&) = delete;

  void add(const Remark& remark);
  /// The remarks that the options themselves call for.
  void add_for(const Options& how);
  /// How many rows of o (..., E) are not all numbers: usually NaN in q, which stays in its own row.
  void add_for_rows(const Tensor& o);
  std::vector<Remark> list() const;

  /// [{name, means, do}]
  Json json() const;
  /// One line each on standard error, so that neither --quiet nor a pipe hides them.
  void print() const;

 private:
  std::vector<Remark> own_;
  WarningHandler before_ = nullptr;
};

}  // namespace foci::cli
