// SPDX-License-Identifier: Apache-2.0
// Shares the groups of a problem out to threads. Groups write to different places, so the bits
// never depend on who runs them; a metric shared by all sequences gathers its gradient in order
// instead.
#pragma once

#include "ref/pass.hpp"
#include "ref/ref.hpp"

namespace foci::ref {

template <class S>
std::size_t workspace(const metric::Problem& problem) {
  Arena counting;
  Pass<S> pass(counting, problem);
  return counting.used() + Arena::alignment;
}

/// Calls task(pass, index) for each index, with one Pass a thread.
template <class S, class Task>
void share(const metric::Problem& problem, std::span<std::byte> memory, Executor* threads,
           std::int64_t count, Task&& task) {
  const std::size_t each = workspace<S>(problem);
  const auto on_thread = [&](std::int64_t index, int thread) {
    Arena arena(memory.subspan(std::size_t(thread) * each, each));
    Pass<S> pass(arena, problem);
    task(pass, index);
  };
  if (threads) {
    threads->run(count, on_thread);
  } else {
    for (std::int64_t index = 0; index < count; ++index) on_thread(index, 0);
  }
}

/// A given P is factored once before anything is written, so that a bad one is found in time.
template <class S>
void check_given(const metric::Problem& problem, std::span<std::byte> memory) {
  if (!problem.full || !problem.metric<Given>()) return;
  Arena arena(memory);
  Pass<S>(arena, problem).check_given();
}

template <class S>
void forward(const Outputs& to, const metric::Problem& problem, std::span<std::byte> memory,
             Executor* threads) {
  check_given<S>(problem, memory);
  const std::int64_t G = problem.size.G;
  share<S>(problem, memory, threads, problem.sequences * G,
           [&](Pass<S>& pass, std::int64_t index) { pass.forward(to, index / G, index % G); });
}

template <class S>
void backward(const Gradients& to, const metric::Problem& problem, std::span<std::byte> memory,
              Executor* threads) {
  check_given<S>(problem, memory);
  const std::int64_t G = problem.size.G, sequences = problem.sequences;
  const View& given = problem.from.metric;
  const bool shared = to.dmetric && problem.metric<Given>() && given.shape[0] == 1 && sequences > 1;
  const bool own_rows =
      problem.packed() && !problem.full && problem.size.N > 1 && given.shape[2] == problem.size.N;
  if (!shared || own_rows) {
    share<S>(problem, memory, threads, sequences * G, [&](Pass<S>& pass, std::int64_t index) {
      pass.backward(to, index / G, index % G, Accumulate::no);
    });
    return;
  }
  share<S>(problem, memory, threads, G, [&](Pass<S>& pass, std::int64_t g) {
    for (std::int64_t s = 0; s < sequences; ++s) {
      pass.backward(to, s, g, s == 0 ? Accumulate::no : Accumulate::yes);
    }
  });
}

}  // namespace foci::ref
