// SPDX-License-Identifier: Apache-2.0
// Attacks: numbers that are known of their parts, and a linear model whose robust accuracy is known
// in closed form.
#include "attack/apgd.hpp"
#include "attack/linear.hpp"
#include "attack/problem.hpp"
#include "attack/square.hpp"

#include <foci/error.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace {

using namespace attack_test;

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
  for (const char* name : {"fgsm", "pgd", "mpgd", "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t",
                           "square", "spsa", "cw"}) {
    const bool cw = name == std::string("cw");
    Options options = cw ? within(Norm::l2, 1) : within(Norm::linf, .3);
    options.goals = torch::full({200}, 2, torch::kLong);
    const Attack attack =
        cw ? CarliniWagner{.searches = 4, .iterations = 60, .constant = .1} : attack_of(name);
    const Outcome out = run(l.model, l.images, l.labels, {attack}, options);
    const at::Tensor hit = out.by.ge(0);
    EXPECT_GT(hit.sum().item<long>(), 20) << name;
    const at::Tensor said = l.model(out.images).argmax(1);
    EXPECT_TRUE(said.masked_select(hit).eq(2).all().item<bool>()) << name;
    EXPECT_FALSE(hit.logical_and(l.labels.eq(2)).any().item<bool>()) << name;
  }
}

/// Seven images are of class 2 and cannot become it: they are no success of the model's.
TEST(Attack, ImagesOfTheGoalsClassAreNotCounted) {
  const Linear& l = linear();
  Options options = within(Norm::linf, .3);
  options.goals = torch::full({200}, 2, torch::kLong);
  const Outcome out = run(l.model, l.images, l.labels, {Pgd{}}, options);
  const double hits = out.by.ge(0).sum().item<double>();
  EXPECT_NEAR(out.accuracies[0], (193 - hits) / 193, 1e-12);
  const at::Tensor two = l.labels.eq(2).nonzero().squeeze(1);
  options.goals = options.goals.index_select(0, two);
  EXPECT_THROW(
      run(l.model, l.images.index_select(0, two), l.labels.index_select(0, two), {Pgd{}}, options),
      foci::InvalidArgument);
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

TEST(Attack, StepsAreCheckedWhenTheyShouldBe) {
  const auto checked_at = [](int iterations, Norm norm) {
    Checks checks(iterations, norm);
    std::vector<int> at;
    for (int i = 1; i <= iterations; ++i) {
      if (checks.after_a_step() > 0) at.push_back(i);
    }
    return at;
  };
  const std::map<int, std::vector<int>> known = {
      {100, {22, 41, 57, 70, 80, 87, 93, 99}},
      {50, {11, 21, 30, 38, 45}},
      {20, {4, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}},
      {10, {2, 3, 4, 5, 6, 7, 8, 9, 10}}};
  for (const auto& [iterations, at] : known) {
    EXPECT_EQ(checked_at(iterations, Norm::linf), at) << iterations;
    EXPECT_EQ(checked_at(iterations, Norm::l2), at) << iterations;
  }
  EXPECT_EQ(checked_at(100, Norm::l1).size(), 25u);
}

/// AutoAttack's members, in its order.
TEST(Attack, SuitesAreMadeOfWhatTheyShouldBe) {
  const auto text = [](const Suite& suite) {
    std::string all = std::to_string(suite.eot);
    for (const Attack& attack : suite.attacks) {
      all += " " + name_of(attack);
      if (const auto* a = std::get_if<Apgd>(&attack)) {
        EXPECT_EQ(a->iterations, 100);
        EXPECT_EQ(a->rho, .75);
        all += ":" + std::to_string(a->restarts);
        if (a->loss == Loss::targeted) all += "x" + std::to_string(a->targets);
        if (a->larger) all += "+";
      }
      if (const auto* f = std::get_if<Fab>(&attack)) {
        EXPECT_EQ(f->iterations, 100);
        all += ":" + std::to_string(f->restarts);
        if (f->targets > 0) all += "x" + std::to_string(f->targets);
      }
      if (const auto* s = std::get_if<Square>(&attack)) {
        EXPECT_EQ(s->share, .8);
        EXPECT_FALSE(s->rescale);
        all += ":" + std::to_string(s->restarts) + "," + std::to_string(s->queries);
      }
    }
    return all;
  };
  for (const Norm norm : {Norm::linf, Norm::l2}) {
    EXPECT_EQ(text(suite_of("standard", norm)), "1 apgd-ce:1 apgd-t:1x9 fab-t:1x9 square:1,5000");
  }
  EXPECT_EQ(text(suite_of("standard", Norm::l1)),
            "1 apgd-ce:5+ apgd-t:1x5+ fab-t:1x9 square:1,5000");
  EXPECT_EQ(text(suite_of("plus", Norm::linf)),
            "1 apgd-ce:5 apgd-dlr:5 fab:5 square:1,5000 apgd-t:1x9 fab-t:1x9");
  EXPECT_EQ(text(suite_of("rand", Norm::linf)), "20 apgd-ce:1 apgd-dlr:1");
}

/// Queries lie around the point where the slope is wanted, never around another.
TEST(Attack, SpsaAsksNoFartherThanDelta) {
  const Linear& l = linear();
  double most = 0, least = 1;
  const Model heard = [&](const at::Tensor& x) {
    const at::Tensor from_clean =  // to the nearest of the images
        (x.flatten(1).unsqueeze(1) - l.images.flatten(1).unsqueeze(0)).abs().amax(2).amin(1);
    most = std::max(most, from_clean.max().item<double>());
    least = std::min(least, from_clean.max().item<double>());
    return l.model(x);
  };
  const double delta = .004;
  fool(heard, l.images, l.labels, torch::arange(200),
       Spsa{.iterations = 1, .pairs = 4, .delta = delta, .rate = 0}, within(Norm::linf, .1));
  EXPECT_NEAR(most, delta, 1e-6);
  EXPECT_EQ(least, 0);  // what is judged is the image itself
}

/// Each pass adds a slope of its own that the next one takes away: a mean of two knows the way.
TEST(Attack, FabAveragesGradientsOfARandomModel) {
  const Linear& l = linear();
  int passes = 0;
  const at::Tensor other = torch::full({16, 5}, 3.0f) * torch::arange(5);
  const Model noisy = [&](const at::Tensor& x) {
    const at::Tensor z = l.model(x);
    if (!x.requires_grad()) return z;
    const at::Tensor d = x.flatten(1).matmul(other);
    return z + (d - d.detach()) * (++passes % 2 == 0 ? 1 : -1);
  };
  Options options = within(Norm::linf, .05);
  const auto robust = [&](int eot) {
    options.eot = eot;
    return run(noisy, l.images, l.labels, {Fab{.iterations = 20}}, options).accuracies[0];
  };
  const double exact = l.exact(Norm::linf, .05);
  EXPECT_NEAR(robust(2), exact, .02);
  EXPECT_GT(robust(1), exact + .1);
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
  EXPECT_EQ(tried(l.images, l.labels, -1), "eps is -1; it must be a length, 0 or more");
  EXPECT_EQ(tried(l.images, l.labels, INFINITY), "eps is inf; it must be a length, 0 or more");
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
