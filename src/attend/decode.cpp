// SPDX-License-Identifier: Apache-2.0
// The decoder: checks each step as attend() would, then hands it to the heads of a backend, token
// by token.
#include <foci/decode.hpp>

#include "attend/check.hpp"
#ifdef FOCI_HAS_CUDA
#include "attend/staged.hpp"
#include "cuda/cuda.hpp"
#include "cuda/decode.hpp"
#endif
#include "cpu/choose.hpp"
#include "cpu/decode.hpp"
#include "ref/decode.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <memory>
#include <variant>
#include <vector>

namespace foci {

using metric::Arena;
using metric::Problem;

namespace {

/// The heads of backend ref.
template <class S>
class Heads {
 public:
  Heads() = default;
  Heads(Arena& arena, const Problem& cache) {
    heads_.reserve(arena.times(cache.size.B, cache.size.G));
    for (std::int64_t b = 0; b < cache.size.B; ++b) {
      for (std::int64_t g = 0; g < cache.size.G; ++g) heads_.emplace_back(arena, cache, b, g);
    }
  }
  void reset() {
    for (auto& head : heads_) head.reset();
  }
  void prepare(const Problem& tokens) {
    for (auto& head : heads_) head.prepare(tokens);
  }
  void step(const Outputs& to, const Problem& tokens, std::int64_t i) {
    for (auto& head : heads_) head.step(to, tokens, i);
  }

 private:
  std::vector<ref::DecodeHead<S>> heads_;
};

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
  const auto* given = p.metric<Given>();
  p.full = p.metric<KeyCovariance>() || (given && given->extent == Extent::full);
  if (auto* covariance = std::get_if<KeyCovariance>(&p.how.metric)) {
    if (!covariance->prior) covariance->prior = double(z.D);
  }
  const auto* number = std::get_if<double>(&how.scale);
  p.c = number ? *number : checks::standard_scale(p);
  const Shape one{z.B, z.H, 1, z.D}, any{1, z.H, 1};  // room for a bias, whether or not one comes
  p.from.q = View(nullptr, z.dtype, one);
  p.from.key_bias = View(nullptr, DType::f32, any);
  return p;
}

/// A backend asked for by name is the one or throws.
Backend choose(const DecoderSizes& z, const Options& how) {
  if (how.backend == Backend::ref) return Backend::ref;
  if (how.backend == Backend::cuda) {
#ifdef FOCI_HAS_CUDA
    if (const std::string why = cuda::refusal(cache_problem(z, how)); !why.empty())
      throw Unsupported(why);
    cuda::want_device();
    return Backend::cuda;
#else
    throw Unsupported("backend cuda is not in this build; it has: cpu, ref");
#endif
  }
  if (z.dtype != DType::f64) return Backend::cpu;
  if (how.backend == Backend::automatic) return Backend::ref;
  throw Unsupported(
      "backend cpu computes in f32 and takes no f64; the nearest that can is backend ref");
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
  choose(z, how);
}

}  // namespace

struct Decoder::State {
  DecoderSizes sizes;
  Options how;
  Problem problem;
  std::vector<std::byte> memory;
  std::variant<Heads<double>, Heads<float>, Heads<Bf16>, Heads<F16>, cpu::Decoding> heads;
#ifdef FOCI_HAS_CUDA
  std::unique_ptr<cuda::Decoding> gpu;  // instead of heads
#endif
  std::int64_t length = 0;

  State(const DecoderSizes& z, const Options& options)
      : sizes(z), how(options), problem(cache_problem(z, options)) {
    const Backend backend = choose(z, how);
    if (backend == Backend::cpu) {
      make<cpu::Decoding>(z.dtype, cpu::chosen());
#ifdef FOCI_HAS_CUDA
    } else if (backend == Backend::cuda) {
      gpu = std::make_unique<cuda::Decoding>(problem);
#endif
    } else {
      metric::with_floating(z.dtype, [&]<class S>(S*) { make<Heads<S>>(); });
    }
  }

  /// Made twice: the first time only counts what it needs.
  template <class Made, class... More>
  void make(const More&... more) {
    Arena counting;
    const Made size_only(counting, problem, more...);
    memory.resize(counting.used() + Arena::alignment);
    Arena arena(memory);
    heads.emplace<Made>(arena, problem, more...).reset();
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

#ifdef FOCI_HAS_CUDA

namespace {

void step_on_device(cuda::Decoding& gpu, std::int64_t& length, const Outputs& to,
                    const Problem& p) {
  staged::want_on_device(p.from);
  staged::want_on_device("o", to.o);
  gpu.step(to, p, 0, p.size.N, length);
  length += p.size.N;
}

/// Tokens of host memory: in, one step, out. What cannot be factored takes no token.
void step_staged(cuda::Decoding& gpu, std::int64_t& length, const Outputs& to, Problem p) {
  staged::Stage stage;
  p.from = stage.in(p.from);
  p.on_device = true;
  const Outputs there = stage.out(to);
  const std::int64_t at_once = p.metric<KeyCovariance>() ? 1 : p.size.N;
  for (std::int64_t i = 0; i < p.size.N; i += at_once, length += at_once)
    gpu.careful_step(there, p, i, i + at_once, length);
  stage.finish();
}

}  // namespace

#endif

void Decoder::step(const Outputs& to, const Inputs& tokens) {
#ifdef FOCI_HAS_CUDA
  if (state_->gpu) {
    const bool there = cuda::on_device(tokens.q.data);
    const Problem p =
        checks::check(tokens, state_->how, there ? checks::Memory::device : checks::Memory::host);
    state_->check_step(to, p);
    if (there) return step_on_device(*state_->gpu, state_->length, to, p);
    return step_staged(*state_->gpu, state_->length, to, p);
  }
#endif
  const Problem p = checks::check(tokens, state_->how);
  state_->check_step(to, p);
  std::visit(
      [&](auto& heads) {
        for (std::int64_t i = 0; i < p.size.N; ++i) {
          heads.prepare(p);  // throws before any head has taken the token
          heads.step(to, p, i);
          ++state_->length;
        }
      },
      state_->heads);
  checks::echo_given(to.metric, p);
}

std::int64_t Decoder::length() const { return state_->length; }

void Decoder::reset() {
#ifdef FOCI_HAS_CUDA
  if (state_->gpu) state_->gpu->reset();
#endif
  std::visit([](auto& heads) { heads.reset(); }, state_->heads);
  state_->length = 0;
}

}  // namespace foci
