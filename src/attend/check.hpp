// SPDX-License-Identifier: Apache-2.0
// From a caller's tensors and options to a Problem, or to an InvalidArgument that says what does
// not fit.
#pragma once

#include "metric/problem.hpp"

#include <foci/attention.hpp>

#include <string>

namespace foci::checks {

/// Why a metric and a weighting do not go together; empty when they do.
std::string refusal(const Metric& metric, const Weighting& weighting);

/// Never automatic.
Scope scope_of(const Options& how);

/// Options alone: ranges, pairs, scopes.
void check_options(const Options& how);

/// Values in device memory are not looked at; sizes, types and offsets are.
enum class Memory { host, device };
metric::Problem check(const Inputs& from, const Options& how, Memory memory = Memory::host);
void check_outputs(const Outputs& to, const metric::Problem& problem);
void check_gradients(const Gradients& to, const metric::Problem& problem);
/// What a backend reads back of the forward pass: o and lse, where they are given.
void check_saved(const Outputs& saved, const metric::Problem& problem);

/// c unless the caller says otherwise: 1/sqrt(D), and 1 for full metrics and for linear.
double standard_scale(const metric::Problem& problem);

/// A given metric is written out as it came, once.
void echo_given(const View& to, const metric::Problem& problem);

/// Fills a metric's gradient with zeros.
void clear(const View& dmetric);

/// Shapes of Outputs::metric and Outputs::status; rank 0 where there is none.
metric::Index metric_shape(const metric::Problem& problem);
metric::Index status_shape(const metric::Problem& problem);

std::string_view name_of(const Metric& metric);
std::string_view name_of(const Weighting& weighting);

}  // namespace foci::checks
