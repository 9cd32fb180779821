// SPDX-License-Identifier: Apache-2.0
// Rows of weights as plain numbers, of a head, of the mean of all, and under dot.
#include "cli/torch/attention_view.hpp"

#include <foci/error.hpp>

#include <ATen/core/grad_mode.h>

#include <fmt/core.h>

#include <algorithm>
#include <type_traits>
#include <variant>

namespace foci::cli {
namespace {

constexpr std::int64_t most_rolled = 1024;

Numbers numbers_of(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kCPU, at::kDouble).contiguous();
  const double* first = wide.data_ptr<double>();
  return {first, first + wide.numel()};
}

bool full_metric(const Metric& metric) {
  const auto* given = std::get_if<Given>(&metric);
  return std::holds_alternative<KeyCovariance>(metric) ||
         (given != nullptr && given->extent == Extent::full);
}

Form form_in(const Metric& metric) {
  if (full_metric(metric)) return Form::distance;
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.form; }) return m.form;
        return Form::product;
      },
      metric);
}

/// (D) or (D,D) of one head and query; empty for dot.
Numbers metric_in(const nn::Seen& call, std::int64_t head, std::int64_t query) {
  const at::Tensor metric =
      std::holds_alternative<Given>(call.how.metric) ? call.extras.metric : call.statistics.metric;
  if (!metric.defined() || metric.numel() == 0) return {};
  at::Tensor own = metric[0][head * metric.size(1) / call.q.size(1)];
  if (!full_metric(call.how.metric)) return numbers_of(own[own.size(0) == 1 ? 0 : query]);
  if (own.dim() == 3) {  // a P for each chunk of the prefix, by the unmasked keys before the query
    const auto* estimate = std::get_if<KeyCovariance>(&call.how.metric);
    const std::int64_t M = call.k.size(2);
    std::int64_t before = std::clamp<std::int64_t>(query + M - call.q.size(2), 0, M);
    if (call.extras.key_mask.defined())
      before = call.extras.key_mask[0].narrow(0, 0, before).sum().item<std::int64_t>();
    const std::int64_t chunk = estimate == nullptr ? 0 : before / estimate->period;
    own = own[std::clamp<std::int64_t>(chunk, 0, own.size(0) - 1)];
  }
  return numbers_of(own);
}

/// Which keys the query may see.
std::vector<bool> seen_by(const nn::Seen& call, std::int64_t query) {
  const std::int64_t M = call.k.size(2), last = query + M - call.q.size(2);
  std::vector<bool> seen(std::size_t(M), true);
  for (std::int64_t j = 0; j < M; ++j) {
    const bool masked = call.extras.key_mask.defined() && !call.extras.key_mask[0][j].item<bool>();
    seen[std::size_t(j)] = !masked && (!call.how.causal || j <= last);
  }
  return seen;
}

nn::Seen under_dot(const nn::Seen& call) {
  nn::Seen plain = call;
  plain.how.metric = Dot{};
  plain.how.scale = {};
  plain.extras.metric = at::Tensor();
  plain.statistics.metric = at::Tensor();
  return plain;
}

}  // namespace

measure::Grid grid_at(const std::vector<measure::Grid>& grids, std::int64_t layer) {
  if (grids.empty()) return {};
  return grids[std::min(std::size_t(layer), grids.size() - 1)];
}

AttentionView::AttentionView(const std::function<void()>& pass) {
  const at::NoGradGuard without;
  const nn::Watch watch([&](const nn::Seen& call) { calls_.push_back(call); });
  pass();
  if (calls_.empty()) throw InvalidArgument("a pass without attention; pictures need a layer");
  if (calls_[0].q.size(0) != 1)
    throw InvalidArgument(
        fmt::format("a pass of {} samples; pictures are of one", calls_[0].q.size(0)));
}

std::string AttentionView::metric(std::int64_t layer) const {
  return std::visit([](const auto& m) { return std::string(m.name); },
                    calls_[std::size_t(layer)].how.metric);
}

