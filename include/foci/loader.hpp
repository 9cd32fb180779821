// SPDX-License-Identifier: Apache-2.0
// Batches made ahead of their use by threads of its own. Which sample stands where depends on the
// seed and the epoch alone, never on the threads; a position can be stored and taken up again.
#pragma once

#include <foci/export.h>
#include <foci/tensor.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace foci::data {

/// The batch that comes next.
struct FOCI_API Position {
  std::int64_t epoch = 0, batch = 0;
  bool operator==(const Position&) const = default;
};

struct FOCI_API Batch {
  Position position;
  std::vector<std::int64_t> samples;  ///< their numbers in the set
  Tensor inputs, targets;
};

enum class Order { shuffled, as_it_is };
enum class Last { kept, dropped };  ///< a last batch that is not full

struct FOCI_API LoaderOptions {
  std::int64_t batch = 1;
  int threads = 2;
  int ahead = 4;  ///< batches that may be ready or under way before they are asked for
  std::uint64_t seed = 0;
  Order order = Order::shuffled;
  Last last = Last::dropped;
  Position start = {};
  /// So often a sample stands side by side; an epoch has as many as without, of fewer samples.
  std::int64_t repeats = 1;
};

class FOCI_API Loader {
 public:
  /// Fills inputs and targets of a batch whose position and samples are set. Called from several
  /// threads at once; what is random in it should hang on seed, epoch and sample alone.
  using Fill = std::function<void(Batch& batch)>;

  /// `samples` in the set. Throws InvalidArgument.
  Loader(std::int64_t samples, Fill fill, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, epoch after epoch without end. An exception of `fill` is thrown again here,
  /// at its batch; the loader then gives nothing more.
  Batch next();
  /// Where next() stands: to be stored, and given as `start`.
  Position position() const;
  std::int64_t batches_per_epoch() const;

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

/// The samples of an epoch in order.
FOCI_API std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed,
                                               std::int64_t epoch, Order order);

}  // namespace foci::data
