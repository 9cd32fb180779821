// SPDX-License-Identifier: Apache-2.0
// Flags that a file carries in its metadata: __metadata__.options, a JSON object of flag names and
// values.
#pragma once

#include "cli/verbs.hpp"

#include <foci/safetensors.hpp>

#include <string>

namespace foci::cli {

/// With --flags-from-metadata the file's flags, overruled by those given; otherwise `given` as it
/// is. Throws FileError for metadata that cannot be understood.
Mechanism completed(const Mechanism& given, const Safetensors& file, const std::string& path);

/// The number type of q in the file; f32 when there is no floating q.
DType dtype_of_q(const Safetensors& file);

}  // namespace foci::cli
