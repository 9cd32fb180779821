// SPDX-License-Identifier: Apache-2.0
// A call computed three ways on the same numbers: by the CPU backend, by the naive formula in the
// same type, and by ref in double; and the tolerance rule between them.
#pragma once

#include "cpu/choose.hpp"
#include "mechanisms.hpp"

#include <foci/executor.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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
/// output.
inline void expect_within_rule(const Made& ours, const Made& naive, const Made& exact,
                               const std::string& what) {
  for (const std::string& name : results(ours)) {
    if (name == "largest_at") continue;
    const std::vector<double> right = exact[name].values();
    double largest = 0;
    for (const double x : right)
      largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    const double error = farthest(ours[name].values(), right);
    const double allowed = farthest(naive[name].values(), right);
    EXPECT_LE(error, 2 * allowed + eps_of(ours[name].view().dtype) * largest)
        << what << " " << name;
  }
}

/// Each instruction set the machine has, in turn.
template <class F>
void on_every_isa(F&& f) {
  for (const cpu::Kernels* kernels : cpu::available()) {
    ASSERT_EQ(setenv("FOCI_ISA", kernels->name, 1), 0);
    SCOPED_TRACE(kernels->name);
    f();
  }
  unsetenv("FOCI_ISA");
}

struct Three {
  Made ours, naive, exact;
  Three(const Case& c, DType dtype, double size = 1)
      : ours(c, 5, dtype, size), naive(c, 5, dtype, size), exact(c, 5, DType::f64, size) {}

  /// The others get what `ours` holds.
  void share(const std::string& name) {
    if (!ours.find(name)) return;
    const DType dtype = ours[name].view().dtype;
    exact.put(name, Tensor::copy(ours[name], is_floating(dtype) ? DType::f64 : dtype));
    naive.put(name, Tensor::copy(ours[name], dtype));
  }
  void compare(Options how, const std::string& what) {
    for (const char* name : {"q", "k", "v", "v_prev", "d_o", "metric", "key_bias", "key_mask"})
      share(name);
    how.backend = Backend::cpu;
    run_on(ours, how, nullptr);
    how.backend = Backend::ref;
    run_on(naive, how, nullptr);
    run_on(exact, how, nullptr);
    expect_within_rule(ours, naive, exact, what);
  }
};

inline bool served(const Made& made, Options how) {
  how.backend = Backend::cpu;
  return refused(made.inputs(), how).empty();
}

}  // namespace foci::cases
