// SPDX-License-Identifier: Apache-2.0
// Names, suites, and the course of an evaluation: batches of what is still right, attack after
// attack, every image looked at again before it counts.
#include <foci/attack.hpp>

#include "attack/problem.hpp"

#include <foci/error.hpp>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace foci::attack {
namespace {

const std::vector<std::pair<std::string_view, Attack>>& known() {
  static const std::vector<std::pair<std::string_view, Attack>> all = {
      {"noise", Noise{}},
      {"fgsm", Fgsm{}},
      {"pgd", Pgd{}},
      {"mpgd", Pgd{.momentum = 1}},
      {"apgd-ce", Apgd{}},
      {"apgd-dlr", Apgd{.loss = Loss::dlr}},
      {"apgd-t", Apgd{.loss = Loss::targeted}},
      {"fab", Fab{}},
      {"fab-t", Fab{.targets = 9}},
      {"square", Square{}},
      {"spsa", Spsa{}},
      {"cw", CarliniWagner{}},
  };
  return all;
}

struct Namer {
  std::string_view operator()(const Noise&) const { return "noise"; }
  std::string_view operator()(const Fgsm&) const { return "fgsm"; }
  std::string_view operator()(const Pgd& how) const { return how.momentum > 0 ? "mpgd" : "pgd"; }
  std::string_view operator()(const Apgd& how) const {
    return how.loss == Loss::ce ? "apgd-ce" : how.loss == Loss::dlr ? "apgd-dlr" : "apgd-t";
  }
  std::string_view operator()(const Fab& how) const { return how.targets > 0 ? "fab-t" : "fab"; }
  std::string_view operator()(const Square&) const { return "square"; }
  std::string_view operator()(const Spsa&) const { return "spsa"; }
  std::string_view operator()(const CarliniWagner&) const { return "cw"; }
};

void check(const at::Tensor& images, const at::Tensor& labels, const Options& options) {
  if (images.dim() != 4 || labels.dim() != 1 || labels.size(0) != images.size(0)) {
    throw InvalidArgument(
        fmt::format("images have {} dimensions and labels {}; attacks need (N,C,H,W) and (N)",
                    images.dim(), labels.dim()));
  }
  if (images.scalar_type() != at::kFloat || labels.scalar_type() != at::kLong)
    throw InvalidArgument("attacks need images in f32 and labels in i64");
  if (!(options.eps >= 0 && std::isfinite(options.eps)))
    throw InvalidArgument(fmt::format("eps is {}; it must be a length, 0 or more", options.eps));
  if (options.batch < 1 || options.eot < 1)
    throw InvalidArgument("batch and eot must be 1 or more");
  if (images.size(0) == 0) throw InvalidArgument("there are no images to attack");
  const double low = images.min().item<double>(), high = images.max().item<double>();
  if (!(low >= 0 && high <= 1)) {
    throw InvalidArgument(
        fmt::format("pixels lie in [{:.4g}, {:.4g}]; attacks need [0, 1], with what normalises "
                    "them inside the model",
                    low, high));
  }
}

void check_classes(const at::Tensor& logits, const at::Tensor& labels) {
  if (logits.dim() != 2 || logits.size(0) != labels.size(0))
    throw InvalidArgument("the model must give logits (N,K), one row an image");
  const auto most = labels.max().item<std::int64_t>(), least = labels.min().item<std::int64_t>();
  if (least >= 0 && most < logits.size(1)) return;
  throw InvalidArgument(fmt::format("labels go from {} to {}; the model has {} classes", least,
                                    most, logits.size(1)));
}

at::Tensor places_of(const at::Tensor& flags) { return flags.nonzero().squeeze(1); }

}  // namespace

std::string name_of(const Attack& attack) { return std::string(std::visit(Namer(), attack)); }

Attack attack_of(std::string_view name) {
  std::string names;
  for (const auto& [known_name, attack] : known()) {
    if (known_name == name) return attack;
    names += (names.empty() ? "" : ", ") + std::string(known_name);
  }
  throw InvalidArgument(fmt::format("there is no attack '{}'; it is one of {}", name, names));
}

bool is_black_box(const Attack& attack) {
  return std::holds_alternative<Noise>(attack) || std::holds_alternative<Square>(attack) ||
         std::holds_alternative<Spsa>(attack);
}

Suite suite_of(std::string_view name, Norm norm) {
  const bool l1 = norm == Norm::l1;
  if (name == "standard") {
    return {{Apgd{.restarts = l1 ? 5 : 1, .larger = l1},
             Apgd{.loss = Loss::targeted, .targets = l1 ? 5 : 9, .larger = l1}, Fab{.targets = 9},
             Square{}},
            1};
  }
  if (name == "plus") {
    return {{Apgd{.restarts = 5}, Apgd{.loss = Loss::dlr, .restarts = 5}, Fab{.restarts = 5},
             Square{}, Apgd{.loss = Loss::targeted}, Fab{.targets = 9}},
            1};
  }
  if (name == "rand") return {{Apgd{}, Apgd{.loss = Loss::dlr}}, 20};
  throw InvalidArgument(
      fmt::format("there is no suite '{}'; it is one of standard, plus, rand", name));
}

