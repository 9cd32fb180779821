// SPDX-License-Identifier: Apache-2.0
// The reader of llama2.c's models from memory, so that a fuzzer can hold it.
#pragma once

#include "data/bytes.hpp"

#include <foci/llama2c.hpp>

namespace foci::data {

/// The views look at `bytes`, which must begin where a float may.
Llama2c parse_llama2c(ByteView bytes, const std::string& name);

}  // namespace foci::data
