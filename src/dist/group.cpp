// SPDX-License-Identifier: Apache-2.0
// The group: it meets, opens an engine, and turns what breaks in it into the reason that the watch
// finds.
#include "dist/engine.hpp"
#include "dist/watch.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>

namespace foci::dist {
namespace {

using std::chrono::milliseconds;

std::string own_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return fmt::format("{} (process {})", name, ::getpid());
}

milliseconds in_ms(double seconds) { return milliseconds(std::int64_t(1000 * seconds)); }

void end_here(const std::string& reason) {
  fmt::print(stderr, "foci: {}\n", reason);
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace

struct Group::Inside {
  GroupOptions options;
  Meeting meeting;
  std::optional<Engine> engine;
  std::optional<Watch> watch;
  bool failed = false;

  explicit Inside(const GroupOptions& o)
      : options(o), meeting(o.standing, Meeting::Role::host_if_rank_0, in_ms(o.join)) {}

  /// Everyone's name, which rank 0 gathers once all are here; the others ask it alone.
  std::vector<std::string> names() {
    const Standing& s = options.standing;
    meeting.set(fmt::format("name/{}", s.rank), own_name());
    if (s.rank == 0) meeting.set("names", gathered());
    const auto later = in_ms(options.join) + std::chrono::seconds(30);
    std::vector<std::string> all;
    std::istringstream lines(meeting.get("names", later));
    for (std::string line; std::getline(lines, line);) all.push_back(line);
    if (int(all.size()) == s.size) return all;
    throw Lost(all.empty() ? "nobody came" : all[0]);
  }

  /// A line each, or one that says who is missing.
  std::string gathered() {
    const Standing& s = options.standing;
    const auto until = std::chrono::steady_clock::now() + in_ms(options.join);
    std::string all;
    for (int rank = 0; rank < s.size; ++rank) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
      try {
        all += meeting.get(fmt::format("name/{}", rank), std::max(left, milliseconds(1))) + "\n";
      } catch (const std::exception&) {
        return fmt::format("rank {} of {} did not come to {}:{} within {:.0f} s\n", rank, s.size,
                           s.host, s.port, options.join);
      }
    }
    return all;
  }

  /// What one of torch's calls does, and its reason when it cannot.
  template <class Call>
  auto guarded(const Call& call) {
    try {
      return call();
    } catch (const Unsupported&) {  // on every rank alike
      failed = true;
      throw;
    } catch (const std::exception& fault) {
      failed = true;
      const std::string text = fault.what();
      throw Lost(watch->reason(text.substr(0, text.find('\n'))));
    }
  }

  /// As guarded; what it does takes as long as the other ranks do.
  template <class Call>
  auto together(const Call& call) {
    watch->begin_to_wait();
    const auto found = guarded(call);
    watch->end_wait();
    return found;
  }
};

Group::Group(const GroupOptions& options) : inside_(std::make_unique<Inside>(options)) {
  Inside& in = *inside_;
  const std::vector<std::string> names = in.names();
  in.watch.emplace(options, names, options.ended ? options.ended : end_here);
  in.watch->begin_to_wait();
  in.guarded([&] {
    in.engine.emplace(in.meeting, options.standing, options.device);
    return 0;
  });
  in.watch->connected();
}

Group::~Group() {
  if (!inside_) return;
  if (inside_->failed || std::uncaught_exceptions() > 0) {
    // Engines wait for what is under way, which will not come.
    static_cast<void>(inside_.release());
    return;
  }
  try {
    inside_->watch->leave();
  } catch (const std::exception&) {  // the store has gone first: all are done
  }
}

int Group::rank() const { return inside_->options.standing.rank; }
int Group::size() const { return inside_->options.standing.size; }
at::Device Group::device() const { return inside_->engine->device(); }

void Group::Pending::wait() {
  if (works_.empty()) return;
  group_->inside_->together([&] {
    for (const auto& work : works_) Engine::wait(work);
    return 0;
  });
  works_.clear();
}

void Group::Pending::then(std::function<void()> what) {
  if (!works_.empty()) Engine::then(works_.back(), std::move(what));
}

Group::Pending Group::sum_soon(const at::Tensor& x) {
  Pending pending;
  pending.group_ = this;
  pending.works_ = {inside_->guarded([&] { return inside_->engine->sum(x); })};
  return pending;
}

void Group::sum(const at::Tensor& x) { sum_soon(x).wait(); }

std::vector<double> Group::sum(const std::vector<double>& values) {
  const at::Tensor own = at::tensor(values, at::kDouble).to(inside_->engine->device());
  sum(own);
  const at::Tensor all = fetched(own);
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

void Group::take(const at::Tensor& x) {
  const at::Tensor moved = x.detach().to(inside_->engine->device()).contiguous();
  Pending pending;
  pending.group_ = this;
  pending.works_ = {inside_->guarded([&] { return inside_->engine->take(moved); })};
  pending.wait();
  if (!moved.is_same(x) && moved.data_ptr() != x.data_ptr()) {
    const at::NoGradGuard without;
    x.detach().copy_(x.is_cpu() ? fetched(moved) : moved);
  }
}

at::Tensor Group::fetched(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  return inside_->together([&] { return x.to(at::kCPU); });
}

std::string Group::told(const std::string& name, const std::string& text) {
  const std::string key = "told/" + name;
  return inside_->guarded([&]() -> std::string {
    if (rank() == 0) inside_->meeting.set(key, text);
    return inside_->meeting.get(key, in_ms(inside_->options.join));
  });
}

Group::Pending Group::pass_on(const at::Tensor& to_next, const at::Tensor& from_before) {
  const int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
  Pending pending;
  pending.group_ = this;
  pending.works_ = inside_->guarded([&]() -> std::vector<Work> {
    Work receives = inside_->engine->receive(from_before, before);
    return {receives, inside_->engine->send(to_next, next)};
  });
  return pending;
}

void Group::allow(double seconds) { inside_->watch->allow(seconds); }
void Group::alive() { inside_->watch->alive(); }
void Group::saved(std::int64_t step) { inside_->watch->saved(step); }

void Group::fail(const std::string& reason) {
  if (inside_->failed) return;
  inside_->failed = true;
  inside_->watch->fail(reason);
}

}  // namespace foci::dist
