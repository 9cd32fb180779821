// SPDX-License-Identifier: Apache-2.0
// Remarks that travel with a result. The library's handler is a plain function, so what it hears is
// kept in one place for the whole process.
#include "cli/remarks.hpp"

#include "cli/terminal.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string_view>

namespace foci::cli {
namespace {

std::mutex heard_lock;
std::vector<std::string> heard;

/// Heads and threads repeat themselves; each text counts once.
void hear(std::string_view message) {
  const std::lock_guard guard(heard_lock);
  if (std::find(heard.begin(), heard.end(), message) == heard.end()) heard.emplace_back(message);
}

}  // namespace

Remarks::Remarks() : before_(set_warning_handler(hear)) {
  const std::lock_guard guard(heard_lock);
  heard.clear();
}

Remarks::~Remarks() { set_warning_handler(before_); }

void Remarks::add(const Remark& remark) {
  if (std::find(own_.begin(), own_.end(), remark) == own_.end()) own_.push_back(remark);
}

void Remarks::add_for(const Options& how) {
  if (how.causal && how.allow_leak && is_estimated(how.metric) &&
      scope_of(how) == Scope::sequence) {
    add({"leak-allowed",
         "the metric was estimated from the whole sequence, tokens after the query included",
         "use --scope prefix for any number about a causal model"});
  }
}

void Remarks::add_for_rows(const Tensor& o) {
  const std::int64_t E = o.view().sizes().back();
  std::int64_t at = 0, bad = 0;
  bool good = true;
  for (const double x : o.values()) {
    good = good && std::isfinite(x);
    if (++at % E != 0) continue;
    bad += good ? 0 : 1;
    good = true;
  }
  if (bad == 0) return;
  add({"not-a-number", fmt::format("{} of {} rows of o hold NaN or infinity", bad, at / E),
       "look for NaN or infinity in q, k, v; means over rows leave such rows out"});
}

std::vector<Remark> Remarks::list() const {
  std::vector<Remark> all = own_;
  const std::lock_guard guard(heard_lock);
  for (const std::string& message : heard) {
    all.push_back({"warning", message, "see foci help attend"});
  }
  return all;
}

Json Remarks::json() const {
  Json flags = Json::array();
  for (const Remark& remark : list()) {
    flags.push_back({{"name", remark.name}, {"means", remark.means}, {"do", remark.act}});
  }
  return flags;
}

void Remarks::print() const {
  for (const Remark& remark : list()) {
    fmt::print(stderr, "foci: {}: {}; {}\n", remark.name, remark.means, remark.act);
  }
}

}  // namespace foci::cli
