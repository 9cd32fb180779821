// SPDX-License-Identifier: Apache-2.0
// A verdict is written once and read by all. Where the store is gone too, each rank makes its own.
#include "dist/watch.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace foci::dist {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

constexpr auto pace = 1000ms;    // between two beats
constexpr auto glance = 200ms;   // between two looks of the guard
constexpr auto grace = 3000ms;   // for the main thread to end by itself
constexpr auto farewell = 10s;   // for others to hear that all are done
constexpr auto linger = 2500ms;  // of the rank that holds the store, for others to read the verdict
constexpr double suspended = 5;  // this process stood still itself: what it heard of others is old

}  // namespace

Watch::Watch(const GroupOptions& options, std::vector<std::string> names,
             std::function<void(const std::string&)> ended)
    : standing_(options.standing),
      patience_(options.patience),
      names_(std::move(names)),
      ended_(std::move(ended)),
      meeting_(options.standing, Meeting::Role::guest,
               std::chrono::milliseconds(std::int64_t(1000 * options.patience))),
      signs_(std::size_t(options.standing.size)) {
  const auto now = Clock::now();
  for (Sign& sign : signs_) sign.heard = sign.moved = now;
  answered_ = now;
  beats_ = std::thread([this] { beat(); });
  guards_ = std::thread([this] { guard(); });
}

Watch::~Watch() {
  stop_ = true;
  news_.notify_all();
  beats_.join();
  guards_.join();
}

std::string Watch::name_of(int rank) const {
  return fmt::format("rank {} of {} on {}", rank, standing_.size, names_.at(std::size_t(rank)));
}

std::string Watch::with_saved(std::string text) const {
  const std::int64_t step = saved_.load();
  return text +=
         step < 0 ? "; nothing is saved yet" : fmt::format("; the last saved step is {}", step);
}

void Watch::tell_own(std::int64_t number) {
  meeting_.set(fmt::format("beat/{}", standing_.rank),
               fmt::format("{} {} {} {} {} {}", number, marks_.load(), waits_.load() ? 1 : 0,
                           leaves_.load() ? 1 : 0, allowed_.load(), done_.load()));
}

void Watch::look_at(int rank) {
  const std::string name = fmt::format("beat/{}", rank);
  if (meeting_.has(name)) signs_[std::size_t(rank)].hear(meeting_.get(name, 10s), Clock::now());
}

std::string Watch::of_all() {
  const auto found = blame(signs_, Clock::now(), patience_.count(), meeting_.has("broken"));
  if (!found) return "";
  return found->rank < 0 ? found->words : fmt::format("{} {}", name_of(found->rank), found->words);
}

std::string Watch::doubt() {
  if (standing_.rank == 0) {
    for (int rank = 0; rank < standing_.size; ++rank) look_at(rank);
    return of_all();
  }
  look_at(0);
  const Sign& sign = signs_[0];
  const double heard = Seconds(Clock::now() - sign.heard).count();
  if (sign.left || heard < (broken_ ? std::min(silence, patience_.count()) : patience_.count()))
    return "";
  return fmt::format("{} is lost: no sign of life for {:.0f} s", name_of(0), heard);
}

void Watch::settle(const std::string& text) {
  {
    const std::lock_guard guard(lock_);
    if (known_) return;
    verdict_ = text;
    known_ = true;
  }
  news_.notify_all();
}

void Watch::post(const std::string& text) {
  if (meeting_.add("verdicts", 1) == 1) meeting_.set("verdict", text);
  settle(meeting_.get("verdict", 10s));
}

bool Watch::take_verdict() {
  if (!meeting_.has("verdict")) return false;
  settle(meeting_.get("verdict", 10s));
  return true;
}

std::string Watch::own_fault() const {
  const std::lock_guard guard(lock_);
  return own_fault_;
}

void Watch::beat() {
  auto last = Clock::now();
  for (std::int64_t number = 0; !is_over(); ++number) {
    try {
      tell_own(number);
      answered_ = Clock::now();
      const std::string fault = own_fault();
      if (broken_) meeting_.set("broken", "1");
      if (Seconds(Clock::now() - last).count() > suspended) {
        for (Sign& sign : signs_) sign.heard = sign.moved = Clock::now();
      }
      last = Clock::now();
      if (take_verdict()) return;
      if (!fault.empty()) return post(saved_ < 0 ? fault : with_saved(fault));
      const std::string found = doubt();
      if (!found.empty()) return post(with_saved(found));
    } catch (const std::exception&) {
      if (leaves_ || is_over()) return;
      const std::string own = own_fault();
      if (!own.empty()) return settle(with_saved(own));
      const std::string whose = standing_.agent
                                    ? "torchrun's store"
                                    : fmt::format("{}, which holds the store,", name_of(0));
      return settle(with_saved(
          fmt::format("{} is lost: {}:{} does not answer", whose, standing_.host, standing_.port)));
    }
    std::unique_lock guard(lock_);
    news_.wait_for(guard, pace, [&] { return is_over() || !own_fault_.empty(); });
  }
}

void Watch::guard() {
  auto last = Clock::now();
  while (!is_over()) {
    std::this_thread::sleep_for(glance);
    const auto now = Clock::now();
    if (Seconds(now - last).count() > suspended) answered_ = now;
    last = now;
    if (now - answered_.load() < patience_ + 2 * pace) continue;
    settle(with_saved(
        fmt::format("{} is lost, or this host is cut off: {}:{} has not answered for {:.0f} s",
                    standing_.agent ? std::string("torchrun's store") : name_of(0), standing_.host,
                    standing_.port, Seconds(now - answered_.load()).count())));
  }
  if (!known_) return;
  for (auto waited = 0ms; waited < grace && !asked_ && !stop_; waited += glance)
    std::this_thread::sleep_for(glance);
  if (asked_ || stop_) return;
  ended_(verdict_);
}

void Watch::fail(const std::string& reason) {
  asked_ = true;
  {
    const std::lock_guard guard(lock_);
    own_fault_ = fmt::format("{}: {}", name_of(standing_.rank), reason);
  }
  news_.notify_all();
  {
    std::unique_lock guard(lock_);
    news_.wait_for(guard, grace, [&] { return known_.load(); });
  }
  stay();
}

void Watch::stay() const {
  if (standing_.rank == 0 && !standing_.agent && standing_.size > 1)
    std::this_thread::sleep_for(linger);
}

std::string Watch::reason(const std::string& seen) {
  asked_ = true;
  broken_ = true;
  bool told = false;
  {
    std::unique_lock guard(lock_);
    told = news_.wait_for(guard, patience_ + farewell, [&] { return known_.load(); });
  }
  stay();
  if (told) return verdict_;
  return with_saved(fmt::format("a connection to another rank broke ({})", seen));
}

void Watch::leave() {
  begin_to_wait();
  leaves_ = true;
  Meeting meeting(standing_, Meeting::Role::guest, farewell);
  meeting.add("left", 1);
  const auto count = [&](const char* name) { return meeting.add(name, 0); };
  while (!known_ && count("left") < standing_.size) std::this_thread::sleep_for(10ms);
  if (known_) return;
  meeting.add("gone", 1);
  if (standing_.rank != 0 || standing_.agent) return;
  const auto until = Clock::now() + farewell;
  while (Clock::now() < until && count("gone") < standing_.size) std::this_thread::sleep_for(10ms);
}

}  // namespace foci::dist
