// SPDX-License-Identifier: Apache-2.0
// How much memory a run takes.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace foci::train {

/// The process' resident bytes; on a GPU the most that torch's tensors had there at once.
std::int64_t used_bytes(c10::Device device);

}  // namespace foci::train
