// SPDX-License-Identifier: Apache-2.0
// Attention over sequences that are split over ranks is attention over the whole: every metric,
// full and causal, with holes in the mask and parts of different lengths, forward and backward.
#include "dist/ranks.hpp"

#include "thrown.hpp"

#include <foci/context.hpp>
#include <foci/nn.hpp>
#include <foci/run.hpp>

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <linux/tcp.h>

namespace {

using namespace dist_test;
using foci::Options;
using foci::dist::Group;

constexpr std::int64_t B = 2, H = 4, G = 2, N = 23, D = 3;

enum class Mask { none, holes };

struct Case {
  std::string name;
  Options how;
  Mask mask = Mask::none;
};

/// Leaves of the whole sequence, the same everywhere.
struct Whole {
  at::Tensor q, k, v, v_prev, mask, metric, w;

  explicit Whole(const Case& c) {
    at::manual_seed(5);
    const auto leaf = [](at::Tensor x) { return x.set_requires_grad(true); };
    q = leaf(at::randn({B, H, N, D}, at::kDouble));
    k = leaf(at::randn({B, G, N, D}, at::kDouble) + 3);
    v = leaf(at::randn({B, G, N, D}, at::kDouble));
    v_prev = leaf(at::randn({B, G, N, D}, at::kDouble));
    w = at::randn({B, H, N, D}, at::kDouble);
    if (c.mask == Mask::holes) {
      mask = at::rand({B, N}).gt(0.3);
      mask[0].slice(0, 0, 9).fill_(false);  // all of a first rank, of three
    }
    if (const auto* given = std::get_if<foci::Given>(&c.how.metric)) {
      const bool full = given->extent == foci::Extent::full;
      const at::Tensor x = at::rand({B, G, full ? D : 1, D}, at::kDouble) + 0.2;
      metric = leaf(full ? at::matmul(x, x.transpose(2, 3)).detach() : x);
    }
  }
};

at::Tensor gradient_of(const at::Tensor& x) { return x.defined() ? x.grad() : at::Tensor(); }

std::vector<at::Tensor> whole_gradients(const Case& c, Whole& of) {
  foci::nn::Extras extras;
  if (of.mask.defined()) extras.key_mask = of.mask;
  if (of.metric.defined()) extras.metric = of.metric;
  const bool compares = std::holds_alternative<foci::LayerChange>(c.how.metric) ||
                        std::holds_alternative<foci::Flat>(c.how.metric);
  if (compares) extras.v_prev = of.v_prev;
  const at::Tensor o = foci::nn::attend(of.q, of.k, of.v, extras, c.how);
  (o * of.w).sum().backward();
  return {o.detach(),  of.q.grad(),      of.k.grad(),
          of.v.grad(), of.v_prev.grad(), gradient_of(of.metric)};
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) {
    const at::Tensor& other = a.defined() ? a : b;
    return other.defined() ? other.abs().max().item<double>() : 0;
  }
  return (a - b).abs().max().item<double>() / (1 + b.abs().max().item<double>());
}

/// 0 when this rank's part is that of the whole.
int agrees(Group& group, const Case& c) {
  Whole whole(c), again(c);
  const auto expected = whole_gradients(c, whole);
  const foci::Range own = group.share().of(N);
  const auto mine = [&](const at::Tensor& x) {
    return x.defined() ? x.slice(2, own.first, own.end) : x;
  };
  foci::dist::Tokens tokens{mine(again.q), mine(again.k), mine(again.v)};
  tokens.v_prev = mine(again.v_prev);
  tokens.metric = again.metric;
  if (again.mask.defined()) tokens.key_mask = again.mask.slice(1, own.first, own.end);
  const at::Tensor o = foci::dist::attend(group, tokens, c.how);
  (o * mine(again.w)).sum().backward();
  std::vector<at::Tensor> found = {o.detach(),     again.q.grad(),      again.k.grad(),
                                   again.v.grad(), again.v_prev.grad(), gradient_of(again.metric)};
  if (found[5].defined()) {  // each rank's part; of P what is symmetric
    const at::Tensor all = found[5].contiguous().clone();
    group.sum(all);
    found[5] = all.size(2) == D ? (all + all.transpose(2, 3)) / 2 : all;
  }
  const char* names[] = {"o", "dq", "dk", "dv", "dv_prev", "dmetric"};
  int bad = 0;
  for (int i = 0; i < 6; ++i) {
    const at::Tensor a = i == 0 || i == 5 ? found[std::size_t(i)] : mine(found[std::size_t(i)]);
    const at::Tensor b = i == 5 ? expected[5] : mine(expected[std::size_t(i)]);
    const double off = apart(a, b);
    if (off < 1e-9) continue;
    ++bad;
    std::fprintf(stderr, "rank %d of %d, %s: %s is off by %g\n", group.rank(), group.size(),
                 c.name.c_str(), names[i], off);
  }
  return bad;
}

