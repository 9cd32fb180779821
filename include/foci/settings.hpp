// SPDX-License-Identifier: Apache-2.0
// Options as words and back, in the names that the command line, checkpoints, torch operators and
// Python share. A word that does not belong to the chosen metric or weighting is refused.
#pragma once

#include <foci/export.h>
#include <foci/call.hpp>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace foci {

/// {"metric", "layer-change"}, {"normalize", "mean"}, {"causal", "true"}, ...
using Settings = std::map<std::string, std::string, std::less<>>;

/// Reads "metric=layer-change normalize=mean causal=true". Throws InvalidArgument for a word
/// without '=' and for a name that comes twice; what the words mean is options_of()'s to judge.
FOCI_API Settings parse_settings(std::string_view text);
/// The same text back: names in alphabetical order, `metric` and `weighting` first.
FOCI_API std::string to_text(const Settings& settings);

/// Throws InvalidArgument for an unknown name or value, or a name that does not belong.
FOCI_API Options options_of(const Settings& settings);
/// Every setting that these options have, defaults written out; what is left to the call (scope,
/// scale, prior, metric_grad or backend not chosen) is left out. options_of() gives them back.
FOCI_API Settings settings_of(const Options& how);

/// The metrics or weightings that have this setting; empty when it goes with all or is unknown.
FOCI_API std::vector<std::string_view> owners(std::string_view setting);

}  // namespace foci
