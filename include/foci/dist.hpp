// SPDX-License-Identifier: Apache-2.0
// Several processes that work on one thing over torch's c10d: who this one is, sums over all of
// them, gradients that are summed while backward goes on, and an end for all when one is lost.
#pragma once

#include <foci/export.h>
#include <foci/error.hpp>
#include <foci/share.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace foci::dist {

/// Who this process is, and where the store is that all of them meet at.
struct Standing {
  int rank = 0, size = 1;
  int local_rank = 0;    ///< among those of its machine: its GPU
  int restart = 0;       ///< how often torchrun began anew
  std::string job = {};  ///< torchrun's name for it, the same when its members change
  std::string host = "127.0.0.1";
  int port = 29500;
  bool agent = false;  ///< torchrun's agent holds the store; else rank 0 does
  int local_size = 1;  ///< ranks that share the cores this process may use, where that is said
};

/// As the environment says: that of torchrun and `foci launch` (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*), of a step of Slurm or of Open MPI; nothing where
/// there is none. Throws InvalidArgument that names the variable.
FOCI_API std::optional<Standing> standing();
/// Takes it out of the environment: this process, and what it starts, works alone from then on.
FOCI_API void forget_standing();

/// A rank that is lost, hung or failed ended the job; the text names it and the last saved step.
class FOCI_API Lost : public Error {
 public:
  using Error::Error;
};

struct GroupOptions {
  Standing standing = {};
  std::string device = "cpu";  ///< cpu: Gloo; cuda: NCCL, and the GPU local_rank
  /// Seconds without a sign of life, or without progress; ten times that until the first sum.
  double patience = 40;
  double join = 300;  ///< seconds to wait for all ranks at the beginning
  /// Called from another thread when the job is over and this one hangs; empty: the text goes to
  /// standard error and the process ends with status 1.
  std::function<void(const std::string&)> ended = {};
};

/// All ranks make one, and every collective call is made by all of them in the same order. What
/// goes wrong in another process is a Lost here.
class FOCI_API Group {
 public:
  /// Throws Unsupported where this torch has no such engine, Lost when ranks do not come.
  explicit Group(const GroupOptions& options);
  /// Waits for the others, unless fail() was called or a Lost thrown.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  Share share() const { return {rank(), size()}; }
  /// Where tensors that are summed must be.
  at::Device device() const;

  /// A sum that is under way.
  class FOCI_API Pending {
   public:
    void wait();
    /// Called from the engine's thread when it is done; NCCL's is when it is on its way.
    void then(std::function<void()> what);

   private:
    friend class Group;
    Group* group_ = nullptr;
    std::vector<std::shared_ptr<void>> works_;
  };
  /// x becomes the sum over all ranks, with the same bits everywhere; contiguous, on the group's
  /// device.
  Pending sum_soon(const at::Tensor& x);
  void sum(const at::Tensor& x);
  std::vector<double> sum(const std::vector<double>& values);
  /// x becomes rank 0's; on any device.
  void take(const at::Tensor& x);
  /// Rank 0's text, told to all; `name` is used once.
  std::string told(const std::string& name, const std::string& text);
  /// x on the processor. Of a GPU's sums NCCL ends here, not where they are waited for: until then
  /// this rank counts as one that waits for others.
  at::Tensor fetched(const at::Tensor& x);
  /// The next rank in the ring receives the first, and the second is received from the one before;
  /// both stay untouched until then.
  Pending pass_on(const at::Tensor& to_next, const at::Tensor& from_before);

  /// A sign that this rank gets on with its work.
  void alive();
  /// So many seconds beyond the patience may pass now without one: a large file is written.
  void allow(double seconds);
  /// The last step that is saved, for the text of an end.
  void saved(std::int64_t step);
  /// This rank gives up: all others end with its reason.
  void fail(const std::string& reason);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

/// Sums the gradients of a module over the ranks, in buckets that go on their way as soon as
/// backward has filled them, last parameters first.
class FOCI_API Gradients {
 public:
  Gradients(Group& group, const torch::nn::Module& module,
            std::int64_t bucket_bytes = std::int64_t(25) << 20);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;
  /// The next backward is the last of its step.
  void begin();
  /// Afterwards every parameter's gradient is the sum over the ranks; one that no rank has stays
  /// absent.
  void finish();
  /// Of the last step: bytes, and seconds since begin().
  struct Sent {
    std::int64_t bytes = 0;
    double begun = 0, done = 0;
  };
  std::vector<Sent> buckets() const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace foci::dist
