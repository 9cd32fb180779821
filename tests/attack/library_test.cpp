// SPDX-License-Identifier: Apache-2.0
// Attacks: numbers that are known of their parts, a linear model whose robust accuracy is known in
// closed form, and what makes a result doubtful.
#include "attack/problem.hpp"
#include "attack/square.hpp"

#include <foci/error.hpp>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

namespace {

using namespace foci::attack;

void expect_near(const at::Tensor& got, const std::vector<float>& want, double tolerance = 1e-6) {
  const at::Tensor flat = got.flatten().to(at::kFloat).contiguous();
  ASSERT_EQ(std::size_t(flat.numel()), want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(flat.data_ptr<float>()[i], want[i], tolerance) << "at " << i;
}

at::Tensor row(const std::vector<float>& values) { return torch::tensor(values).unsqueeze(0); }

TEST(Attack, TheDifferenceOfLogitsRatio) {
  const at::Tensor z =
      torch::tensor({{2.0f, 1.0f, 0.5f, -1.0f, 0.0f}, {0.3f, 0.9f, -0.2f, 0.7f, 0.1f}});
  const auto classes = [](long a, long b) { return torch::tensor({a, b}); };
  expect_near(difference_of_logits(z, classes(0, 1)), {-0.66666669f, -0.33333334f});
  expect_near(difference_of_logits(z, classes(1, 3)), {0.66666669f, 0.33333334f});
  expect_near(difference_of_logits(z, classes(0, 1), classes(1, 3)), {-0.57142860f, -0.28571427f});
}

TEST(Attack, NearestPoints) {
  const at::Tensor x = row({0.2f, 0.9f, 0.5f, 0.1f});
  expect_near(project_l1(x, row({0.7f, 0.4f, -0.6f, -0.3f}), 1),
              {0.46666664f, 0.10000002f, -0.36666667f, -0.06666668f});
  expect_near(project_l1(x, row({0.1f, 0.1f, -0.2f, 0.0f}), 1), {0.1f, 0.1f, -0.2f, 0.0f});
  const at::Tensor t = row({0.2f, 0.9f, 0.5f}), w = row({1, -2, 0.5f}), b = torch::tensor({0.3f});
  expect_near(to_plane(t, w, b, Norm::linf), {0.47142854f, -0.47142854f, 0.47142854f});
  expect_near(to_plane(t, w, b, Norm::l2), {0.31428570f, -0.62857139f, 0.15714285f});
  expect_near(to_plane(t, w, b, Norm::l1), {0, -0.82499993f, 0});
  const at::Tensor far = torch::tensor({9.0f});  // beyond the box: its corner
  for (const Norm norm : {Norm::linf, Norm::l2, Norm::l1})
    expect_near(to_plane(t, w, far, norm), {0.8f, -0.9f, 0.5f});
}

/// Against a search in double, inside the box and at its walls.
TEST(Attack, NearestPointsAtRandom) {
  torch::manual_seed(1);
  const at::Tensor x = torch::rand({64, 37}), d = torch::randn({64, 37});
  const at::Tensor got = project_l1(x, d, 3);
  at::Tensor low = torch::zeros({64, 1}), high = d.abs().amax(1, true);
  const auto cut_by = [&](const at::Tensor& cut) {
    const at::Tensor room = torch::where(d > 0, 1 - x, x);
    return torch::min((d.abs() - cut).clamp_min(0), room) * d.sign();
  };
  for (int i = 0; i < 60; ++i) {
    const at::Tensor middle = (low + high) / 2;
    const at::Tensor over = cut_by(middle).abs().sum(1, true) > 3;
    low = torch::where(over, middle, low);
    high = torch::where(over, high, middle);
  }
  EXPECT_LT((got - cut_by(high)).abs().max().item<double>(), 1e-5);
  const at::Tensor w = torch::randn({64, 37}), b = (w * torch::rand({64, 37})).sum(1);
  for (const Norm norm : {Norm::linf, Norm::l2, Norm::l1}) {
    const at::Tensor at = x + to_plane(x, w, b, norm);
    EXPECT_LT(((w * at).sum(1) - b).abs().max().item<double>(), 1e-4);
    EXPECT_GE(at.min().item<double>(), -1e-6);
    EXPECT_LE(at.max().item<double>(), 1 + 1e-6);
  }
}

TEST(Attack, SquaresShrinkAsTheyShould) {
  const std::vector<std::pair<int, double>> known = {
      {0, .8},   {10, .8},   {11, .4},     {50, .4},      {51, .2},      {200, .2},
      {201, .1}, {501, .05}, {1001, .025}, {2001, .0125}, {4000, .0125}, {4001, .00625}};
  for (const auto& [query, share] : known) EXPECT_DOUBLE_EQ(covered({}, query), share) << query;
  EXPECT_DOUBLE_EQ(covered({.rescale = true}, 6), .4);  // the bounds halve at 5000 queries
  const int at[] = {0, 11, 51, 201, 501, 1001, 2001, 4001};
  const int sides_32[] = {29, 20, 14, 10, 7, 5, 4, 3};
  const int sides_224[] = {200, 142, 100, 71, 50, 35, 25, 18};
  for (int i = 0; i < 8; ++i) {
    const double root = std::sqrt(covered({}, at[i]));
    EXPECT_EQ(std::lround(root * 32), sides_32[i]);
    EXPECT_EQ(std::lround(root * 224), sides_224[i]);
  }
  expect_near(falling_off(2, 4, Norm::l2), {.06986433f, .22705908f, .22705908f, .22705908f,
                                            .06986433f, .22705908f, .85583812f, .22705908f});
}

/// 200 images of 4 x 4 and 5 classes with known margins.
struct Linear {
  at::Tensor w = torch::zeros({5, 16}), images = torch::zeros({200, 1, 4, 4}), labels;
  Model model;

  Linear() {
    for (int i = 0; i < 5; ++i)
      for (int j = 0; j < 16; ++j) w[i][j] = std::sin(1.0 + 7 * i + 3 * j);
    for (int n = 0; n < 200; ++n)
      for (int j = 0; j < 16; ++j)
        images[n][0][j / 4][j % 4] = .5 + .25 * std::sin(1.3 * n + 2.1 * j + .05 * n * j);
    model = [w = w](const at::Tensor& x) { return x.flatten(1).matmul(w.t()); };
    labels = model(images).argmax(1);
  }
  /// Share whose nearest boundary is farther than eps. Under l1 the steepest pixels go first, each
  /// to the wall of the box at most; under linf and l2 no pixel gets that far.
  double exact(Norm norm, double eps) const {
    const Norm dual = norm == Norm::linf ? Norm::l1 : Norm::l2;
    const at::Tensor z = model(images);
    at::Tensor least = torch::full({200}, 1e9f);
    for (int k = 0; k < 5; ++k) {
      const at::Tensor gap = z.gather(1, labels.unsqueeze(1)).squeeze(1) - z.select(1, k);
      const at::Tensor slope = w[k] - w.index_select(0, labels);
      const at::Tensor far =
          norm == Norm::l1 ? pixel_by_pixel(slope, gap) : gap / length_of(slope, dual);
      least = torch::where(labels == k, least, torch::min(least, far));
    }
    return (least > eps).to(torch::kFloat).mean().item<double>();
  }

 private:
  at::Tensor pixel_by_pixel(const at::Tensor& slope, const at::Tensor& gap) const {
    at::Tensor far = torch::zeros({200});
    for (int n = 0; n < 200; ++n) {
      double left = gap[n].item<double>(), moved = 0;
      std::vector<std::pair<double, double>> pixels;  // steepness, room
      for (int j = 0; j < 16; ++j) {
        const double s = slope[n][j].item<double>(), x = images[n][0][j / 4][j % 4].item<double>();
        pixels.emplace_back(std::abs(s), s > 0 ? 1 - x : x);
      }
      std::sort(pixels.rbegin(), pixels.rend());
      for (const auto& [steep, room] : pixels) {
        const double by = std::min(room, left / std::max(steep, 1e-12));
        moved += std::max(by, 0.0);
        left -= steep * by;
      }
      far[n] = left > 1e-6 ? 1e9 : moved;
    }
    return far;
  }
};

const Linear& linear() {
  static const Linear made;
  return made;
}

Options within(Norm norm, double eps) {
  Options options;
  options.norm = norm;
  options.eps = eps;
  return options;
}

TEST(Attack, TheLinearModelIsAsItWasDescribed) {
  const std::vector<long> first = {0, 0, 1, 0, 0, 4, 0, 0, 1, 0, 0, 1};
  for (std::size_t i = 0; i < first.size(); ++i)
    EXPECT_EQ(linear().labels[long(i)].item<long>(), first[i]);
  const std::map<double, double> linf = {{.02, .280}, {.05, .095}, {.1, .045}, {.2, .0}};
  for (const auto& [eps, share] : linf) EXPECT_NEAR(linear().exact(Norm::linf, eps), share, 1e-6);
  const std::map<double, double> l2 = {{.1, .195}, {.2, .085}, {.4, .030}};
  for (const auto& [eps, share] : l2) EXPECT_NEAR(linear().exact(Norm::l2, eps), share, 1e-6);
}

double after(const Attack& attack, const Options& options) {
  const Linear& l = linear();
  return run(l.model, l.images, l.labels, {attack}, options).accuracies[0];
}

TEST(Attack, TheSuiteFindsTheClosedForm) {
  const std::vector<std::pair<Norm, double>> all = {
      {Norm::linf, .02}, {Norm::linf, .05}, {Norm::linf, .1}, {Norm::linf, .2}, {Norm::l2, .1},
      {Norm::l2, .2},    {Norm::l2, .4},    {Norm::l1, .3},   {Norm::l1, .6},   {Norm::l1, 1.2}};
  for (const auto& [norm, eps] : all) {
    Suite suite = suite_of("standard", norm);
    std::get<Square>(suite.attacks[3]).queries = 300;
    const Linear& l = linear();
    const Outcome out = run(l.model, l.images, l.labels, suite.attacks, within(norm, eps));
    const double share = out.accuracies.back(), exact = l.exact(norm, eps);
    EXPECT_NEAR(share, exact, .005) << int(norm) << " " << eps;
    EXPECT_EQ(out.rejected, 0);
    const at::Tensor length = length_of(out.images - l.images, norm);
    EXPECT_LE(length.max().item<double>(), eps * 1.0001 + 1e-6);
    EXPECT_TRUE(correct(l.model, out.images, l.labels).equal(out.robust));
    for (const char* name :
         {"fgsm", "pgd", "mpgd", "apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "fab", "noise"}) {
      EXPECT_LE(share, after(attack_of(name), within(norm, eps)) + 1e-9) << name;
    }
    EXPECT_LE(share, after(suite.attacks[3], within(norm, eps)) + 1e-9);
  }
}

/// The attacks that no suite has find a good part of it too.
TEST(Attack, TheOthersFindWhatIsThere) {
  const double exact = linear().exact(Norm::l2, .2);
  const double cw =
      after(CarliniWagner{.searches = 6, .iterations = 60, .constant = .1}, within(Norm::l2, .2));
  EXPECT_GE(cw, exact - .005);
  EXPECT_LE(cw, exact + .05);
  const double spsa = after(Spsa{.iterations = 20, .pairs = 32}, within(Norm::linf, .05));
  EXPECT_GE(spsa, linear().exact(Norm::linf, .05) - .005);
  EXPECT_LE(spsa, after(Noise{}, within(Norm::linf, .05)));
  EXPECT_THROW(after(CarliniWagner{}, within(Norm::linf, .1)), foci::Unsupported);
}

TEST(Attack, ChanceHangsOnSeedAndSampleAlone) {
  const Linear& l = linear();
  Options options = within(Norm::linf, .05);
  const std::vector<Attack> attacks = {Apgd{.iterations = 10}, Square{.queries = 20}};
  const Outcome whole = run(l.model, l.images, l.labels, attacks, options);
  options.batch = 7;
  const Outcome parts = run(l.model, l.images, l.labels, attacks, options);
  EXPECT_TRUE(whole.by.equal(parts.by));
  EXPECT_LT((whole.images - parts.images).abs().max().item<double>(), 1e-5);
  options.seed = 1;
  EXPECT_FALSE(run(l.model, l.images, l.labels, attacks, options).images.equal(parts.images));
}

TEST(Attack, AGoalIsReachedOrNothingIs) {
  const Linear& l = linear();
  for (const char* name : {"pgd", "apgd-ce", "apgd-t", "fab-t", "square"}) {
    Options options = within(Norm::linf, .3);
    options.goals = torch::full({200}, 2, torch::kLong);
    const Outcome out = run(l.model, l.images, l.labels, {attack_of(name)}, options);
    const at::Tensor hit = out.by.ge(0);
    EXPECT_GT(hit.sum().item<long>(), 20) << name;
    const at::Tensor said = l.model(out.images).argmax(1);
    EXPECT_TRUE(said.masked_select(hit).eq(2).all().item<bool>()) << name;
    EXPECT_FALSE(hit.logical_and(l.labels.eq(2)).any().item<bool>()) << name;
  }
}

/// Gradients of a stand-in fool the model that is judged.
TEST(Attack, ASurrogateLeadsTheWay) {
  const Linear& l = linear();
  const Model stairs = [&](const at::Tensor& x) { return (l.model(x) * 50).round() / 50; };
  Options options = within(Norm::linf, .1);
  const std::vector<Attack> one = {Apgd{.iterations = 20}};
  const double alone = run(stairs, l.images, l.labels, one, options).accuracies[0];
  options.surrogate = l.model;
  const Outcome led = run(stairs, l.images, l.labels, one, options);
  EXPECT_LT(led.accuracies[0], alone);
  EXPECT_TRUE(correct(stairs, led.images, l.labels).equal(led.robust));
}

std::set<std::string> names_of(const std::vector<foci::RecordFlag>& flags) {
  std::set<std::string> names;
  for (const foci::RecordFlag& flag : flags) {
    EXPECT_FALSE(flag.means.empty() || flag.remedy.empty()) << flag.name;
    names.insert(flag.name);
  }
  return names;
}

TEST(Attack, DoubtsAreTold) {
  const Linear& l = linear();
  const Options options = within(Norm::linf, .05);
  const auto flags = [&](const Model& model) {
    return names_of(doubts(model, l.images, l.labels, options, 20));
  };
  EXPECT_EQ(flags(l.model), std::set<std::string>{"few-samples"});
  const auto stairs = flags([&](const at::Tensor& x) { return (l.model(x) * 50).round() / 50; });
  EXPECT_TRUE(stairs.contains("zero-gradients"));
  EXPECT_TRUE(stairs.contains("unbounded-eps"));
  const auto soft = flags([&](const at::Tensor& x) { return l.model(x).softmax(1); });
  EXPECT_TRUE(soft.contains("probabilities"));
  const auto noisy = flags([&](const at::Tensor& x) {
    return l.model(x) + torch::randn({x.size(0), 5}) * .01;
  });
  EXPECT_TRUE(noisy.contains("random-model"));
  // A gradient that points the wrong way: noise does better, and so does Square.
  const Model wrong = [&](const at::Tensor& x) {
    const at::Tensor z = l.model(x);
    return 2 * z.detach() - z;
  };
  EXPECT_TRUE(flags(wrong).contains("noise-beats-gradient"));
  const std::vector<Attack> both = {Apgd{.iterations = 10}, Square{.queries = 50}};
  const Outcome out = run(wrong, l.images, l.labels, both, options);
  EXPECT_TRUE(names_of(doubts(out, both)).contains("black-box-beats-white-box"));
}

TEST(Attack, GradientsOfARandomModelAreAveraged) {
  const Linear& l = linear();
  torch::manual_seed(0);
  const Model noisy = [&](const at::Tensor& x) {
    return l.model((x + torch::randn_like(x) * .02));
  };
  Options options = within(Norm::linf, .05);
  options.eot = suite_of("rand", Norm::linf).eot;
  EXPECT_EQ(options.eot, 20);
  const Outcome out = run(noisy, l.images, l.labels, {Apgd{.iterations = 10}}, options);
  EXPECT_LT(out.accuracies[0], .3);
}

/// What a mistake says.
std::string said(const std::function<void()>& call) {
  try {
    call();
  } catch (const foci::Error& fault) {
    return fault.what();
  }
  return "nothing";
}

TEST(Attack, MistakesAreToldInOneLine) {
  const Linear& l = linear();
  const auto tried = [&](const at::Tensor& x, const at::Tensor& y, double eps) {
    return said([&] { run(l.model, x, y, {Fgsm{}}, within(Norm::linf, eps)); });
  };
  EXPECT_EQ(tried(l.images * 2 - 1, l.labels, .1).find("pixels lie in [-0."), 0u);
  EXPECT_NE(tried(l.images * NAN, l.labels, .1).find("nan]; attacks need [0, 1]"),
            std::string::npos);
  EXPECT_EQ(tried(l.images, l.labels, -1), "eps is -1; it must be 0 or more");
  EXPECT_EQ(tried(l.images, l.labels + 1, .1), "labels go from 1 to 5; the model has 5 classes");
  EXPECT_EQ(tried(l.images, l.labels.to(torch::kInt), .1),
            "attacks need images in f32 and labels in i64");
  EXPECT_EQ(tried(l.images.flatten(1), l.labels, .1).find("images have 2 dimensions"), 0u);
  EXPECT_EQ(tried(l.images.slice(0, 0, 0), l.labels.slice(0, 0, 0), .1),
            "there are no images to attack");
  EXPECT_EQ(said([] { attack_of("pdg"); }).find("there is no attack 'pdg'; it is one of"), 0u);
  EXPECT_EQ(said([] { suite_of("all", Norm::l2); }),
            "there is no suite 'all'; it is one of standard, plus, rand");
}

}  // namespace
