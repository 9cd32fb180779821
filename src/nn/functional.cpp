// SPDX-License-Identifier: Apache-2.0
// nn::attend and nn::measure: options become the operators' text, torch's errors foci's. And who
// watches them.
#include <foci/nn.hpp>
#include <foci/watch.hpp>

#include "nn/ops.hpp"

#include <foci/settings.hpp>

#include <ATen/core/grad_mode.h>

#include <fmt/core.h>

#include <utility>

namespace foci::nn {
namespace {

Watch*& newest_watch() {
  thread_local Watch* newest = nullptr;
  return newest;
}

/// What is called meanwhile is not watched.
struct Unwatched {
  Unwatched() : before(std::exchange(newest_watch(), nullptr)) {}
  ~Unwatched() { newest_watch() = before; }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
  Watch* before;
};

/// Sparse tensors are met here: the dispatcher has no words for them.
Tensors gathered(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const Extras& extras) {
  const Tensors from{q,
                     k,
                     v,
                     extras.v_prev,
                     extras.key_mask,
                     extras.key_bias,
                     extras.metric,
                     extras.q_offsets,
                     extras.k_offsets};
  from.each([](std::string_view name, const at::Tensor& tensor) {
    if (name.size() == 1 && !tensor.defined()) {
      throw InvalidArgument(fmt::format("{} is missing", name));
    }
    if (tensor.defined() && tensor.layout() != at::kStrided) {
      throw InvalidArgument(
          fmt::format("{} is a sparse tensor; it must be dense: {}.to_dense()", name, name));
    }
  });
  return from;
}

/// What the operators throw for Python, as it was.
template <class F>
auto untranslated(F&& f) {
  try {
    return f();
  } catch (const c10::ValueError& error) {
    throw InvalidArgument(error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    throw Unsupported(error.what_without_backtrace());
  }
}

at::Tensor or_undefined(const at::Tensor& tensor) {
  return tensor.dim() > 1 ? tensor : at::Tensor();
}

}  // namespace

std::string text_of(const Options& how) {
  thread_local Options last;
  thread_local std::string text = to_text(settings_of(last));
  if (how != last) {
    text = to_text(settings_of(how));
    last = how;
  }
  return text;
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Extras& extras, const Options& how) {
  if (Watch* watch = newest_watch()) return watch->attend(q, k, v, extras, how);
  const Tensors from = gathered(q, k, v, extras);
  return untranslated([&] { return std::get<0>(call_attend(from, text_of(how))); });
}

Statistics measure(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const Extras& extras, const Options& how) {
  const Tensors from = gathered(q, k, v, extras);
  return untranslated([&]() -> Statistics {
    const auto [o, lse, concentration, effective, entropy, largest, at, metric] =
        call_measure(from, text_of(how));
    return {o,  or_undefined(lse),   concentration, effective, or_undefined(entropy), largest,
            at, or_undefined(metric)};
  });
}

Watch::Watch(std::function<void(const Seen&)> seen, std::function<void(const Passed&)> passed)
    : seen_(std::move(seen)),
      passed_(std::move(passed)),
      outer_(std::exchange(newest_watch(), this)) {}

Watch::~Watch() { newest_watch() = outer_; }

void Watch::restart() {
  calls_ = 0;
  told_ = -1;
}

Watch* Watch::current() { return newest_watch(); }

at::Tensor Watch::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const Extras& extras, const Options& how) {
  const Unwatched meanwhile;
  const std::int64_t layer = calls_++;
  if (!seen_) return nn::attend(q, k, v, extras, how);
  at::Tensor o;  // with a gradient, where one is asked for
  if (at::GradMode::is_enabled()) o = nn::attend(q, k, v, extras, how);
  const at::NoGradGuard without;
  Seen seen{layer, q, k, v, extras, how, nn::measure(q, k, v, extras, how)};
  if (o.defined()) seen.statistics.o = o;
  seen_(seen);
  return seen.statistics.o;
}

void Watch::pass(const at::Tensor& tokens, const at::Tensor& key_mask) {
  if (!passed_ || told_ == calls_) return;  // a second stack takes what the first one gave
  const Unwatched meanwhile;
  const at::NoGradGuard without;
  told_ = calls_;
  passed_({calls_, tokens, key_mask});
}

}  // namespace foci::nn
