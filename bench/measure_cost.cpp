// SPDX-License-Identifier: Apache-2.0
// measure_cost [IMAGES]: what measuring a model costs beside evaluating it: DeiT-tiny with random
// weights over made images, every batch once plainly and once under a meter, in turns, by processor
// time. Prints one JSON object a metric.
#include <foci/measure.hpp>
#include <foci/models.hpp>
#include <foci/settings.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

namespace {

using namespace foci;

struct Spent {
  double processor = 0, clock = 0;  // seconds
};

double processor_time() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return double(use.ru_utime.tv_sec) + 1e-6 * double(use.ru_utime.tv_usec);
}

template <class F>
void spend(Spent& on, F&& f) {
  const double before = processor_time();
  const auto begin = std::chrono::steady_clock::now();
  f();
  on.processor += processor_time() - before;
  on.clock += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure_cost(const char* metric, std::int64_t count) {
  constexpr std::int64_t batch = 50;
  const at::NoGradGuard without;
  at::manual_seed(0);
  models::VitOptions o = models::find("deit_tiny_patch16_224").vit;
  o.mechanism.words = {{"metric", metric}};
  models::Vit vit(o);
  vit->eval();
  const at::Tensor images = at::randn({batch, 3, 224, 224});
  vit->forward(images.slice(0, 0, 8));  // what is made once
  measure::Meter warm({.closely = 1}), meter({.grids = measure::grids_of(o)});
  warm.add([&] { vit->forward(images.slice(0, 0, 4)); });
  Spent plain, measured;
  for (std::int64_t i = 0; i < count; i += batch) {
    const auto pass = [&] { vit->forward(images); };
    const bool first = i / batch % 2 == 0;
    if (first) spend(plain, pass);
    spend(measured, [&] { meter.add(pass); });
    if (!first) spend(plain, pass);
  }
  fmt::print(
      "{{\"model\": \"deit_tiny_patch16_224\", \"metric\": \"{}\", \"images\": {}, \"threads\": "
      "{}, "
      "\"plain_seconds\": {:.2f}, \"measured_seconds\": {:.2f}, \"ratio\": {:.3f}, "
      "\"clock_ratio\": {:.3f}}}\n",
      metric, meter.report().samples, at::get_num_threads(), plain.processor, measured.processor,
      measured.processor / plain.processor, measured.clock / plain.clock);
}

}  // namespace

int main(int count, char** words) {
  const std::int64_t images = count > 1 ? std::atoll(words[1]) : 1000;
  measure_cost("dot", images);
  measure_cost("layer-change", images);
}