/// Every metric, each with its forms and gradients.
std::vector<std::pair<std::string, Options>> metrics() {
  using namespace foci;
  const auto with = [](Metric metric, MetricGrad grad = MetricGrad::standard) {
    Options how;
    how.metric = metric;
    how.metric_grad = grad;
    return how;
  };
  constexpr Form distance = Form::distance;
  constexpr auto through = MetricGrad::through;
  return {{"dot", with(Dot{})},
          {"dot distance", with(Dot{distance})},
          {"layer-change", with(LayerChange{})},
          {"layer-change through", with(LayerChange{}, through)},
          {"layer-change mean", with(LayerChange{.normalize = Normalize::mean}, through)},
          {"layer-change none", with(LayerChange{.normalize = Normalize::none}, through)},
          {"layer-change distance", with(LayerChange{.form = distance}, through)},
          {"flat", with(Flat{}, through)},
          {"jacobian", with(Jacobian{})},
          {"jacobian distance", with(Jacobian{.form = distance})},
          {"key-covariance", with(KeyCovariance{.prior = 2, .period = 4})},
          {"key-covariance detached",
           with(KeyCovariance{.prior = 2, .period = 4}, MetricGrad::detached)},
          {"random", with(Random{.seed = 3})},
          {"given", with(Given{})},
          {"given distance", with(Given{.form = distance})},
          {"given full", with(Given{.extent = Extent::full})}};
}

int all_agree() {
  foci::train::use_threads(1);
  Group group({.standing = *foci::dist::standing()});
  int bad = 0;
  for (const auto& [name, options] : metrics()) {
    for (const bool causal : {false, true}) {
      for (const Mask mask : {Mask::none, Mask::holes}) {
        Case c{name + (causal ? ", causal" : "") + (mask == Mask::holes ? ", holes" : ""), options,
               mask};
        c.how.causal = causal;
        bad += agrees(group, c);
      }
    }
  }
  return std::min(bad, 100);
}

TEST(Context, IsTheWholeForEveryMetric) {
  for (const int size : {1, 2, 3, 5})
    EXPECT_EQ(in_ranks(size, all_agree), std::vector<int>(std::size_t(size), 0)) << size;
}

/// f32, near what one rank computes in f32.
int single_agrees() {
  foci::train::use_threads(1);
  Group group({.standing = *foci::dist::standing()});
  at::manual_seed(2);
  const at::Tensor q = at::randn({1, 2, 300, 8}), k = at::randn({1, 2, 300, 8}),
                   v = at::randn({1, 2, 300, 8});
  const foci::Range own = group.share().of(300);
  const auto mine = [&](const at::Tensor& x) { return x.slice(2, own.first, own.end); };
  Options how;
  how.metric = foci::KeyCovariance{.prior = 8};
  how.causal = true;
  const at::Tensor o = foci::dist::attend(group, {mine(q), mine(k), mine(v)}, how);
  return apart(o, mine(foci::nn::attend(q, k, v, {}, how))) < 1e-5 ? 0 : 1;
}

