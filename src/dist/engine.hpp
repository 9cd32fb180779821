// SPDX-License-Identifier: Apache-2.0
// torch's store and its engines, Gloo and NCCL, whose classes hang together differently in the
// versions that foci is built with: nothing but this file's sources sees them.
#pragma once

#include <foci/dist.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace foci::dist {

/// The store that all ranks meet at. Not for several threads at once.
class Meeting {
 public:
  enum class Role { guest, host_if_rank_0 };
  /// Throws Error when nobody is there in time.
  Meeting(const Standing& standing, Role role, std::chrono::milliseconds patience);
  ~Meeting();
  void set(const std::string& name, const std::string& text);
  /// Waits for it until `most` has passed; throws then, as when the store is gone.
  std::string get(const std::string& name, std::chrono::milliseconds most);
  bool has(const std::string& name);
  std::int64_t add(const std::string& name, std::int64_t count);

 private:
  friend class Engine;
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

/// What is under way.
using Work = std::shared_ptr<void>;

class Engine {
 public:
  Engine(Meeting& meeting, const Standing& standing, const std::string& device);
  ~Engine();
  at::Device device() const;
  Work sum(const at::Tensor& x);
  Work take(const at::Tensor& x);
  Work send(const at::Tensor& x, int to);
  Work receive(const at::Tensor& x, int from);
  static void wait(const Work& work);
  static void then(const Work& work, std::function<void()> what);

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace foci::dist
