// SPDX-License-Identifier: Apache-2.0
// Safetensors files: a strict memory-mapped reader and a writer that never leaves half a file.
#pragma once

#include <foci/export.h>
#include <foci/tensor.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci {

/// An opened file. Views stay valid as long as it lives. Throws FileError naming file and fault.
class FOCI_API Safetensors {
 public:
  explicit Safetensors(const std::string& path);
  /// Reads from memory that outlives it; `name` stands for the path in messages.
  Safetensors(std::span<const std::byte> bytes, const std::string& name);
  ~Safetensors();
  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;

  std::vector<std::string> names() const;  ///< sorted
  bool contains(std::string_view name) const;
  /// Absent view when there is no such tensor. A scalar comes as shape (1). Unsupported for a type
  /// or rank that View cannot hold, FileError for a BOOL that is neither 0 nor 1.
  View find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

/// Writes beside `path` under another name, syncs, then renames: `path` is the old file or the new,
/// never half. Tensors may be strided. Throws FileError; InvalidArgument for a name that is not
/// UTF-8 or reserved, or a view without data.
FOCI_API void write_safetensors(const std::string& path, const std::map<std::string, View>& tensors,
                                const std::map<std::string, std::string>& metadata = {});

}  // namespace foci
