// SPDX-License-Identifier: Apache-2.0
// Gradients in buckets: one flat tensor each, whose slices become the parameters' gradients. A hook
// behind each parameter copies its gradient in; a bucket that is full is sent on its way once those
// before it are, so that all ranks send in the same order.
#include <foci/dist.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>

namespace foci::dist {
namespace {

constexpr std::int64_t first_bucket_bytes = std::int64_t(1) << 20;  // sent while most is still made

struct Slot {
  at::Tensor parameter, slice;
  std::size_t bucket = 0;
  bool here = false;
};

struct Bucket {
  at::Tensor flat;
  std::int64_t count = 0, missing = 0;
  double begun = 0, done = 0;
  Group::Pending pending;
};

using Clock = std::chrono::steady_clock;

using Hook = torch::autograd::utils::LambdaPostHook;
using Variables = std::vector<torch::autograd::Variable>;

}  // namespace

struct Gradients::Inside {
  Group& group;
  std::vector<Slot> slots;
  std::vector<Bucket> buckets;
  at::Tensor used;  // of each slot, how many ranks have a gradient; the last bucket's tail
  /// A pointer that shares; which kind depends on torch's version.
  using Node = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  std::vector<std::pair<Node, std::uintptr_t>> hooks;
  std::size_t sent = 0;
  bool armed = false;
  Clock::time_point start;

  double now() const { return std::chrono::duration<double>(Clock::now() - start).count(); }

  explicit Inside(Group& g) : group(g) {}

  /// Which slot is in which bucket.
  void divide(std::int64_t bucket_bytes) {
    std::int64_t bytes = 0, most = std::min(first_bucket_bytes, bucket_bytes);
    for (Slot& slot : slots) {
      const at::Tensor& p = slot.parameter;
      const auto size = p.numel() * std::int64_t(p.element_size());
      const bool other =
          !buckets.empty() &&
          slots[std::size_t(&slot - slots.data()) - 1].parameter.scalar_type() != p.scalar_type();
      if (buckets.empty() || other || (bytes > 0 && bytes + size > most)) {
        if (!buckets.empty()) most = bucket_bytes;
        buckets.emplace_back();
        bytes = 0;
      }
      bytes += size;
      slot.bucket = buckets.size() - 1;
      buckets.back().count += p.numel();
    }
  }

  void make_room() {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const auto own = std::find_if(slots.begin(), slots.end(),
                                    [&](const Slot& slot) { return slot.bucket == b; });
      const std::int64_t tail = b + 1 == buckets.size() ? std::int64_t(slots.size()) : 0;
      buckets[b].flat = at::zeros({buckets[b].count + tail}, own->parameter.options());
      if (tail > 0) used = buckets[b].flat.slice(0, buckets[b].count);
      std::int64_t at = 0;
      for (Slot& slot : slots) {
        if (slot.bucket != b) continue;
        slot.slice =
            buckets[b].flat.slice(0, at, at + slot.parameter.numel()).view(slot.parameter.sizes());
        at += slot.parameter.numel();
      }
    }
  }

  void listen() {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto node = torch::autograd::impl::grad_accumulator(slots[i].parameter);
      const auto key = node->add_post_hook(
          std::make_unique<Hook>([this, i](const Variables& outputs, const Variables&) {
            if (armed) put(i);
            return outputs;
          }));
      hooks.emplace_back(node, key);
    }
  }

  void put(std::size_t i) {
    Slot& slot = slots[i];
    if (slot.here || !slot.parameter.grad().defined()) return;
    const at::NoGradGuard without;
    slot.slice.copy_(slot.parameter.grad());
    slot.here = true;
    --buckets[slot.bucket].missing;
    send_full();
  }

  void send_full() {
    while (sent < buckets.size() && buckets[sent].missing == 0) {
      Bucket& bucket = buckets[sent++];
      if (sent == buckets.size()) {
        const at::NoGradGuard without;
        at::Tensor own = at::zeros({std::int64_t(slots.size())}, used.options().device(at::kCPU));
        for (std::size_t i = 0; i < slots.size(); ++i) {
          if (slots[i].here) own[std::int64_t(i)].fill_(1);
        }
        used.copy_(own);
      }
      bucket.begun = now();
      bucket.pending = group.sum_soon(bucket.flat);
      bucket.pending.then([this, &bucket] { bucket.done = now(); });
    }
  }
};

Gradients::Gradients(Group& group, const torch::nn::Module& module, std::int64_t bucket_bytes)
    : inside_(std::make_unique<Inside>(group)) {
  const auto parameters = module.parameters();
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    if (p->requires_grad()) inside_->slots.push_back({*p, {}, 0, false});
  }
  if (inside_->slots.empty()) throw InvalidArgument("a module without parameters to be trained");
  inside_->divide(bucket_bytes);
  inside_->make_room();
  inside_->listen();
}

Gradients::~Gradients() {
  for (const auto& [node, key] : inside_->hooks) node->del_post_hook(key);
}

std::vector<Gradients::Sent> Gradients::buckets() const {
  std::vector<Sent> all;
  for (const Bucket& b : inside_->buckets)
    all.push_back({b.flat.numel() * std::int64_t(b.flat.element_size()), b.begun, b.done});
  return all;
}

void Gradients::begin() {
  for (Bucket& bucket : inside_->buckets) bucket.missing = 0;
  for (Slot& slot : inside_->slots) {
    slot.here = false;
    ++inside_->buckets[slot.bucket].missing;
  }
  inside_->sent = 0;
  inside_->armed = true;
  inside_->start = Clock::now();
}

void Gradients::finish() {
  Inside& in = *inside_;
  in.armed = false;
  const at::NoGradGuard without;
  for (Slot& slot : in.slots) {
    if (slot.here) continue;
    // An earlier part of the step may have had one.
    const at::Tensor& own = slot.parameter.grad();
    own.defined() ? slot.slice.copy_(own) : slot.slice.zero_();
    slot.here = own.defined();
    --in.buckets[slot.bucket].missing;
  }
  in.send_full();
  for (Bucket& bucket : in.buckets) bucket.pending.wait();
  const at::Tensor counts = in.group.fetched(in.used).to(at::kFloat);
  for (std::size_t i = 0; i < in.slots.size(); ++i) {
    const bool somewhere = counts.data_ptr<float>()[i] > 0;
    in.slots[i].parameter.mutable_grad() = somewhere ? in.slots[i].slice : at::Tensor();
  }
}

}  // namespace foci::dist
