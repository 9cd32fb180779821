// SPDX-License-Identifier: Apache-2.0
// What a language model is for: text that goes on, and how well a text is foreseen.
#include <foci/error.hpp>
#include <foci/language.hpp>
#include <foci/random.hpp>

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace foci::models {
namespace {

/// (1,n) on the model's device, a copy.
at::Tensor row_of(std::span<const std::int32_t> tokens, LanguageImpl& model) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= model.options().vocabulary) {
      throw InvalidArgument(
          fmt::format("token {} of a vocabulary of {}", token, model.options().vocabulary));
    }
  }
  return at::from_blob(const_cast<std::int32_t*>(tokens.data()), {1, std::int64_t(tokens.size())},
                       at::kInt)
      .to(model.embed->weight.device(), at::kLong);
}

/// Draws from softmax(logits / temperature), cut to the likeliest that have top_p together.
std::int32_t drawn(const at::Tensor& logits, const Sampling& how, data::Random& random) {
  const at::Tensor wide = logits.to(at::kCPU, at::kDouble).contiguous();
  const std::span<const double> x(wide.data_ptr<double>(), std::size_t(wide.numel()));
  const auto top = std::max_element(x.begin(), x.end());
  if (how.temperature == 0) return std::int32_t(top - x.begin());
  std::vector<double> p(x.size());
  std::transform(x.begin(), x.end(), p.begin(),
                 [&](double value) { return std::exp((value - *top) / how.temperature); });
  std::vector<std::int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return p[std::size_t(a)] > p[std::size_t(b)];
  });
  const double all = std::accumulate(p.begin(), p.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < how.top_p * all))
    kept += p[std::size_t(order[count++])];
  double left = random.uniform() * kept;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= p[std::size_t(order[i])];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

/// Tokens [begin, end) foresee those after them; a window before has done so with `known` of them.
struct Window {
  std::int64_t begin, end, known;
  bool fits(const Window& other) const {
    return end - begin == other.end - other.begin && known == other.known;
  }
};

/// Tokens, and those of them that do not count.
struct Text {
  std::span<const std::int32_t> tokens;
  std::span<const std::uint8_t> left_out;
};

/// The sum of -log p over what these windows, which have one shape, foresee.
double loss_of(LanguageImpl& model, const Text& text, std::span<const Window> windows) {
  constexpr std::int64_t unseen = -100;  // a target that cross_entropy_loss passes over
  std::vector<at::Tensor> rows;
  for (const Window& w : windows)
    rows.push_back(row_of(text.tokens.subspan(w.begin, w.end + 1 - w.begin), model));
  const at::Tensor all = at::cat(rows);
  const std::int64_t known = windows[0].known;
  const at::Tensor states = model.states(all.slice(1, 0, all.size(1) - 1)).slice(1, known);
  const at::Tensor logits = model.logits(states).flatten(0, 1).to(at::kFloat);
  at::Tensor targets = all.slice(1, known + 1).flatten();
  if (!text.left_out.empty()) {
    std::vector<at::Tensor> out;
    for (const Window& w : windows) {
      const auto some = text.left_out.subspan(w.begin + known + 1, w.end - w.begin - known);
      out.push_back(at::tensor(std::vector<std::int64_t>(some.begin(), some.end())));
    }
    targets = targets.masked_fill(at::cat(out).to(targets.device()).ne(0), unseen);
  }
  return at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum).item<double>();
}

/// Evaluation mode for a while.
struct Evaluating {
  explicit Evaluating(LanguageImpl& model) : model(model), was(model.is_training()) {
    model.eval();
  }
  ~Evaluating() { model.train(was); }
  LanguageImpl& model;
  bool was;
};

}  // namespace

