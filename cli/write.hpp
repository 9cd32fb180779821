// SPDX-License-Identifier: Apache-2.0
// Writing a result so that neither a full disk nor Ctrl-C leaves half of it.
#pragma once

#include <foci/tensor.hpp>

#include <map>
#include <string>

namespace foci::cli {

/// Throws FileError when `path` plainly cannot become a file, before anything is computed.
void check_writable(const std::string& path);

/// Writes the whole file or nothing. A signal that would end the program waits until it is done.
void write_result(const std::string& path, const std::map<std::string, Tensor>& tensors,
                  const std::map<std::string, std::string>& metadata);

/// Under another name first, so that a kill leaves the old file or the new. Throws FileError.
void write_whole(const std::string& path, const std::string& text);

/// What was drawn, to a device as well. Throws FileError.
void write_picture(const std::string& path, const std::string& svg);

}  // namespace foci::cli
