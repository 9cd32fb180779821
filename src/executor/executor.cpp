// SPDX-License-Identifier: Apache-2.0
// The pool behind Executor: workers sleep until a run offers them a seat, then draw task numbers
// from one counter until none is left. The calling thread draws too, as thread 0. After a run they
// look out for the next one for a moment before they sleep. A run allocates nothing. No priorities,
// no queue of runs, no thread pinning.
#include <foci/error.hpp>
#include <foci/executor.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace foci {
namespace {

constexpr int most_threads = 4096;

/// Which pools the current thread is working for, innermost first; `outer` may lie on the stack
/// of the thread that started the run, which stays blocked until the run is over.
struct Frame {
  const void* pool;
  int thread;
  const Frame* outer;
};

thread_local const Frame* innermost = nullptr;

/// Makes `frame` the innermost one for as long as it lives.
class Entered {
 public:
  explicit Entered(const Frame& frame) : before_(innermost) { innermost = &frame; }
  ~Entered() { innermost = before_; }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  const Frame* before_;
};

/// Looks at `done` for some tens of microseconds, about what it costs to wake a sleeping thread.
template <class Done>
void look_out(Done&& done) {
  for (int i = 0; i < 1000 && !done(); ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }
}

}  // namespace

struct Executor::Pool {
  std::mutex turn;  // held by the thread whose run it is

  std::mutex lock;  // guards seats, active, stopping and the exception
  std::condition_variable offered, left;
  int seats = 0;                // workers that may still join the run
  std::atomic<int> active = 0;  // workers in it; changed under the lock
  std::atomic<int> offers = 0;  // changes whenever workers should look again
  bool awake = false;           // there is a core for every thread: looking out takes nobody's time
  bool stopping = false;
  std::exception_ptr failure;
  std::int64_t failed_index = 0;

  // Written by the caller before it offers seats, read by those who took one.
  Erased call = nullptr;
  void* task = nullptr;
  std::int64_t count = 0;
  const Frame* caller = nullptr;
  std::atomic<std::int64_t> next = 0, done = 0;
  std::atomic<bool> failed = false;

  std::recursive_mutex reporting;  // a report may call on_progress
  std::atomic<Progress> progress = nullptr;
  void* context = nullptr;

  std::vector<std::thread> workers;
  Spread spread = nullptr;  // instead of workers
  void* spread_context = nullptr;
  int spread_threads = 0;

  ~Pool();
  void start(int threads);
  void offer(int helping);
  void work(int thread);
  void draw(int thread);
  void report();
};

