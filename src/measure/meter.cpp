// SPDX-License-Identifier: Apache-2.0
// A model's passes under a watch: row statistics and the likeness of tokens of every sample, and of
// the first ones what needs weights or spectra. Nothing of a batch is kept but sums.
#include "measure/close.hpp"
#include "measure/moments.hpp"

#include <foci/error.hpp>
#include <foci/measure.hpp>
#include <foci/settings.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <variant>

namespace foci::measure {
namespace {

/// Rows that count, (B,H,N): they see a key, are finite, and their token is real.
at::Tensor counted_rows(const nn::Seen& call) {
  const nn::Statistics& s = call.statistics;
  at::Tensor counts = s.largest_at.ge(0).logical_and(s.concentration.isfinite());
  const at::Tensor& mask = call.extras.key_mask;
  if (mask.defined() && call.q.size(2) == call.k.size(2))
    counts = counts.logical_and(mask.unsqueeze(1));
  return counts;
}

/// (B,H): the mean over rows that count, NaN where there are none.
at::Tensor over_rows(const at::Tensor& x, const at::Tensor& counts) {
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor sum = at::where(counts, wide, at::zeros_like(wide)).sum(-1);
  return sum / counts.sum(-1);
}

void check_grid(const Grid& grid, std::int64_t layer, std::int64_t keys) {
  if (grid.height < 0 || grid.width < 0 || grid.leading < 0 || grid.height * grid.width > keys ||
      grid.leading + grid.height * grid.width > keys) {
    throw InvalidArgument(
        fmt::format("layer {} has {} keys, and its grid {} leading tokens and {} x {} others",
                    layer, keys, grid.leading, grid.height, grid.width));
  }
}

}  // namespace

struct Meter::Sums {
  Options how;
  std::int64_t samples = 0;
  TokenMoments embedded;
  std::vector<LayerSums> layers;

  // Of the pass that is going on.
  std::int64_t batch = 0, closely = 0, calls = 0;
  at::Tensor keys_below, product;  // of the closely measured samples; rollout up to here

