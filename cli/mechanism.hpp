// SPDX-License-Identifier: Apache-2.0
// Mechanism flags to foci::Options and back. A flag fits a metric or weighting when its struct has
// the field; one that does not fit is refused, never ignored.
#pragma once

#include "cli/flags.hpp"

#include <foci/call.hpp>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foci::cli {

using Json = nlohmann::ordered_json;

/// The options that these words ask for; each word has been through check_value. Throws Misuse.
Options options_of(const Words& words);

/// --dtype, when it was given.
std::optional<DType> dtype_of_words(const Words& words);

/// The metrics or weightings that a flag belongs to; empty when it goes with all.
std::vector<std::string> owners(std::string_view flag);

/// `stored`, overruled by `given`: a stored flag that the given metric or weighting has no use for
/// falls away.
Words overruled(const Words& stored, const Words& given);

/// Every flag of these options as it applies to head size D, defaults resolved.
Json resolved(const Options& how, std::int64_t D);

/// "layer-change (form product, ...) with softmax, scale 0.25"
std::string described(const Options& how, std::int64_t D);

/// The backend that serves a call on tensors of `dtype`: the one asked for, or the best there is.
std::string backend_name(const Options& how, DType dtype);
std::string metric_name(const Metric& metric);
std::string weighting_name(const Weighting& weighting);

/// Whether the metric is made from v_prev.
bool uses_v_prev(const Metric& metric);
/// Whether the metric is a full matrix.
bool is_full(const Metric& metric);
/// Whether the metric is estimated from the tensors of the call.
bool is_estimated(const Metric& metric);
/// Whether this weighting's rows are probabilities, so that they have an entropy.
bool has_entropy(const Weighting& weighting);
/// The scope of the estimate once `automatic` is resolved; sequence for metrics that have none.
Scope scope_of(const Options& how);

}  // namespace foci::cli
