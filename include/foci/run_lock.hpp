// SPDX-License-Identifier: Apache-2.0
// One process at a time trains into a run's folder.
#pragma once

#include <foci/export.h>

#include <memory>
#include <string>

namespace foci::train {

/// Holds the folder's file `lock` for as long as anything of this process has one of it; the system
/// lets it go when the process ends, however it ends.
class FOCI_API RunLock {
 public:
  /// Makes the folder. Throws FileError that names the process which has it.
  explicit RunLock(const std::string& folder);

 private:
  struct Held;
  std::shared_ptr<Held> held_;
};

}  // namespace foci::train
