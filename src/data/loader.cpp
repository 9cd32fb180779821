// SPDX-License-Identifier: Apache-2.0
// A ring of slots, one a batch: threads take the next batch whose slot is free, the reader takes
// them in order. At most `ahead` batches exist at a time.
#include <foci/error.hpp>
#include <foci/loader.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

namespace foci::data {

std::vector<std::int64_t> epoch_order(std::int64_t samples, std::uint64_t seed, std::int64_t epoch,
                                      Order order) {
  std::vector<std::int64_t> all(std::size_t(std::max<std::int64_t>(samples, 0)));
  std::iota(all.begin(), all.end(), 0);
  if (order == Order::shuffled) Random(seed, 0x0e, std::uint64_t(epoch)).shuffle(all);
  return all;
}

struct Loader::Work {
  struct Slot {
    Batch batch;
    std::exception_ptr fault;
    bool ready = false;
  };

  Work(std::int64_t count, Fill make, const LoaderOptions& how)
      : samples(count), fill(std::move(make)), options(how), slots(std::size_t(how.ahead)) {
    per_epoch = options.last == Last::dropped ? samples / options.batch
                                              : (samples + options.batch - 1) / options.batch;
    given = taken = options.start.epoch * per_epoch + options.start.batch;
  }

  std::vector<std::int64_t> samples_of(std::int64_t number);
  void run();

  const std::int64_t samples;
  const Fill fill;
  const LoaderOptions options;
  std::int64_t per_epoch = 0;

  std::mutex lock;
  std::condition_variable room, news;
  std::vector<Slot> slots;
  std::map<std::int64_t, std::shared_ptr<const std::vector<std::int64_t>>> orders;  // by epoch
  std::int64_t taken = 0;  // batches begun by threads
  std::int64_t given = 0;  // batches handed out
  bool stop = false;
  std::exception_ptr broken;
  std::vector<std::thread> threads;
};

/// An epoch's order is made once and kept while batches of it are under way.
std::vector<std::int64_t> Loader::Work::samples_of(std::int64_t number) {
  const std::int64_t epoch = number / per_epoch, batch = number % per_epoch;
  std::shared_ptr<const std::vector<std::int64_t>> order;
  {
    const std::lock_guard guard(lock);
    auto& kept = orders[epoch];
    if (!kept) {
      kept = std::make_shared<const std::vector<std::int64_t>>(
          epoch_order(samples, options.seed, epoch, options.order));
    }
    order = kept;
    orders.erase(orders.begin(), orders.lower_bound(given / per_epoch));
  }
  std::vector<std::int64_t> some;
  const std::int64_t end = std::min(samples, (batch + 1) * options.batch);
  for (std::int64_t i = batch * options.batch; i < end; ++i)
    some.push_back((*order)[std::size_t(i / options.repeats)]);
  return some;
}

void Loader::Work::run() {
  while (true) {
    std::int64_t number = 0;
    {
      std::unique_lock guard(lock);
      room.wait(guard, [&] { return stop || taken < given + options.ahead; });
      if (stop) return;
      number = taken++;
    }
    Slot slot;
    try {
      slot.batch.position = {number / per_epoch, number % per_epoch};
      slot.batch.samples = samples_of(number);
      fill(slot.batch);
    } catch (...) {
      slot.fault = std::current_exception();
    }
    slot.ready = true;
    {
      const std::lock_guard guard(lock);
      slots[std::size_t(number % options.ahead)] = std::move(slot);
    }
    news.notify_all();
  }
}

Loader::Loader(std::int64_t samples, Fill fill, const LoaderOptions& options) {
  const auto need = [](bool holds, const std::string& what) {
    if (!holds) throw InvalidArgument(what);
  };
  need(samples >= 1, fmt::format("a loader of {} samples; it needs at least 1", samples));
  need(options.batch >= 1, fmt::format("batch {}; it needs at least 1", options.batch));
  need(options.threads >= 1 && options.threads <= 1024,
       fmt::format("{} loader threads; it needs 1 to 1024", options.threads));
  need(options.repeats >= 1, fmt::format("repeats {}; it needs at least 1", options.repeats));
  need(options.ahead >= 1, fmt::format("ahead {}; it needs at least 1", options.ahead));
  need(options.last == Last::kept || samples >= options.batch,
       fmt::format("{} samples do not fill a batch of {}, and the last one is dropped", samples,
                   options.batch));
  work_ = std::make_unique<Work>(samples, std::move(fill), options);
  const Position& start = options.start;
  need(start.epoch >= 0 && start.batch >= 0 && start.batch <= work_->per_epoch,
       fmt::format("start at batch {} of epoch {}; an epoch has {}", start.batch, start.epoch,
                   work_->per_epoch));
  for (int i = 0; i < options.threads; ++i) {
    work_->threads.emplace_back([work = work_.get()] { work->run(); });
  }
}

Loader::~Loader() {
  {
    const std::lock_guard guard(work_->lock);
    work_->stop = true;
  }
  work_->room.notify_all();
  for (std::thread& thread : work_->threads) thread.join();
}

Batch Loader::next() {
  Work& work = *work_;
  std::unique_lock guard(work.lock);
  if (work.broken) std::rethrow_exception(work.broken);
  Work::Slot& slot = work.slots[std::size_t(work.given % work.options.ahead)];
  work.news.wait(guard, [&] { return slot.ready; });
  slot.ready = false;
  if (slot.fault) {
    work.broken = slot.fault;
    std::rethrow_exception(work.broken);
  }
  Batch batch = std::move(slot.batch);
  ++work.given;
  guard.unlock();
  work.room.notify_one();
  return batch;
}

Position Loader::position() const {
  const std::lock_guard guard(work_->lock);
  return {work_->given / work_->per_epoch, work_->given % work_->per_epoch};
}

std::int64_t Loader::batches_per_epoch() const { return work_->per_epoch; }

}  // namespace foci::data
