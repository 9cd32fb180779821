// SPDX-License-Identifier: Apache-2.0
// Attention: forward, backward, and what can be asked about them beforehand.
// Bad input throws InvalidArgument before anything is written; only a covariance that cannot be
// factored (NumericalError) is met on the way.
#pragma once

#include <foci/export.h>
#include <foci/call.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace foci {

/// o = sum_j a_ij v_j. Three tensors are enough:
///   attend({.o = o}, {.q = q, .k = k, .v = v});
FOCI_API void attend(const Outputs& to, const Inputs& from, const Options& how = {});

/// The same with the caller's workspace and threads; allocates nothing. Same bits for any thread
/// count.
FOCI_API void attend(const Outputs& to, const Inputs& from, const Options& how, const Call& call);

/// Gradients of sum(o * d_o). `saved` holds what attend() wrote; a backend uses what helps it.
FOCI_API void attend_backward(const Gradients& to, const Inputs& from, const Outputs& saved,
                              const Options& how = {});
FOCI_API void attend_backward(const Gradients& to, const Inputs& from, const Outputs& saved,
                              const Options& how, const Call& call);

/// Workspace for attend() and attend_backward() of these tensors on `threads` threads.
FOCI_API Need need(const Inputs& from, const Options& how, int threads = 1);

/// Shape of Outputs::metric (empty for dot).
FOCI_API Shape metric_shape(const Inputs& from, const Options& how);

/// One cell of the support table.
struct Support {
  std::string_view metric, weighting, backend;
  bool supported = false;
  std::string why_not;  ///< empty when supported
};
/// Every metric x weighting x backend, answered by the dispatcher itself.
FOCI_API std::vector<Support> support();

/// Instruction sets that the CPU backend has kernels for and this machine runs, best first. The
/// environment variable FOCI_ISA names another than the first.
FOCI_API std::vector<std::string_view> isas();
/// The one that softmax over tensors of this type runs on, with dot or a diagonal metric.
FOCI_API std::string_view isa(DType dtype);

/// The library's version, "major.minor.patch".
FOCI_API std::string_view version();

}  // namespace foci
