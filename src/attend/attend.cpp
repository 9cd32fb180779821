// SPDX-License-Identifier: Apache-2.0
// Checks a call, picks a backend and calls it: the only file that knows all backends.
#include <foci/attention.hpp>

#include "attend/check.hpp"
#ifdef FOCI_HAS_CUDA
#include "attend/staged.hpp"
#include "cuda/cuda.hpp"
#endif
#include "cpu/choose.hpp"
#include "cpu/cpu.hpp"
#include "metric/arena.hpp"
#include "metric/key_covariance.hpp"
#include "ref/ref.hpp"
#include "ref/supports.hpp"

#include <foci/version.h>
#include <foci/device.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <vector>

namespace foci {

using metric::Problem;

namespace {

/// Where a call's tensors lie.
checks::Memory memory_of(const Inputs& from, const Options& how) {
#ifdef FOCI_HAS_CUDA
  if (how.backend == Backend::cuda && cuda::on_device(from.q.data)) return checks::Memory::device;
#endif
  static_cast<void>(from), static_cast<void>(how);
  return checks::Memory::host;
}

/// A backend asked for by name is the one or throws.
Backend choose(const Problem& p) {
  const Backend asked = p.how.backend;
  if (asked == Backend::ref) return asked;
  if (asked == Backend::cuda) {
#ifdef FOCI_HAS_CUDA
    if (const std::string why = cuda::refusal(p); !why.empty()) throw Unsupported(why);
    cuda::want_device();
    return asked;
#else
    throw Unsupported("backend cuda is not in this build; it has: cpu, ref");
#endif
  }
  if (p.from.q.dtype != DType::f64) return Backend::cpu;
  if (asked != Backend::cpu) return Backend::ref;
  throw Unsupported(
      "backend cpu computes in f32 and takes no f64; the nearest that can is backend ref");
}

std::size_t bytes_needed(const Problem& p, int threads) {
  const Backend backend = choose(p);
  if (backend == Backend::cpu) return cpu::workspace(p, threads);
#ifdef FOCI_HAS_CUDA
  if (backend == Backend::cuda) return p.on_device ? cuda::workspace(p) : 0;
#endif
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

#ifdef FOCI_HAS_CUDA

using staged::want_on_device;

/// Memory of the device while it lives.
struct Room {
  explicit Room(std::size_t bytes)
      : memory(static_cast<std::byte*>(cuda::allocate(bytes)), bytes) {}
  ~Room() { cuda::release(memory.data()); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  std::span<std::byte> memory;
};

void run_cuda(const Outputs& to, const Outputs&, const Problem& p, const cuda::Run& how) {
  want_on_device("o", to.o);
  cuda::forward(to, p, how);
}
void run_cuda(const Gradients& to, const Outputs& saved, const Problem& p, const cuda::Run& how) {
  want_on_device("d_o", to.d_o);
  want_on_device("saved o", saved.o);
  want_on_device("saved lse", saved.lse);
  cuda::backward(to, saved, p, how);
}

/// Throws where a full metric could not be factored.
void check_status(const Tensor& status, const Problem& p) {
  if (!status) return;
  const std::int64_t each = status.view().count() / (status.view().shape[0] * p.size.G);
  for (std::int64_t i = 0; i < status.view().count(); ++i) {
    if (status.data<std::int32_t>()[i] <= metric::most_raises) continue;
    const std::int64_t b = i / (each * p.size.G), g = i / each % p.size.G;
    const auto* covariance = p.metric<KeyCovariance>();
    if (!covariance) throw InvalidArgument(metric::not_semidefinite(b, g));
    throw NumericalError(metric::unfactorable(b, g, p.longest_m, covariance->ridge));
  }
}

/// Both ways of a call over host memory: in, run, out.
template <class To>
void run_staged(const To& to, const Outputs& saved, Problem p, const Call& call) {
  staged::Stage stage;
  p.from = stage.in(p.from);
  p.on_device = true;
  To there = stage.out(to);
  Tensor status;
  if constexpr (requires { there.status; }) {
    const metric::Index shape = checks::status_shape(p);
    if (p.full && shape.rank > 0) {
      status = Tensor(DType::i32, shape.sizes());
      if (!to.status) there.status = stage.out(status);
    }
  }
  const Outputs before{.o = stage.in(saved.o), .lse = stage.in(saved.lse)};
  const Room room(cuda::workspace(p));
  run_cuda(there, before, p,
           {.memory = room.memory,
            .deterministic = call.deterministic,
            .lse_for_backward = call.lse_for_backward});
  stage.finish();
  if constexpr (requires { there.status; }) {
    if (to.status) status = Tensor::copy(to.status, DType::i32);
    check_status(status, p);
  }
}

template <class To>
void run_on_gpu(const To& to, const Outputs& saved, const Problem& p, const Call& call) {
  if (!p.on_device) return run_staged(to, saved, p, call);
  want_on_device(p.from);
  const cuda::Run how{.memory = call.workspace,
                      .stream = call.stream,
                      .deterministic = call.deterministic,
                      .lse_for_backward = call.lse_for_backward};
  run_cuda(to, saved, p, how);
}

#endif

void run(const Outputs& to, const Outputs& saved, const Problem& p, const Call& call) {
  const Backend backend = choose(p);
#ifdef FOCI_HAS_CUDA
  if (backend == Backend::cuda) return run_on_gpu(to, saved, p, call);
#else
  static_cast<void>(saved);
#endif
  if (backend == Backend::cpu) {
    cpu::forward(to, p, call.workspace, call.threads);
  } else {
    metric::with_floating(
        p.from.q.dtype, [&]<class S>(S*) { ref::forward<S>(to, p, call.workspace, call.threads); });
  }
  checks::echo_given(to.metric, p);
}

void run(const Gradients& to, const Outputs& saved, const Problem& p, const Call& call) {
  const Backend backend = choose(p);
#ifdef FOCI_HAS_CUDA
  if (backend == Backend::cuda) return run_on_gpu(to, saved, p, call);
#endif
  if (p.sequences == 0) checks::clear(to.dmetric);  // nobody else would write it
  if (backend == Backend::cpu) return cpu::backward(to, saved, p, call.workspace, call.threads);
  metric::with_floating(
      p.from.q.dtype, [&]<class S>(S*) { ref::backward<S>(to, p, call.workspace, call.threads); });
}

Problem checked(const Outputs& to, const Outputs&, const Inputs& from, const Options& how) {
  const Problem p = checks::check(from, how, memory_of(from, how));
  checks::check_outputs(to, p);
  return p;
}

Problem checked(const Gradients& to, const Outputs& saved, const Inputs& from, const Options& how) {
  const Problem p = checks::check(from, how, memory_of(from, how));
  checks::check_gradients(to, p);
  checks::check_saved(saved, p);
  return p;
}

template <class To>
void checked_run(const To& to, const Outputs& saved, const Inputs& from, const Options& how) {
  const Problem p = checked(to, saved, from, how);
#ifdef FOCI_HAS_CUDA
  if (p.on_device) {
    const Room room(bytes_needed(p, 1));
    run(to, saved, p, Call{.workspace = room.memory});
    return synchronize();  // the room goes
  }
#endif
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
  return {.workspace = bytes_needed(checks::check(from, how, memory_of(from, how)), threads)};
}

Shape metric_shape(const Inputs& from, const Options& how) {
  const metric::Index shape = checks::metric_shape(checks::check(from, how, memory_of(from, how)));
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
        if (why.empty() && backend == "cuda" && !has_cuda())
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