void Executor::Pool::start(int threads) {
  workers.reserve(std::size_t(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    throw Error("could start only " + std::to_string(workers.size() + 1) + " of " +
                std::to_string(threads) + " threads (" + error.code().message() +
                "); ask for fewer");
  }
}

Executor::Pool::~Pool() {
  {
    const std::lock_guard guard(lock);
    stopping = true;
    ++offers;
  }
  offered.notify_all();
  for (std::thread& worker : workers) worker.join();
}

/// Wakes as many workers as there are seats.
void Executor::Pool::offer(int helping) {
  if (helping == int(workers.size())) {
    offered.notify_all();
  } else {
    for (int i = 0; i < helping; ++i) offered.notify_one();
  }
}

void Executor::Pool::work(int thread) {
  std::unique_lock guard(lock);
  for (;;) {
    offered.wait(guard, [this] { return stopping || seats > 0; });
    if (stopping) return;
    --seats;
    ++active;
    guard.unlock();
    const int seen = offers;
    draw(thread);
    guard.lock();
    if (--active == 0) left.notify_one();
    if (!awake) continue;
    guard.unlock();
    look_out([&] { return offers != seen; });
    guard.lock();
  }
}

void Executor::Pool::draw(int thread) {
  const Frame frame{this, thread, caller};
  const Entered entered(frame);
  // The check comes before the draw: a number drawn is run, so the lowest failing task always runs
  // and its exception is the one kept, whatever the number of threads.
  while (!failed.load(std::memory_order_relaxed)) {
    const std::int64_t index = next.fetch_add(1, std::memory_order_relaxed);
    if (index >= count) return;
    try {
      call(task, index, thread);
      report();
    } catch (...) {
      const std::lock_guard guard(lock);
      if (!failure || index < failed_index) {
        failure = std::current_exception();
        failed_index = index;
      }
      failed = true;
    }
  }
}

void Executor::Pool::report() {
  if (!progress) {
    ++done;
    return;
  }
  const std::lock_guard guard(reporting);
  const std::int64_t so_far = ++done;
  if (const Progress tell = progress) tell(context, so_far, count);
}

Executor::Executor(int threads) : pool_(std::make_unique<Pool>()) {
  if (threads < 0 || threads > most_threads) {
    throw InvalidArgument("an executor of " + std::to_string(threads) + " threads; it needs 1 to " +
                          std::to_string(most_threads) + ", or 0 for one per core");
  }
  const int cores = int(std::thread::hardware_concurrency());
  const int count = threads > 0 ? threads : std::max(1, std::min(cores, most_threads));
  pool_->awake = count <= cores;
  pool_->start(count);
}

Executor::Executor(int threads, Spread spread, void* context) : pool_(std::make_unique<Pool>()) {
  if (threads < 1 || threads > most_threads || !spread) {
    throw InvalidArgument("an executor over " + std::to_string(threads) +
                          " threads of somebody else; it needs 1 to " +
                          std::to_string(most_threads) + " and a function that spreads work");
  }
  pool_->spread = spread;
  pool_->spread_context = context;
  pool_->spread_threads = threads;
}

Executor::~Executor() = default;

int Executor::threads() const {
  return pool_->spread ? pool_->spread_threads : int(pool_->workers.size()) + 1;
}

void Executor::on_progress(Progress progress, void* context) {
  const std::lock_guard guard(pool_->reporting);
  pool_->context = context;
  pool_->progress = progress;
}

void Executor::run_erased(std::int64_t count, Erased call, void* task) {
  if (count < 0) {
    throw InvalidArgument("a run of " + std::to_string(count) + " tasks; it needs a count >= 0");
  }
  Pool& pool = *pool_;
  if (innermost && innermost->pool == &pool) {  // from inside a task: this thread does it all
    const int thread = innermost->thread;
    for (std::int64_t i = 0; i < count; ++i) call(task, i, thread);
    return;
  }
  for (const Frame* frame = innermost; frame; frame = frame->outer) {
    if (frame->pool != &pool) continue;
    throw InvalidArgument(
        "a run on an executor that is waiting for this very task through another executor; "
        "it needs an executor of its own");
  }
  if (count == 0) return;

  const std::lock_guard turn(pool.turn);
  const int workers = int(pool.workers.size());
  const int helping = int(std::min<std::int64_t>(workers, count - 1));
  {
    const std::lock_guard guard(pool.lock);
    pool.call = call;
    pool.task = task;
    pool.count = count;
    pool.caller = innermost;
    pool.next = pool.done = 0;
    pool.failed = false;
    pool.failure = nullptr;
    pool.seats = helping;
    ++pool.offers;
  }
  if (pool.spread) {
    const int most = int(std::min<std::int64_t>(pool.spread_threads, count));
    const auto draw = [](void* p, int thread) { static_cast<Pool*>(p)->draw(thread); };
    if (most == 1) {
      pool.draw(0);
    } else {
      pool.spread(pool.spread_context, most, draw, &pool);
    }
  } else {
    pool.offer(helping);
    pool.draw(0);
  }
  std::exception_ptr failure;
  {
    std::unique_lock guard(pool.lock);
    pool.seats = 0;
    if (pool.awake && pool.active != 0) {
      guard.unlock();
      look_out([&] { return pool.active == 0; });
      guard.lock();
    }
    pool.left.wait(guard, [&] { return pool.active == 0; });
    failure = std::exchange(pool.failure, nullptr);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace foci
