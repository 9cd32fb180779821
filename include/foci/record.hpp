// SPDX-License-Identifier: Apache-2.0
// A Record: one number that was measured, with all that is needed to trust it and to measure it
// again. Tables and pages are made from Records alone. A file of them has one JSON object a line.
#pragma once

#include <foci/export.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci {

/// Why a number should not be trusted as it stands, and what to do about it.
struct RecordFlag {
  std::string name, means, remedy;
  bool operator==(const RecordFlag&) const = default;
};

struct Record {
  std::string name = {};  ///< "top1"
  double value = 0;
  std::string unit = {};  ///< "share", "bits a byte"; empty: none
  std::int64_t n = 0;     ///< samples it was measured over
  std::uint64_t seed = 0;
  std::optional<double> spread = {};  ///< its standard error, where it is known
  std::string model = {};
  std::string data_sha256 = {}, config_sha256 = {};
  std::string commit = {}, machine = {};
  std::string command = {};  ///< measures it again
  std::vector<RecordFlag> flags = {};
  bool operator==(const Record&) const = default;
};

/// One line. Throws InvalidArgument for a value that is not finite: it would be no number in JSON.
FOCI_API std::string to_json(const Record& record);
/// Throws InvalidArgument that names the field; fields it does not know are left aside.
FOCI_API Record record_of(std::string_view json);

/// Adds lines to the file, all or none of them. Throws FileError.
FOCI_API void append_records(const std::string& path, std::span<const Record> records);
/// Throws FileError that names the line.
FOCI_API std::vector<Record> read_records(const std::string& path);

}  // namespace foci
