// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl and TensorBoard's events of a run: a line a step, cut back to a checkpoint when the
// run is taken up again.
#pragma once

#include <foci/run.hpp>

#include <string>
#include <string_view>

namespace foci::train {

/// A file that only grows; what the system refuses is a FileError with its reason.
class Growing {
 public:
  Growing() = default;
  explicit Growing(const std::string& path);
  ~Growing();
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;
  void open(const std::string& path);
  void add(std::string_view bytes);
  void sync();

 private:
  std::string path_;
  int file_ = -1;
};

class RunFiles {
 public:
  /// Opens both, without the lines after `step`.
  void open(const std::string& folder, std::int64_t step);
  void add(const Line& line);
  /// What was added is on the disk afterwards.
  void sync();

 private:
  Growing metrics_, events_;
};

}  // namespace foci::train
