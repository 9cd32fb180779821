// SPDX-License-Identifier: Apache-2.0
// The files that torch.save writes: a zip of a pickle and storages, or, before 1.6, pickles and
// storages one after the other.
#pragma once

#include "data/bytes.hpp"

#include <foci/convert.hpp>

#include <functional>
#include <map>

namespace foci::data {

/// Entries by name. Stored ones alone: torch compresses nothing. Throws FileError.
std::map<std::string, ByteView, std::less<>> read_zip(ByteView file, const std::string& name);
bool is_zip(ByteView file);

/// Whether a file begins as torch.save's did before 1.6.
bool is_early_torch(ByteView file);

/// The views refer to `file`; misaligned storages are copied.
Checkpoint parse_torch(ByteView file, const std::string& name, const std::string& take);

}  // namespace foci::data
