// SPDX-License-Identifier: Apache-2.0
// What nn::attend costs beside the core call it makes: both on the same tensors, in turns, checked
// for the same bits first. Prints one JSON object a shape.
#include <foci/attention.hpp>
#include <foci/executor.hpp>
#include <foci/nn.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

using namespace foci;

View f32(const at::Tensor& x) {
  return View(x.data_ptr(), DType::f32, std::span(x.sizes().data(), x.sizes().size()));
}

/// Microseconds of one call.
template <class F>
double timed(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

double median(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

/// B1 H3 D64, as in a small vision transformer.
void measure(std::int64_t N, const Options& how, const char* metric) {
  const at::Tensor q = at::randn({1, 3, N, 64}), k = at::randn({1, 3, N, 64}),
                   v = at::randn({1, 3, N, 64}), below = at::randn({1, 3, N, 64});
  const bool compares = std::holds_alternative<LayerChange>(how.metric);
  Inputs in{.q = f32(q), .k = f32(k), .v = f32(v)};
  if (compares) in.v_prev = f32(below);
  nn::Extras extras;
  if (compares) extras.v_prev = below;
  const at::Tensor o = at::empty_like(q), lse = at::empty({1, 3, N});
  std::vector<std::byte> workspace(need(in, how).workspace);
  const Call call{.workspace = workspace};
  const auto core = [&] { attend({.o = f32(o), .lse = f32(lse)}, in, how, call); };
  core();
  const bool same = nn::attend(q, k, v, extras, how).equal(o);
  const at::Tensor leaf = q.detach().requires_grad_();  // the same memory
  // One call of each in turns: what moves the machine moves all three, and a call that was
  // interrupted is one of many. The difference within a turn is what nn::attend adds.
  std::vector<double> alone, torch, recorded;
  for (int turn = 0; turn < 3000; ++turn) {
    const double base = timed(core);
    alone.push_back(base);
    torch.push_back(timed([&] { nn::attend(q, k, v, extras, how); }) - base);
    recorded.push_back(timed([&] { nn::attend(leaf, k, v, extras, how); }) - base);
  }
  fmt::print(
      "{{\"shape\": [1, 3, {}, 64], \"metric\": \"{}\", \"same_bits\": {}, \"core_us\": {:.2f}, "
      "\"added_us\": {:.2f}, \"added_recorded_us\": {:.2f}}}\n",
      N, metric, same, median(alone), median(torch), median(recorded));
}

}  // namespace

int main() {
  at::set_num_threads(1);
  for (const std::int64_t N : {16, 64, 197}) {
    measure(N, {}, "dot");
    measure(N, {.metric = LayerChange{}}, "layer-change");
  }
}
