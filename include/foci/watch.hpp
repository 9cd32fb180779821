// SPDX-License-Identifier: Apache-2.0
// Looks at every call of attention that a model makes, and at its tokens between blocks, without
// changing the model: while a Watch lives, nn::attend on its thread also gives its rows'
// statistics. Decoding from a cache is not watched.
#pragma once

#include <foci/export.h>
#include <foci/nn.hpp>

#include <cstdint>
#include <functional>

namespace foci::nn {

/// One call; q, k as they met (turned, where positions are rotary) and `statistics.o` as it went
/// on.
struct Seen {
  std::int64_t layer = 0;  ///< calls before it since the watch began, or was restarted
  at::Tensor q, k, v;
  Extras extras = {};
  Options how = {};
  Statistics statistics = {};
};

/// Tokens that go into the first block, and those that come out of each.
struct Passed {
  std::int64_t layers = 0;   ///< calls of attention that they have been through
  at::Tensor tokens;         ///< (B,N,dim)
  at::Tensor key_mask = {};  ///< (B,N), true = real, or undefined
};

/// Of this thread; of several, the newest hears and the others do not.
///   nn::Watch watch([&](const nn::Seen& call) { ... });
class FOCI_API Watch {
 public:
  /// Without `seen` calls are counted alone, and cost what they do without a watch.
  explicit Watch(std::function<void(const Seen&)> seen,
                 std::function<void(const Passed&)> passed = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  /// Another pass of the model begins: the next call is layer 0.
  void restart();

  /// The newest one of this thread, or null.
  static Watch* current();
  /// What nn::attend does under a watch. What is called from `seen` is not watched.
  at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const Extras& extras, const Options& how);
  /// For models: these tokens stand before the first block or behind one.
  void pass(const at::Tensor& tokens, const at::Tensor& key_mask = {});

 private:
  std::function<void(const Seen&)> seen_;
  std::function<void(const Passed&)> passed_;
  std::int64_t calls_ = 0, told_ = -1;
  Watch* outer_;
};

}  // namespace foci::nn