Found fool(const Model& model, const at::Tensor& images, const at::Tensor& labels,
           const at::Tensor& samples, const Attack& attack, const Options& options) {
  check(images, labels, options);
  if (std::holds_alternative<CarliniWagner>(attack) && options.norm != Norm::l2)
    throw Unsupported("cw measures in l2; the nearest under linf and l1 is apgd-dlr");
  const at::NoGradGuard without;
  Rows rows{images, labels, at::arange(images.size(0), labels.options()), samples, {}, {}};
  rows.restart = at::zeros_like(labels);
  rows.target = options.goals;
  Problem problem(model, options, std::move(rows));
  std::visit([&](const auto& how) { perturb(problem, how); }, attack);
  return problem.found(samples);
}

at::Tensor correct(const Model& model, const at::Tensor& images, const at::Tensor& labels,
                   std::int64_t batch) {
  const at::NoGradGuard without;
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < images.size(0); i += batch) {
    const at::Tensor y = labels.slice(0, i, i + batch);
    const at::Tensor logits = model(images.slice(0, i, i + batch));
    check_classes(logits, y);
    parts.push_back(logits.argmax(1).eq(y));
  }
  return at::cat(parts);
}

namespace {

/// A copy on the processor: a device has better things to hold than what is over.
at::Tensor put_by(const at::Tensor& t) {
  return t.to(at::kCPU, t.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

/// What a batch found goes into the outcome.
void take(Outcome& out, const Found& found, std::int64_t attack) {
  out.rejected += found.rejected;
  if (found.samples.size(0) == 0) return;
  const at::Tensor where = found.samples.to(at::kCPU);
  out.robust.index_fill_(0, where, false);
  out.by.index_fill_(0, where, attack);
  out.images.index_copy_(0, where, found.images.to(at::kCPU));
}

/// Those of a smaller ball lie in this one too.
void take_known(Outcome& out, const Outcome& known) {
  out.inherited = known.by.ge(0).logical_and(out.robust);
  const at::Tensor hit = places_of(out.inherited);
  out.robust.index_fill_(0, hit, false);
  out.by.index_copy_(0, hit, known.by.index_select(0, hit));
  out.images.index_copy_(0, hit, known.images.index_select(0, hit));
}

/// (N) bool: those that an attack may fool.
at::Tensor counted(const at::Tensor& labels, const Options& options) {
  if (!options.goals.defined()) return at::ones(labels.sizes(), at::kBool);
  const at::Tensor others = put_by(options.goals.ne(labels));
  if (!others.any().item<bool>())
    throw InvalidArgument("every image is of its goal's class already; there is nothing to attack");
  return others;
}

}  // namespace

Outcome run(const Model& model, const at::Tensor& images, const at::Tensor& labels,
            const std::vector<Attack>& attacks, const Options& options, const Journal& journal,
            const Outcome* known) {
  check(images, labels, options);
  const at::Tensor among = counted(labels, options);
  Outcome out{.clean = put_by(correct(model, images, labels, options.batch)),
              .robust = {},
              .by = at::full(labels.sizes(), -1, at::kLong),
              .inherited = at::zeros(labels.sizes(), at::kBool),
              .images = put_by(images),
              .accuracies = {}};
  out.robust = out.clean.clone();
  if (known != nullptr) take_known(out, *known);
  for (std::size_t a = 0; a < attacks.size(); ++a) {
    const at::Tensor left = places_of(out.robust.logical_and(among));
    const std::int64_t batches = (left.size(0) + options.batch - 1) / options.batch;
    for (std::int64_t b = 0; b < batches; ++b) {
      const at::Tensor samples =
          left.slice(0, b * options.batch, (b + 1) * options.batch).to(labels.device());
      const Step step{a, b, batches, out.robust.sum().item<std::int64_t>()};
      std::optional<Found> found = journal.recall ? journal.recall(step) : std::nullopt;
      if (!found) {
        Options own = options;
        if (own.goals.defined()) own.goals = options.goals.index_select(0, samples);
        found = fool(model, images.index_select(0, samples), labels.index_select(0, samples),
                     samples, attacks[a], own);
        if (journal.keep) journal.keep(step, *found);
      }
      take(out, *found, std::int64_t(a));
    }
    out.accuracies.push_back(out.robust.masked_select(among).to(at::kDouble).mean().item<double>());
  }
  return out;
}

}  // namespace foci::attack
