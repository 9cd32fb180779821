// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl and TensorBoard's events of a run: a line a step, cut back to a checkpoint when the
// run is taken up again. A step that is saved before it is judged leaves its line with the
// checkpoint, as line.json, until the scores are there.
#pragma once

#include <foci/run.hpp>

#include <optional>
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
  /// Opens both, without the lines after `step`. Gives that of `step` where it is still to be
  /// judged, and to be added then.
  std::optional<Line> open(const std::string& folder, std::int64_t step);
  void add(const Line& line);
  /// Into the folder of the checkpoint of its step.
  static void put_aside(const Line& line, const std::string& checkpoint);
  /// What was added is on the disk afterwards.
  void sync();

 private:
  Growing metrics_, events_;
};

}  // namespace foci::train
