// SPDX-License-Identifier: Apache-2.0
// Scalars and text as TensorBoard reads them: records with masked CRC-32C around protobuf's Event,
// of which the fields that they need are written by hand.
#pragma once

#include <foci/run.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace foci::train {

std::uint32_t crc32c(std::string_view bytes);

/// The record that a file begins with.
std::string first_event(double time);
/// One record with every value under its name, and `sample` as text unless it is empty.
std::string event_of(double time, std::int64_t step, const Scores& values,
                     std::string_view sample = {});

}  // namespace foci::train