TEST(Context, InSinglePrecision) {
  EXPECT_EQ(in_ranks(2, single_agrees), (std::vector<int>{0, 0}));
}

/// Counts are signed in some versions of torch.
template <class Count>
Count count_of(void (c10::MemoryReportingInfoBase::*)(void*, std::int64_t, Count, Count,
                                                      c10::Device));
using Count = decltype(count_of(&c10::MemoryReportingInfoBase::reportMemoryUsage));

/// The bytes of the tensors that live at once, at most.
class Peak : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, Count, Count, c10::Device) override {
    held_ += size;
    most_ = std::max(most_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  double most() const { return double(most_); }

 private:
  std::int64_t held_ = 0, most_ = 0;
};

/// What a call and its gradient add to this rank's tensors, at most, with n tokens here.
double added_bytes(Group& group, const Options& how, std::int64_t n) {
  const auto leaf = [n] { return at::randn({1, 1, n, 8}).set_requires_grad(true); };
  const foci::dist::Tokens tokens{leaf(), leaf(), leaf(), leaf()};
  const auto peak = std::make_shared<Peak>();
  const c10::DebugInfoGuard counts(c10::DebugInfoKind::PROFILER_STATE, peak);
  foci::dist::attend(group, tokens, how).sum().backward();
  return peak->most();
}

/// Twice the tokens take twice the memory; the weights of a block would take four times.
int memory_is_linear() {
  foci::train::use_threads(1);
  Group group({.standing = *foci::dist::standing()});
  int bad = 0;
  for (const auto& [name, options] : metrics()) {
    if (name != "dot" && name != "layer-change through" && name != "jacobian" &&
        name != "key-covariance")
      continue;
    Options how = options;
    how.causal = name != "dot";
    if (auto* metric = std::get_if<foci::KeyCovariance>(&how.metric)) metric->period = 64;
    const double half = added_bytes(group, how, 1024), whole = added_bytes(group, how, 2048);
    const double weights_of_a_block = 4.0 * 2048 * 2048;
    if (half > 4 * 8 * 1024 && whole < 2.1 * half && whole < weights_of_a_block * 0.75) continue;
    ++bad;
    std::fprintf(stderr, "%s: %.1f and %.1f MB with 1024 and 2048 tokens a rank\n", name.c_str(),
                 half / 1e6, whole / 1e6);
  }
  return bad;
}

TEST(Context, MemoryGrowsWithARanksOwnTokens) {
  EXPECT_EQ(in_ranks(2, memory_is_linear), (std::vector<int>{0, 0}));
}

using End = decltype(::getsockname);

bool is_at_store(int file, End* end) {
  sockaddr_in6 place{};  // as large as either; both have the port at the same place
  socklen_t size = sizeof place;
  return end(file, reinterpret_cast<sockaddr*>(&place), &size) == 0 &&
         ntohs(place.sin6_port) == foci::dist::standing()->port;
}

/// What this process's connections to other ranks have sent so far, as the system counts it.
double bytes_sent() {
  double all = 0;
  for (int file = 0; file < 1024; ++file) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
        !is_at_store(file, ::getsockname) && !is_at_store(file, ::getpeername))
      all += double(info.tcpi_bytes_sent - info.tcpi_bytes_retrans);
  }
  return all;
}

/// Of one call, forward and backward; all have come there before they are counted.
double bytes_of_a_call(Group& group, const Options& how, std::int64_t n) {
  const auto leaf = [n] { return at::randn({1, 2, n, 8}).set_requires_grad(true); };
  const foci::dist::Tokens tokens{leaf(), leaf(), leaf()};
  group.sum({0.0});
  const double before = bytes_sent();
  foci::dist::attend(group, tokens, how).sum().backward();
  group.sum({0.0});
  return bytes_sent() - before;
}