  LayerSums& layer(std::int64_t index);
  void hear(const nn::Seen& call);
  void hear(const nn::Passed& passed);
  void rows(LayerSums& to, const nn::Seen& call) const;
  void close(LayerSums& to, const nn::Seen& call);
  void metric(LayerSums& to, const nn::Seen& call) const;
};

void QueryMoments::add(std::int64_t number, const at::Tensor& x, const at::Tensor& counts) {
  const std::int64_t H = x.size(1), N = x.size(2);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor sum = at::where(counts, wide, at::zeros_like(wide)).sum(0).cpu();  // (H,N)
  const std::int64_t more = N - (sums_.defined() ? sums_.size(2) : 0);
  if (more > 0) {
    const at::Tensor none = at::zeros({6, H, more}, sum.options());
    sums_ = sums_.defined() ? at::cat({sums_, none}, 2) : none;
    counts_ = counts_.defined() ? at::cat({counts_, none}, 2) : none.clone();
  }
  sums_[number].narrow(1, 0, N).add_(sum);
  counts_[number].narrow(1, 0, N).add_(counts.sum(0).cpu());
}

at::Tensor QueryMoments::means() const { return sums_.defined() ? sums_ / counts_ : at::Tensor(); }

LayerSums& Meter::Sums::layer(std::int64_t index) {
  if (std::size_t(index) < layers.size()) return layers[std::size_t(index)];
  if (samples > 0) {
    throw InvalidArgument(fmt::format(
        "this pass has more than the {} layers of the first one: measure each model by itself",
        layers.size()));
  }
  layers.resize(std::size_t(index) + 1);
  return layers.back();
}

void Meter::Sums::rows(LayerSums& to, const nn::Seen& call) const {
  const nn::Statistics& s = call.statistics;
  const at::Tensor counts = counted_rows(call);
  to.rows.concentration.add(over_rows(s.concentration, counts));
  to.rows.effective_keys.add(over_rows(s.effective_keys, counts));
  to.rows.largest.add(over_rows(s.largest, counts));
  if (s.entropy.defined()) to.rows.entropy.add(over_rows(s.entropy, counts));
  if (!how.queries) return;
  to.by_query.add(0, s.concentration, counts);
  to.by_query.add(1, s.effective_keys, counts);
  if (s.entropy.defined()) to.by_query.add(2, s.entropy, counts);
  to.by_query.add(3, s.largest, counts);
}

void Meter::Sums::metric(LayerSums& to, const nn::Seen& call) const {
  const at::Tensor used = metric_of(call);
  if (!used.defined()) return;
  const bool full = is_full(call.how.metric);
  const bool shared = used.size(0) == 1 && !std::holds_alternative<KeyCovariance>(call.how.metric);
  // Eigenvalues cost too much for every sample.
  const std::int64_t some = full && !shared ? std::min(closely, used.size(0)) : used.size(0);
  if (some == 0) return;
  at::Tensor m = used.narrow(0, 0, some);
  m = m.index_select(0, m.flatten(1).isfinite().all(1).nonzero().squeeze(1));
  if (m.size(0) == 0) return;
  to.health.add(healths(m, full ? Extent::full : Extent::diagonal), shared ? call.q.size(0) : 1);
}

void Meter::Sums::close(LayerSums& to, const nn::Seen& call) {
  const nn::Seen some = samples_of(call, 0, closely);
  const Grid grid = how.grids.empty()
                        ? Grid{}
                        : how.grids[std::min(std::size_t(call.layer), how.grids.size() - 1)];
  check_grid(grid, call.layer, call.k.size(2));
  const bool rolls = call.q.size(2) == call.k.size(2) && call.k.size(2) <= how.rollout &&
                     (call.layer == 0 || (product.defined() && product.size(-1) == call.k.size(2)));
  if (!rolls) product = at::Tensor();
  const std::int64_t row = some.q.size(1) * std::max<std::int64_t>(some.k.size(2), 1);
  const std::int64_t looked =
      std::clamp<std::int64_t>(how.weights / row, 1, std::max<std::int64_t>(some.q.size(2), 1));
  const at::Tensor counts = counted_rows(some);
  const Closely found = look_closely(some, {grid, how.top, counts, looked, rolls}, product);
  to.looked = std::max(to.looked, found.looked);
  to.rows.distance.add(found.distance.means());
  to.rows.top.add(found.top.means());
  if (how.queries) {
    to.by_query.add(4, found.distance.rows, found.distance.counts);
    to.by_query.add(5, found.top.rows, found.top.counts);
  }
  for (const double x : found.head_distance) to.head_distance.add(x);
  for (const double x : found.rollout_keys) to.rollout_keys.add(x);
  if (keys_below.defined() && keys_below.sizes() == some.k.sizes()) {
    for (const double x : key_change(keys_below, some.k, some.extras.key_mask))
      to.key_change.add(x);
  }
  keys_below = some.k;
}

void Meter::Sums::hear(const nn::Seen& call) {
  const std::int64_t B = call.q.size(0);
  if (calls == 0) {
    batch = B;
    closely = how.closely < 0 ? B : std::clamp<std::int64_t>(how.closely - samples, 0, B);
  } else if (B != batch) {
    throw InvalidArgument(
        fmt::format("layer {} has {} samples and the first one {}: a pass must keep its batch",
                    calls, B, batch));
  }
  ++calls;
  LayerSums& to = layer(call.layer);
  if (to.heads == 0) {
    to.heads = call.q.size(1);
    to.mechanism = to_text(settings_of(call.how));
  }
  to.queries = std::max(to.queries, call.q.size(2));
  to.keys = std::max(to.keys, call.k.size(2));
  rows(to, call);
  metric(to, call);
  if (closely > 0 && !call.extras.q_offsets.defined()) close(to, call);
}

void Meter::Sums::hear(const nn::Passed& passed) {
  TokenMoments& to = passed.layers == 0 ? embedded : layer(passed.layers - 1).tokens;
  const Likeness all = likeness(passed.tokens, passed.key_mask);
  const std::int64_t B = passed.tokens.size(0);
  for (std::int64_t b = 0; b < B; ++b) {
    to.cosine.add(all.cosine.data_ptr<double>()[b]);
    to.high_low.add(all.high_low.data_ptr<double>()[b]);
    to.residual.add(all.residual.data_ptr<double>()[b]);
    to.dirichlet.add(all.dirichlet.data_ptr<double>()[b]);
    to.dirichlet_relative.add(all.dirichlet_relative.data_ptr<double>()[b]);
  }
  const std::int64_t some =
      how.closely < 0 ? B : std::clamp<std::int64_t>(how.closely - samples, 0, B);
  for (std::int64_t b = 0; b < some; ++b) {
    at::Tensor x = passed.tokens[b];
    if (passed.key_mask.defined()) x = x.index_select(0, passed.key_mask[b].nonzero().squeeze(1));
    if (x.size(0) == 0) continue;
    SpectrumOptions own = how.spectrum;  // its own vectors, so that errors are independent
    own.seed += std::uint64_t(samples + b);
    const Spectrum of = spectrum(x, own);
    to.effective_rank.add(of.effective_rank);
    to.effective_rank_squares.add(of.effective_rank_squares);
    to.stable_rank.add(of.stable_rank);
    to.participation.add(of.participation);
  }
}

Meter::Meter(const Options& options) : sums_(std::make_unique<Sums>()) {
  if (options.top < 1 || options.rollout < 0 || options.weights < 1) {
    throw InvalidArgument(
        fmt::format("top {}, rollout {} and weights {}; they must be 1, 0 and 1 at least",
                    options.top, options.rollout, options.weights));
  }
  sums_->how = options;
}
Meter::~Meter() = default;
Meter::Meter(Meter&&) noexcept = default;
Meter& Meter::operator=(Meter&&) noexcept = default;

void Meter::add(const std::function<void()>& pass) {
  const at::NoGradGuard without;
  Sums& sums = *sums_;
  sums.calls = sums.batch = sums.closely = 0;
  sums.keys_below = sums.product = at::Tensor();
  const nn::Watch watch([&](const nn::Seen& call) { sums.hear(call); },
                        [&](const nn::Passed& passed) { sums.hear(passed); });
  pass();
  sums.keys_below = sums.product = at::Tensor();
  if (sums.calls == 0) throw InvalidArgument("this pass made no call of attention");
  if (std::size_t(sums.calls) != sums.layers.size()) {
    throw InvalidArgument(fmt::format(
        "this pass has {} layers and the first one had {}: measure each model by itself",
        sums.calls, sums.layers.size()));
  }
  sums.samples += sums.batch;
}

Report Meter::report() const {
  Report report{.samples = sums_->samples, .embedded = sums_->embedded.values(), .layers = {}};
  at::Tensor below;
  for (const LayerSums& sums : sums_->layers) {
    Layer layer{.heads = sums.heads,
                .queries = sums.queries,
                .keys = sums.keys,
                .mechanism = sums.mechanism,
                .rows = sums.rows.of_all(),
                .by_head = {},
                .head_distance = sums.head_distance.value(),
                .rollout_keys = sums.rollout_keys.value(),
                .key_change = sums.key_change.value(),
                .metric = {},
                .metric_error = {},
                .metric_samples = sums.health.samples,
                .tokens = sums.tokens.values(),
                .looked = sums.looked,
                .by_query = sums.by_query.means()};
    for (std::int64_t h = 0; h < sums.heads; ++h) layer.by_head.push_back(sums.rows.of(h));
    if (sums.health.samples > 0) {
      layer.metric = sums.health.value();
      layer.metric_error = sums.health.error();
      layer.metric->drift = drift(below, layer.metric->typical);
      below = layer.metric->typical;
    }
    report.layers.push_back(std::move(layer));
  }
  return report;
}

std::vector<Grid> grids_of(const models::VitOptions& options) {
  const std::int64_t side = options.image / options.patch;
  return {{1, side, side}};
}

std::vector<Grid> grids_of(const models::SegmenterOptions& options) {
  const Grid grid = grids_of(options.encoder)[0];
  std::vector<Grid> all(std::size_t(options.encoder.depth), grid);
  all.push_back({0, grid.height, grid.width});  // patches first, then a token for each class
  return all;
}

Report images(const std::function<at::Tensor(const at::Tensor&)>& model, const at::Tensor& images,
              const Options& options, std::int64_t batch) {
  if (images.dim() != 4 || images.size(0) < 1 || batch < 1) {
    throw InvalidArgument(
        fmt::format("images of shape {} in batches of {}; they must be (count, channels, height, "
                    "width) and 1 or more",
                    to_string(std::span(images.sizes())), batch));
  }
  Meter meter(options);
  for (std::int64_t i = 0; i < images.size(0); i += batch) {
    meter.add([&] { model(images.slice(0, i, std::min(i + batch, images.size(0)))); });
  }
  return meter.report();
}

}  // namespace foci::measure
