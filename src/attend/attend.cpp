// SPDX-License-Identifier: Apache-2.0
// Checks a call, picks a backend and calls it: the only file that knows all backends.
#include <foci/attention.hpp>

#include "attend/check.hpp"
#include "cpu/choose.hpp"
#include "cpu/cpu.hpp"
#include "metric/arena.hpp"
#include "ref/ref.hpp"
#include "ref/supports.hpp"

#include <foci/version.h>
#include <foci/error.hpp>

#include <fmt/format.h>

#include <vector>

namespace foci {

using metric::Problem;

namespace {

/// ref or cpu; a backend asked for by name is the one or throws.
Backend choose(const Problem& p) {
  const Backend asked = p.how.backend;
  if (asked == Backend::ref) return asked;
  if (asked == Backend::cuda) {
    throw Unsupported("backend cuda is not in this build; it has: cpu, ref");
  }
  if (p.from.q.dtype != DType::f64) return Backend::cpu;
  if (asked != Backend::cpu) return Backend::ref;
  throw Unsupported(
      "backend cpu computes in f32 and takes no f64; the nearest that can is backend ref");
}

std::size_t bytes_needed(const Problem& p, int threads) {
  if (choose(p) == Backend::cpu) return cpu::workspace(p, threads);
  const std::size_t each =
      metric::with_floating(p.from.q.dtype, [&]<class S>(S*) { return ref::workspace<S>(p); });
  return metric::Arena::times(each, std::size_t(threads));
}

int threads_of(const Call& call) { return call.threads ? call.threads->threads() : 1; }

void want_workspace(const Problem& p, const Call& call) {
  const std::size_t needed = bytes_needed(p, threads_of(call));
  if (call.workspace.size() < needed) {
    throw InvalidArgument(
        fmt::format("the workspace has {} bytes; this call on {} thread(s) needs {} (see need())",
                    call.workspace.size(), threads_of(call), needed));
  }
}

void run(const Outputs& to, const Outputs&, const Problem& p, const Call& call) {
  if (choose(p) == Backend::cpu) {
    cpu::forward(to, p, call.workspace, call.threads);
  } else {
    metric::with_floating(
        p.from.q.dtype, [&]<class S>(S*) { ref::forward<S>(to, p, call.workspace, call.threads); });
  }
  checks::echo_given(to.metric, p);
}

void run(const Gradients& to, const Outputs& saved, const Problem& p, const Call& call) {
  if (p.sequences == 0) checks::clear(to.dmetric);  // nobody else would write it
  if (choose(p) == Backend::cpu) return cpu::backward(to, saved, p, call.workspace, call.threads);
  metric::with_floating(
      p.from.q.dtype, [&]<class S>(S*) { ref::backward<S>(to, p, call.workspace, call.threads); });
}

Problem checked(const Outputs& to, const Outputs&, const Inputs& from, const Options& how) {
  const Problem p = checks::check(from, how);
  checks::check_outputs(to, p);
  return p;
}

Problem checked(const Gradients& to, const Outputs& saved, const Inputs& from, const Options& how) {
  const Problem p = checks::check(from, how);
  checks::check_gradients(to, p);
  checks::check_saved(saved, p);
  return p;
}

template <class To>
void checked_run(const To& to, const Outputs& saved, const Inputs& from, const Options& how) {
  const Problem p = checked(to, saved, from, how);
  std::vector<std::byte> workspace(bytes_needed(p, 1));
  run(to, saved, p, Call{.workspace = workspace});
}

template <class To>
void checked_run(const To& to, const Outputs& saved, const Inputs& from, const Options& how,
                 const Call& call) {
  const Problem p = checked(to, saved, from, how);
  want_workspace(p, call);
  run(to, saved, p, call);
}

}  // namespace

void attend(const Outputs& to, const Inputs& from, const Options& how) {
  checked_run(to, {}, from, how);
}

void attend(const Outputs& to, const Inputs& from, const Options& how, const Call& call) {
  checked_run(to, {}, from, how, call);
}

void attend_backward(const Gradients& to, const Inputs& from, const Outputs& saved,
                     const Options& how) {
  checked_run(to, saved, from, how);
}

void attend_backward(const Gradients& to, const Inputs& from, const Outputs& saved,
                     const Options& how, const Call& call) {
  checked_run(to, saved, from, how, call);
}

Need need(const Inputs& from, const Options& how, int threads) {
  if (threads < 1)
    throw InvalidArgument(fmt::format("threads is {}; it must be at least 1", threads));
  return {.workspace = bytes_needed(checks::check(from, how), threads)};
}

Shape metric_shape(const Inputs& from, const Options& how) {
  const metric::Index shape = checks::metric_shape(checks::check(from, how));
  return {shape.sizes().begin(), shape.sizes().end()};
}

namespace {

/// Calls f with a default-made member of each alternative.
template <class Variant, class F, std::size_t... I>
void each_of(F&& f, std::index_sequence<I...>) {
  (f(std::variant_alternative_t<I, Variant>{}), ...);
}

template <class Variant, class F>
void each_of(F&& f) {
  each_of<Variant>(f, std::make_index_sequence<std::variant_size_v<Variant>>{});
}

}  // namespace

std::vector<Support> support() {
  std::vector<Support> table;
  for (const std::string_view backend : {"ref", "cpu", "cuda"}) {
    each_of<Metric>([&](const auto& m) {
      each_of<Weighting>([&]<class W>(const W& w) {
        static_assert(ref::Weighs<W>, "a weighting without src/ref has no definition");
        std::string why = checks::refusal(m, w);
        if (why.empty() && backend == "cuda")
          why = fmt::format("backend {} is not in this build", backend);
        table.push_back({m.name, w.name, backend, why.empty(), why});
      });
    });
  }
  return table;
}

std::vector<std::string_view> isas() {
  const std::span<const char* const> names = cpu::isa_names();
  return {names.begin(), names.end()};
}

std::string_view isa(DType dtype) {
  const cpu::Kernels& wide = cpu::chosen();
  const cpu::NarrowKernels* narrow = dtype == DType::bf16 ? cpu::chosen_narrow() : nullptr;
  return narrow ? narrow->name : wide.name;
}

std::string_view version() { return FOCI_VERSION; }

}  // namespace foci