Numbers AttentionView::row_of(const nn::Seen& call, std::int64_t head, std::int64_t query) const {
  const at::NoGradGuard without;
  const at::Tensor a =
      measure::weights(call, {.sample = 0, .head = head, .first = query, .count = 1}).abs();
  return numbers_of(a[0].mean(0)[0]);
}

Numbers AttentionView::row(std::int64_t layer, std::int64_t head, std::int64_t query) const {
  return row_of(calls_[std::size_t(layer)], head, query);
}

Numbers AttentionView::plain_row(std::int64_t layer, std::int64_t head, std::int64_t query) const {
  return row_of(under_dot(calls_[std::size_t(layer)]), head, query);
}

Numbers AttentionView::square(std::int64_t layer, std::int64_t head, std::int64_t first,
                              std::int64_t count) const {
  const at::NoGradGuard without;
  const at::Tensor a = measure::weights(
      calls_[std::size_t(layer)], {.sample = 0, .head = head, .first = first, .count = count});
  return numbers_of(a[0].abs().mean(0).narrow(1, first, count));
}

/// Of layers that have the same tokens; undefined where maps are not square, or too large.
at::Tensor AttentionView::rolled(std::int64_t first, std::int64_t last) const {
  std::vector<at::Tensor> maps;
  for (std::int64_t l = first; l <= last; ++l) {
    if (queries(l) != keys(l) || keys(l) > most_rolled || keys(l) != keys(first)) return {};
    maps.push_back(measure::weights(calls_[std::size_t(l)])[0]);
  }
  return measure::rollout(maps);
}

Numbers AttentionView::rollout_row(std::int64_t layer, std::int64_t query,
                                   const std::vector<measure::Grid>& grids) const {
  const at::NoGradGuard without;
  std::int64_t first = 0;  // of the layers with this layer's tokens
  for (std::int64_t l = 1; l <= layer; ++l) first = keys(l) == keys(l - 1) ? first : l;
  at::Tensor product = rolled(first, layer);
  if (!product.defined() || first == 0)
    return product.defined() ? numbers_of(product[query]) : Numbers();
  const measure::Grid above = grid_at(grids, first), below = grid_at(grids, first - 1);
  const at::Tensor under = rolled(0, first - 1);
  const std::int64_t patches = above.height * above.width;
  if (!under.defined() || patches == 0 || patches != below.height * below.width) return {};
  return numbers_of(product[query]
                        .narrow(0, above.leading, patches)
                        .matmul(under.narrow(0, below.leading, patches)));
}

std::vector<report::Plane> AttentionView::planes(std::int64_t layer, std::int64_t head,
                                                 std::int64_t query) const {
  const nn::Seen& call = calls_[std::size_t(layer)];
  const std::int64_t D = call.q.size(3), group = head * call.k.size(1) / call.q.size(1);
  const Numbers q = numbers_of(call.q[0][head][query]), all = numbers_of(call.k[0][group]);
  const Numbers m = metric_in(call, head, query);
  const std::vector<bool> visible = seen_by(call, query);
  if (std::find(visible.begin(), visible.end(), true) == visible.end()) return {};
  const auto plane_under = [&](const nn::Seen& seen, const Numbers& metric, std::string name) {
    const Numbers row = row_of(seen, head, query);
    Numbers keys, weights;
    for (std::size_t j = 0; j < row.size(); ++j) {
      if (!visible[j]) continue;
      weights.push_back(row[j]);
      keys.insert(keys.end(), all.begin() + std::ptrdiff_t(j) * D,
                  all.begin() + std::ptrdiff_t(j + 1) * D);
    }
    return report::plane_of({.name = std::move(name),
                             .D = D,
                             .query = q,
                             .keys = keys,
                             .weights = weights,
                             .metric = metric,
                             .axes = m,
                             .form = form_in(seen.how.metric)});
  };
  std::vector<report::Plane> planes;
  if (!m.empty()) planes.push_back(plane_under(under_dot(call), {}, "under dot"));
  planes.push_back(plane_under(call, m, metric(layer)));
  return planes;
}

}  // namespace foci::cli