std::int64_t generate(Language& model, std::span<const std::int32_t> prompt, const Sampling& how,
                      const std::function<bool(std::int32_t)>& take) {
  const std::int64_t context = model->options().context, given = std::int64_t(prompt.size());
  if (given < 1) throw InvalidArgument("an empty prompt; it must have at least one token");
  if (given > context) {
    throw InvalidArgument(
        fmt::format("a prompt of {} tokens; the model's context is {}", given, context));
  }
  if (!(how.temperature >= 0) || !std::isfinite(how.temperature)) {
    throw InvalidArgument(
        fmt::format("temperature is {:g}; it must be 0 or more", how.temperature));
  }
  if (!(how.top_p > 0 && how.top_p <= 1))
    throw InvalidArgument(fmt::format("top_p is {:g}; it must lie in (0, 1]", how.top_p));
  const at::NoGradGuard without;
  const Evaluating now(*model);
  const std::int64_t most = std::min(how.tokens, context - given + 1);
  LanguageCache cache(context);
  data::Random random(how.seed);
  at::Tensor next = row_of(prompt, *model);
  for (std::int64_t made = 0; made < most; ++made) {
    const at::Tensor last = model->step(next, cache).select(1, -1);
    const std::int32_t token = drawn(model->logits(last).squeeze(0), how, random);
    if (!take(token)) return made + 1;
    next = row_of(std::span(&token, 1), *model);
  }
  return std::max<std::int64_t>(most, 0);
}

double Perplexity::perplexity() const { return std::exp(loss); }

double Perplexity::bits_per_byte(std::int64_t bytes) const {
  return loss * double(counted) / std::log(2.0) / double(bytes);
}

Perplexity perplexity(Language& model, std::span<const std::int32_t> tokens, std::int64_t window,
                      std::int64_t stride, std::span<const std::uint8_t> left_out,
                      const PerplexityPart& part) {
  const std::int64_t context = model->options().context;
  if (window < 1 || window > context || stride < 1 || stride > window) {
    throw InvalidArgument(
        fmt::format("windows of {} tokens every {}; it must be 1 <= stride <= window <= {}", window,
                    stride, context));
  }
  const std::int64_t last = std::int64_t(tokens.size()) - 1;  // tokens that are foreseen
  if (last < 1) throw InvalidArgument("a text of fewer than two tokens has no perplexity");
  if (!left_out.empty() && left_out.size() != tokens.size())
    throw InvalidArgument(fmt::format("{} tokens, and {} numbers that say which of them count",
                                      tokens.size(), left_out.size()));
  const at::NoGradGuard without;
  const Evaluating now(*model);
  Perplexity result;
  std::vector<Window> windows;
  for (std::int64_t begin = 0; result.counted < last; begin += stride) {
    const std::int64_t end = std::min(begin + window, last);
    windows.push_back({begin, end, result.counted - begin});
    result.counted = end;
  }
  constexpr std::int64_t at_once = 2048;  // foreseen; with 50,000 words their logits are 400 MB
  constexpr std::int64_t read_at_once = 8 * at_once;
  const auto most =
      std::size_t(std::max<std::int64_t>(1, std::min(at_once / stride, read_at_once / window)));
  double sum = 0;
  const Range own = part.share.of(std::int64_t(windows.size()));
  const auto mine = std::span(windows).subspan(std::size_t(own.first), std::size_t(own.count()));
  for (std::size_t first = 0, size = 0; first < mine.size(); first += size) {
    const auto rest = mine.subspan(first);
    for (size = 1; size < std::min(most, rest.size()) && rest[size].fits(rest[0]);) ++size;
    sum += loss_of(*model, {tokens, left_out}, rest.first(size));
    if (part.alive) part.alive();
  }
  if (!left_out.empty()) {
    result.counted -= std::int64_t(std::count_if(left_out.begin() + 1, left_out.end(),
                                                 [](std::uint8_t out) { return out != 0; }));
    if (result.counted < 1) throw InvalidArgument("no token of the text is left to be foreseen");
  }
  result.loss = sum / double(result.counted);
  return result;
}

}  // namespace foci::models
