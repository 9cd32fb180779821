// SPDX-License-Identifier: Apache-2.0
// A group by itself: who is who by the environment, sums, gradients in buckets, what layers
// remember of a batch in parts, and what is said when ranks do not come.
#include "dist/ranks.hpp"

#include "thrown.hpp"

#include <foci/dist.hpp>
#include <foci/error.hpp>
#include <foci/nn.hpp>
#include <foci/nn_parts.hpp>
#include <foci/train.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <map>
#include <memory>

namespace {

using namespace dist_test;
using foci::thrown;
using foci::dist::Gradients;
using foci::dist::Group;
using foci::dist::standing;

/// The environment for as long as it lives.
class With {
 public:
  explicit With(std::map<std::string, std::string> all) : all_(std::move(all)) {
    for (const auto& [name, value] : all_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~With() {
    for (const auto& [name, value] : all_) ::unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> all_;
};

TEST(Standing, OfTorchrun) {
  EXPECT_FALSE(standing());
  const With environment({{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "1234"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_RUN_ID", "job-7"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const auto s = standing();
  ASSERT_TRUE(s);
  EXPECT_EQ(s->rank, 3);
  EXPECT_EQ(s->size, 8);
  EXPECT_EQ(s->local_rank, 1);
  EXPECT_EQ(s->restart, 2);
  EXPECT_EQ(s->job, "job-7");
  EXPECT_EQ(s->host, "node1");
  EXPECT_EQ(s->port, 1234);
  EXPECT_TRUE(s->agent);
  EXPECT_EQ(s->local_size, 4);
  foci::dist::forget_standing();
  EXPECT_FALSE(standing());
}

TEST(Standing, OfSlurmAndOpenMpi) {
  {
    const With environment({{"SLURM_PROCID", "5"},
                            {"SLURM_STEP_NUM_TASKS", "6"},
                            {"SLURM_LOCALID", "2"},
                            {"SLURM_JOB_ID", "40017"},
                            {"SLURM_STEP_ID", "2"},
                            {"SLURM_STEP_NODELIST", "gpu[03-05,9],login"}});
    const auto s = standing();
    ASSERT_TRUE(s);
    EXPECT_EQ(s->rank, 5);
    EXPECT_EQ(s->size, 6);
    EXPECT_EQ(s->local_rank, 2);
    EXPECT_EQ(s->host, "gpu03");
    EXPECT_EQ(s->port, 20000 + 4017 + 2 * 1009);  // another step has another
    ::setenv("SLURM_STEP_ID", "4294967290", 1);   // one of salloc's own
    EXPECT_LT(standing()->port, 32768);
  }
  for (const auto& [nodes, first] :
       std::map<std::string, std::string>{{"rack[1-2]node[3-4]", "rack1node3"},
                                          {"n[1-3]-ib", "n1-ib"},
                                          {"n[07,9]-ib,login", "n07-ib"},
                                          {"a-1,a-2", "a-1"},
                                          {"node[1", "node1"}}) {
    const With environment(
        {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NODELIST", nodes}});
    EXPECT_EQ(standing()->host, first) << nodes;
  }
  {  // a batch script, outside a step
    const With environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
    EXPECT_FALSE(standing());
  }
  const With environment({{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_EQ(standing()->rank, 1);
}

TEST(Standing, MistakesNameTheVariable) {
  const auto fault = [](std::map<std::string, std::string> all) {
    const With environment(std::move(all));
    return thrown<foci::InvalidArgument>([] { standing(); });
  };
  EXPECT_EQ(fault({{"RANK", "0"}}), "WORLD_SIZE is not set");
  EXPECT_EQ(fault({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "RANK is '2'; it must be a number from 0 to 1");
  EXPECT_EQ(fault({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "x"}}),
            "MASTER_PORT is 'x'; it must be a number from 1 to 65535");
}

foci::dist::GroupOptions own() { return {.standing = *standing()}; }

/// 0 when all of it holds.
int sums_and_texts() {
  at::set_num_threads(1);
  Group group(own());
  const at::Tensor x = at::full({5}, double(group.rank() + 1));
  group.sum(x);
  bool good = x.eq(6).all().item<bool>();
  good = good && group.sum({double(group.rank()), 0.5})[0] == 3;
  at::manual_seed(std::uint64_t(group.rank()));
  const at::Tensor taken = at::rand({2, 3}), zero = at::full({}, double(group.rank()));
  group.take(taken);
  group.take(zero);
  at::manual_seed(0);
  good = good && taken.equal(at::rand({2, 3})) && zero.item<float>() == 0;
  good = good && group.told("word", group.rank() == 0 ? "hello" : "") == "hello";
  const at::Tensor before = at::full({4}, -1.0);
  group.pass_on(at::full({4}, double(group.rank())), before).wait();
  good = good && before.eq((group.rank() + 2) % 3).all().item<bool>();
  return good ? 0 : 1;
}

TEST(Group, SumsTakesTellsAndPassesOn) {
  EXPECT_EQ(in_ranks(3, sums_and_texts), (std::vector<int>{0, 0, 0}));
}

struct Net : torch::nn::Module {
  Net() {
    at::manual_seed(1);
    wide = register_module("wide", torch::nn::Linear(50, 70));
    deep = register_module("deep", torch::nn::Linear(70, 20));
    spare = register_module("spare", torch::nn::Linear(3, 3));  // nobody uses it
    odd = register_module("odd", torch::nn::Linear(20, 1));     // rank 1 alone does
  }
  at::Tensor loss(const at::Tensor& x, bool with_odd) {
    const at::Tensor y = deep(wide(x).tanh());
    return y.square().sum() + (with_odd ? odd(y).sum() : y.new_zeros({}));
  }
  torch::nn::Linear wide = nullptr, deep = nullptr, spare = nullptr, odd = nullptr;
};

/// Two backwards a step, the second of which sends; twice, for what a first step leaves behind.
int sums_gradients() {
  at::set_num_threads(1);
  Group group(own());
  Net net, whole;
  Gradients gradients(group, net, /*bucket_bytes=*/4000);
  if (gradients.buckets().size() < 4) return 2;
  for (int step = 0; step < 2; ++step) {
    at::manual_seed(10 + std::uint64_t(step));
    const at::Tensor x = at::randn({2, 4, 50});  // two parts; the first two rows are rank 0's
    for (at::Tensor& p : net.parameters()) p.mutable_grad() = at::Tensor();
    for (at::Tensor& p : whole.parameters()) p.mutable_grad() = at::Tensor();
    for (int part = 0; part < 2; ++part) {
      if (part == 1) gradients.begin();
      const at::Tensor own_rows = x[part].slice(0, 2 * group.rank(), 2 * group.rank() + 2);
      net.loss(own_rows, group.rank() == 1).backward();
      whole.loss(x[part].slice(0, 0, 2), false).backward();
      whole.loss(x[part].slice(0, 2, 4), true).backward();
    }
    gradients.finish();
    const auto mine = net.named_parameters(), all = whole.named_parameters();
    for (const auto& item : mine) {
      const at::Tensor &a = item.value().grad(), &b = all[item.key()].grad();
      if (a.defined() != b.defined()) return 3;
      if (a.defined() && !a.allclose(b, 1e-5, 1e-5)) return 4;
    }
    if (net.spare->weight.grad().defined() || !net.odd->weight.grad().defined()) return 5;
  }
  return 0;
}

TEST(Group, GradientsInBucketsAreThoseOfTheWhole) {
  EXPECT_EQ(in_ranks(2, sums_gradients), (std::vector<int>{0, 0}));
}

foci::nn::Attention layer_with(const foci::nn::AttentionOptions& options) {
  at::manual_seed(4);
  foci::nn::Attention layer(options);
  layer->train();
  return layer;
}

/// A layer that sees rows 0 to 2 or 3 to 6, masks and all, remembers what one that sees all does.
int remembers(const foci::nn::AttentionOptions& options) {
  at::set_num_threads(1);
  Group group(own());
  foci::nn::Attention part = layer_with(options), whole = layer_with(options);
  at::manual_seed(9);
  const at::Tensor x = at::randn({7, 6, 8}), below = at::randn({7, 2, 6, 4});
  const at::Tensor mask = at::rand({7, 6}).gt(0.3);
  const foci::Range own_rows = group.share().of(7);
  const auto mine = [&](const at::Tensor& all) {
    return all.slice(0, own_rows.first, own_rows.end);
  };
  const at::NoGradGuard without;
  whole->forward(x, below, mask);
  const foci::nn::InParts parts([&](const at::Tensor& sum) { group.sum(sum); });
  part->forward(mine(x), mine(below), mine(mask));
  const auto a = part->named_parameters(), b = whole->named_parameters();
  for (const auto& item : a) {
    if (!item.value().allclose(b[item.key()], 1e-4, 1e-5)) return 3;
  }
  const auto c = part->named_buffers(), d = whole->named_buffers();
  for (const auto& item : c) {
    const at::Tensor other = d[item.key()];
    if (!item.value().to(at::kDouble).allclose(other.to(at::kDouble), 1e-4, 1e-6)) return 4;
  }
  return 0;
}

TEST(Group, LayersRememberTheWholeBatch) {
  foci::nn::AttentionOptions options{.dim = 8, .heads = 2, .kv_heads = 2, .head_dim = 4};
  const auto both = std::vector<int>{0, 0};
  for (const foci::Metric& metric :
       {foci::Metric(foci::LayerChange{}), foci::Metric(foci::Jacobian{}),
        foci::Metric(foci::KeyCovariance{})}) {
    options.how.metric = metric;
    options.running = foci::nn::Running{};
    EXPECT_EQ(in_ranks(2, [&] { return remembers(options); }), both) << metric.index();
  }
  options.running = {};
  options.how = {};
  options.learned = foci::nn::Learned{.init = foci::nn::Init::estimate};
  EXPECT_EQ(in_ranks(2, [&] { return remembers(options); }), both) << "learned";
}

int warnings = 0;

/// Rank 1's weights are changed behind everybody's back.
int drifts(const std::string& run) {
  at::set_num_threads(1);
  foci::set_warning_handler([](std::string_view text) {
    warnings +=
        text == "step 2: the weights of rank 1 were no longer those of rank 0; they are again";
  });
  Group group(own());
  auto net = std::make_shared<Net>();
  int calls = 0;
  foci::train::Task task;
  task.module = net.get();
  task.start_at = [](std::int64_t) {};
  task.loss = [&] {
    const at::NoGradGuard without;
    if (++calls == 2 && group.rank() == 1) net->wide->bias.add_(1e-3);
    const at::AutoGradMode with(true);
    at::manual_seed(std::uint64_t(calls));
    return net->loss(at::randn({4, 50}), true) / 2;
  };
  foci::train::run(task,
                   {.folder = run, .save_every = 2, .schedule = {.steps = 4}, .group = &group});
  for (const at::Tensor& p : net->parameters()) {
    const at::Tensor first = p.detach().clone();
    group.take(first);
    if (!first.equal(p)) return 2;
  }
  return warnings == group.rank() ? 0 : 3;
}

TEST(Group, WeightsThatDriftApartAreMadeTheSame) {
  const std::string run = folder().file("drift");
  EXPECT_EQ(in_ranks(2, [&] { return drifts(run); }), (std::vector<int>{0, 0}));
}

int nobody_comes() {
  foci::dist::GroupOptions options = own();
  options.standing.size = 2;
  options.join = 1;
  const std::string text = thrown<foci::dist::Lost>([&] { Group group(options); });
  const std::string port = std::to_string(options.standing.port);
  return text == "rank 1 of 2 did not come to 127.0.0.1:" + port + " within 1 s" ? 0 : 1;
}

TEST(Group, ARankThatDoesNotComeIsNamed) { EXPECT_EQ(in_ranks(1, nobody_comes)[0], 0); }

/// At once, not when patience is over.
int has_no_engine() {
  foci::dist::GroupOptions options = own();
  options.device = "cuda";
  const auto begun = std::chrono::steady_clock::now();
  const std::string text = thrown<foci::Unsupported>([&] { Group group(options); });
  const bool soon = std::chrono::steady_clock::now() - begun < std::chrono::seconds(20);
  return soon && text.starts_with("several processes on --device cuda need NCCL, which") ? 0 : 1;
}

TEST(Group, AnEngineThatIsNotThereIsRefusedAtOnce) {
  if (at::hasCUDA()) GTEST_SKIP() << "this torch has NCCL";
  EXPECT_EQ(in_ranks(1, has_no_engine)[0], 0);
}

}  // namespace
