// SPDX-License-Identifier: Apache-2.0
// The decoder: checks each step as attend() would, then hands it to the heads of the reference
// backend.
#include <foci/decode.hpp>

#include "attend/check.hpp"
#include "ref/decode.hpp"

#include <foci/error.hpp>

#include <fmt/format.h>

#include <variant>
#include <vector>

namespace foci {

using metric::Arena;
using metric::Problem;

namespace {

template <class S>
using Heads = std::vector<ref::DecodeHead<S>>;

/// The cache as a problem of one query against `capacity` keys.
Problem cache_problem(const DecoderSizes& z, const Options& how) {
  Problem p;
  p.how = how;
  const auto* decay = std::get_if<Decay>(&how.weighting);
  if (decay && !decay->content) p.how.metric = Dot{};
  p.size = {.B = z.B, .H = z.H, .G = z.G, .N = 1, .M = z.capacity, .D = z.D, .E = z.E};
  p.sequences = z.B;
  p.longest_n = 1;
  p.longest_m = z.capacity;
  p.scope = Scope::prefix;
  const auto* given = std::get_if<Given>(&how.metric);
  p.full =
      std::holds_alternative<KeyCovariance>(how.metric) || (given && given->extent == Extent::full);
  if (auto* covariance = std::get_if<KeyCovariance>(&p.how.metric)) {
    if (!covariance->prior) covariance->prior = double(z.D);
  }
  const auto* number = std::get_if<double>(&how.scale);
  p.c = number ? *number : checks::standard_scale(p);
  const Shape any{1, z.H, 1};  // room for a bias, whether or not one comes
  p.from.key_bias = View(nullptr, DType::f32, any);
  return p;
}

void check_sizes(const DecoderSizes& z, const Options& how) {
  checks::check_options(how);
  if (z.B < 1 || z.H < 1 || z.G < 1 || z.D < 1 || z.E < 1 || z.capacity < 1 || z.H % z.G != 0) {
    throw InvalidArgument(fmt::format(
        "decoder sizes B {}, H {}, G {}, D {}, E {}, capacity {}: all must be at least 1, and "
        "H a multiple of G",
        z.B, z.H, z.G, z.D, z.E, z.capacity));
  }
  if (!is_floating(z.dtype)) {
    throw InvalidArgument(
        fmt::format("decoder type {}; it must be f64, f32, bf16 or f16", name_of(z.dtype)));
  }
  if (!how.causal) throw InvalidArgument("a decoder attends to the past only: set causal");
  if (checks::scope_of(how) != Scope::prefix) {
    throw InvalidArgument("a decoder never sees the whole sequence: its scope is prefix");
  }
  if (how.backend == Backend::cpu || how.backend == Backend::cuda) {
    throw Unsupported("this build decodes on backend ref only");
  }
}

}  // namespace

struct Decoder::State {
  DecoderSizes sizes;
  Options how;
  Problem problem;
  std::vector<std::byte> memory;
  std::variant<Heads<double>, Heads<float>, Heads<Bf16>, Heads<F16>> heads;
  std::int64_t length = 0;

  State(const DecoderSizes& z, const Options& options)
      : sizes(z), how(options), problem(cache_problem(z, options)) {
    metric::with_floating(z.dtype, [&]<class S>(S*) { make<S>(); });
  }

  template <class S>
  void make() {
    Arena counting;
    ref::DecodeHead<S> size_only(counting, problem, 0, 0);
    memory.resize((counting.used() + Arena::alignment) * std::size_t(sizes.B * sizes.G));
    Arena arena(memory);
    Heads<S> made;
    made.reserve(std::size_t(sizes.B * sizes.G));
    for (std::int64_t b = 0; b < sizes.B; ++b) {
      for (std::int64_t g = 0; g < sizes.G; ++g) made.emplace_back(arena, problem, b, g).reset();
    }
    heads = std::move(made);
  }

  void check_step(const Outputs& to, const Problem& p) const {
    checks::check_outputs(to, p);
    const metric::Sizes& z = p.size;
    if (z.B != sizes.B || z.H != sizes.H || z.G != sizes.G || z.D != sizes.D || z.E != sizes.E) {
      throw InvalidArgument(fmt::format(
          "the step has B {}, H {}, G {}, D {}, E {}; the decoder was made for {}, {}, {}, {}, {}",
          z.B, z.H, z.G, z.D, z.E, sizes.B, sizes.H, sizes.G, sizes.D, sizes.E));
    }
    if (z.N != z.M)
      throw InvalidArgument(
          fmt::format("a step brings as many queries as keys; it has {} and {}", z.N, z.M));
    if (p.from.q.dtype != sizes.dtype) {
      throw InvalidArgument(fmt::format("the step's type is {}; the decoder was made for {}",
                                        name_of(p.from.q.dtype), name_of(sizes.dtype)));
    }
    if (length + z.N > sizes.capacity) {
      throw InvalidArgument(fmt::format("the decoder holds {} of {} tokens; {} more do not fit",
                                        length, sizes.capacity, z.N));
    }
    if (p.packed())
      throw InvalidArgument("a decoder takes no packed sequences: use one decoder a sequence");
    if (p.full && (to.metric || to.status || to.scale)) {
      throw InvalidArgument("a decoder does not write out a full metric, its status or its scale");
    }
  }
};

Decoder::Decoder(const DecoderSizes& sizes, const Options& how)
    : state_((check_sizes(sizes, how), std::make_unique<State>(sizes, how))) {}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

void Decoder::step(const Outputs& to, const Inputs& tokens) {
  const Problem p = checks::check(tokens, state_->how);
  state_->check_step(to, p);
  std::visit(
      [&](auto& heads) {
        for (std::int64_t i = 0; i < p.size.N; ++i) {
          for (auto& head : heads) head.prepare(p);  // throws before any head has taken the token
          for (auto& head : heads) head.step(to, p, i);
          ++state_->length;
        }
      },
      state_->heads);
  checks::echo_given(to.metric, p);
}

std::int64_t Decoder::length() const { return state_->length; }

void Decoder::reset() {
  std::visit(
      [](auto& heads) {
        for (auto& head : heads) head.reset();
      },
      state_->heads);
  state_->length = 0;
}

}  // namespace foci