/// The model of docs/scale.md: forward all blocks but one's own, backward all with gradients, and
/// for jacobian two rings more in f64.
int sends_what_the_model_says() {
  foci::train::use_threads(1);
  Group group({.standing = *foci::dist::standing()});
  constexpr double H = 2, n = 1024, D = 8;
  const double K = group.size(), block = H * n * (2 * D + 1), both = H * n * (3 * D + 1);
  const double dot = 4 * block * (K - 1) + 2 * 4 * block * K;
  const double jacobian = dot + 8 * (block + both) * (K - 1);
  Options with_jacobian;
  with_jacobian.metric = foci::Jacobian{};
  int bad = 0;
  for (const auto& [how, said] : {std::pair(Options{}, dot), {with_jacobian, jacobian}}) {
    const double sent = bytes_of_a_call(group, how, std::int64_t(n));
    if (sent > said && sent < 1.02 * said) continue;
    ++bad;
    std::fprintf(stderr, "rank %d of %g: %.0f bytes sent, %.0f by the model\n", group.rank(), K,
                 sent, said);
  }
  return bad;
}

TEST(Context, TheRingSendsAsManyBytesAsTheModelSays) {
  for (const int size : {2, 3, 4})
    EXPECT_EQ(in_ranks(size, sends_what_the_model_says), std::vector<int>(std::size_t(size), 0));
}

/// How often this rank has said that it gets on, once the store has heard of it.
int marks_in(c10d::TCPStore& store) {
  const auto read = [&] {
    const auto bytes = store.get("foci/attempt_0/beat/0");
    std::istringstream words(std::string(bytes.begin(), bytes.end()));
    std::pair<int, int> beat_and_marks;
    words >> beat_and_marks.first >> beat_and_marks.second;
    return beat_and_marks;
  };
  const int first = read().first;
  while (read().first < first + 2) ::usleep(10000);
  return read().second;
}

/// A long part forward is no hanging rank: each tile is a sign of life.
int forward_gets_on() {
  foci::train::use_threads(1);
  const auto own = *foci::dist::standing();
  Group group({.standing = own});
  c10d::TCPStoreOptions options;
  options.port = std::uint16_t(own.port);
  options.waitWorkers = false;
  c10d::TCPStore store(own.host, options);
  constexpr int tiles = 50;
  const at::Tensor x = at::randn({1, 1, 128 * tiles, 2});
  const at::NoGradGuard without;
  const int before = marks_in(store);
  foci::dist::attend(group, {x, x, x});
  return marks_in(store) - before >= tiles ? 0 : 1;
}

TEST(Context, EveryTileIsASignOfLife) { EXPECT_EQ(in_ranks(1, forward_gets_on)[0], 0); }

int refusals() {
  Group group({.standing = *foci::dist::standing()});
  const at::Tensor x = at::randn({1, 1, 4, 2});
  foci::dist::Tokens tokens{x, x, x, x};
  const auto said = [&](const Options& how) {
    try {
      foci::dist::attend(group, tokens, how);
    } catch (const foci::Error& fault) {
      return std::string(fault.what());
    }
    return std::string();
  };
  Options relu2, median, automatic, through, leak;
  relu2.weighting = foci::Relu2{};
  median.metric = foci::LayerChange{.reduce = foci::Reduce::median};
  automatic.scale = foci::MatchDot{};
  through.metric = foci::Jacobian{};
  through.metric_grad = foci::MetricGrad::through;
  leak.metric = foci::LayerChange{.scope = foci::Scope::sequence};
  leak.causal = true;
  const std::string rest = " over ranks is not there; the nearest is ";
  const bool good =
      said(relu2) == "a weighting other than softmax" + rest + "softmax" &&
      said(median) == "reduce median" + rest + "reduce mean" &&
      said(automatic) == "scale auto" + rest + "a number" &&
      said(through) == "the jacobian's gradient through" + rest + "metric_grad detached" &&
      said(leak) == "a sequence-wide estimate of a causal call sees the future; allow_leak";
  return good ? 0 : 1;
}

TEST(Context, RefusesByName) { EXPECT_EQ(in_ranks(1, refusals)[0], 0); }

}  // namespace
