// SPDX-License-Identifier: Apache-2.0
// A call computed three ways on the same numbers: by a backend (the CPU's, unless said otherwise),
// by the naive formula in the same type, and by ref in double; and the tolerance rule between them.
#pragma once

#include "cpu/choose.hpp"
#include "mechanisms.hpp"

#include <foci/executor.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace foci::cases {

inline double eps_of(DType dtype) {
  return dtype == DType::f32 ? 0x1p-23 : dtype == DType::bf16 ? 0x1p-7 : 0x1p-10;
}

/// Everything there is, with a workspace that must be enough.
inline void run_on(Made& made, const Options& how, Executor* threads) {
  const Inputs from = made.inputs();
  std::vector<std::byte> workspace(need(from, how, threads ? threads->threads() : 1).workspace);
  const Call call{.workspace = workspace, .threads = threads};
  const Outputs to = all_outputs(made, how);
  attend(to, from, how, call);
  attend_backward(all_gradients(made, how), from, to, how, call);
}

/// Largest difference, infinities of one sign counting as equal; NaN when only one is NaN.
inline double farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    const double apart = same ? 0 : std::abs(a[i] - b[i]);
    if (!(apart <= most)) most = std::isnan(most) ? most : apart;
  }
  return most;
}

/// The rule: at most twice the naive formula's error in the same type, and one rounding of the
/// output. Errors are the largest over everything that was added: in a tensor of a few numbers
/// alone the naive formula may be right by luck.
class Rule {
 public:
  void add(const Made& ours, const Made& naive, const Made& exact) {
    for (const std::string& name : results(ours)) {
      if (name == "largest_at") continue;
      Found& found = found_[name];
      const std::vector<double> right = exact[name].values();
      for (const double x : right)
        found.largest = std::isfinite(x) ? std::max(found.largest, std::abs(x)) : found.largest;
      worst(found.error, farthest(ours[name].values(), right));
      worst(found.naive, farthest(naive[name].values(), right));
      found.eps = eps_of(ours[name].view().dtype);
    }
  }
  bool holds() const {
    for (const auto& [name, found] : found_) {
      if (!(found.error <= found.allowed())) return false;
    }
    return true;
  }
  void expect(const std::string& what) const {
    for (const auto& [name, found] : found_)
      EXPECT_LE(found.error, found.allowed()) << what << " " << name;
  }

 private:
  struct Found {
    double error = 0, naive = 0, largest = 0, eps = 0;
    double allowed() const { return 2 * naive + eps * largest; }
  };
  static void worst(double& so_far, double x) {
    if (!(x <= so_far)) so_far = std::isnan(so_far) ? so_far : x;
  }
  std::map<std::string, Found> found_;
};

/// Each instruction set the machine has for tensors of `dtype`, in turn: those over floats, and for
/// bf16 those over bf16.
template <class F>
void on_every_isa(DType dtype, F&& f) {
  std::vector<const char*> names;
  for (const cpu::Kernels* kernels : cpu::available()) names.push_back(kernels->name);
  for (const cpu::NarrowKernels* kernels : cpu::available_narrow()) {
    if (dtype == DType::bf16) names.push_back(kernels->name);
  }
#ifdef __SANITIZE_THREAD__
  // Threads are the same on all of them, and slow to watch.
  const std::size_t floats = cpu::available().size();
  names = {names[floats < names.size() ? floats : 0]};
#endif
  for (const char* name : names) {
    ASSERT_EQ(setenv("FOCI_ISA", name, 1), 0);
    SCOPED_TRACE(name);
    if constexpr (requires { f(name); }) {
      f(name);
    } else {
      f();
    }
  }
  unsetenv("FOCI_ISA");
}

/// Those over floats.
template <class F>
void on_every_isa(F&& f) {
  on_every_isa(DType::f32, f);
}

struct Three {
  Made ours, naive, exact;
  Three(const Case& c, DType dtype, double size = 1, std::uint64_t seed = 5)
      : ours(c, seed, dtype, size), naive(c, seed, dtype, size), exact(c, seed, DType::f64, size) {}

  /// The others get what `ours` holds.
  void share(const std::string& name) {
    if (!ours.find(name)) return;
    const DType dtype = ours[name].view().dtype;
    exact.put(name, Tensor::copy(ours[name], is_floating(dtype) ? DType::f64 : dtype));
    naive.put(name, Tensor::copy(ours[name], dtype));
  }
  void compare(const Options& how, const std::string& what) {
    Rule rule;
    answer(how);
    compare(how, rule);
    rule.expect(what);
  }
  /// What the others say, which no instruction set changes: they are asked once.
  void answer(Options how) {
    for (const char* name : {"q", "k", "v", "v_prev", "d_o", "metric", "key_bias", "key_mask"})
      share(name);
    how.backend = Backend::ref;
    run_on(naive, how, nullptr);
    run_on(exact, how, nullptr);
  }
  void compare(Options how, Rule& rule, Backend backend = Backend::cpu) {
    how.backend = backend;
    run_on(ours, how, nullptr);
    rule.add(ours, naive, exact);
  }
};

/// Everything that was computed, to the bit.
inline void expect_same_bits(const Made& a, const Made& b, const std::string& what) {
  for (const std::string& name : results(a)) {
    const View &x = a[name], &y = b[name];
    ASSERT_EQ(x.count(), y.count());
    EXPECT_EQ(std::memcmp(x.data, y.data, std::size_t(x.count()) * size_of(x.dtype)), 0)
        << what << " " << name;
  }
}

inline bool served(const Made& made, Options how, Backend backend = Backend::cpu) {
  how.backend = backend;
  return refused(made.inputs(), how).empty();
}

}  // namespace foci::cases
