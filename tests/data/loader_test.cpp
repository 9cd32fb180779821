// SPDX-License-Identifier: Apache-2.0
// The loader: the same batches for any number of threads, never more ahead than allowed, taken up
// at a stored position, and a fault told at its batch.
#include <foci/error.hpp>
#include <foci/loader.hpp>
#include <foci/random.hpp>

#include "thrown.hpp"

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

namespace foci::data {
namespace {

void fill(Batch& batch) {
  batch.inputs = Tensor(DType::i64, {std::int64_t(batch.samples.size())});
  for (std::size_t i = 0; i < batch.samples.size(); ++i) {
    Random random(1, std::uint64_t(batch.position.epoch), std::uint64_t(batch.samples[i]));
    batch.inputs.data<std::int64_t>()[i] = random.below(1000);
  }
  if (batch.position.batch % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
}

std::vector<std::int64_t> stream(const LoaderOptions& options, int batches) {
  Loader loader(10, fill, options);
  std::vector<std::int64_t> all;
  for (int i = 0; i < batches; ++i) {
    const Batch batch = loader.next();
    all.insert(all.end(), batch.samples.begin(), batch.samples.end());
    for (const double value : batch.inputs.values()) all.push_back(std::int64_t(value));
  }
  return all;
}

TEST(Loader, ThreadsChangeNothing) {
  LoaderOptions options{.batch = 3, .threads = 1, .ahead = 1, .seed = 5};
  const auto alone = stream(options, 20);
  options.threads = 4;
  options.ahead = 7;
  EXPECT_EQ(stream(options, 20), alone);
  options.seed = 6;
  EXPECT_NE(stream(options, 20), alone);
}

TEST(Loader, AnEpochHasEverySampleOnce) {
  Loader loader(10, fill, {.batch = 4, .last = Last::kept});
  EXPECT_EQ(loader.batches_per_epoch(), 3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::multiset<std::int64_t> seen;
    for (int i = 0; i < 3; ++i) {
      const Batch batch = loader.next();
      EXPECT_EQ(batch.position, (Position{epoch, i}));
      EXPECT_EQ(batch.samples.size(), i == 2 ? 2u : 4u);
      seen.insert(batch.samples.begin(), batch.samples.end());
    }
    EXPECT_EQ(seen.size(), 10u);
    EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 10u);
  }
  EXPECT_EQ(epoch_order(4, 0, 3, Order::as_it_is), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(Loader, RepeatsStandSideBySide) {
  Loader loader(10, fill, {.batch = 4, .seed = 3, .repeats = 3});
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    const auto order = epoch_order(10, 3, epoch, Order::shuffled);
    for (std::size_t place = 0; place < 8;) {
      for (const std::int64_t sample : loader.next().samples)
        EXPECT_EQ(sample, order[place++ / 3]) << place;
    }
  }
}

TEST(Loader, GoesOnWhereItWasStored) {
  LoaderOptions options{.batch = 3, .seed = 9};
  Loader first(10, fill, options);
  for (int i = 0; i < 5; ++i) first.next();
  EXPECT_EQ(first.position(), (Position{1, 2}));
  options.start = first.position();
  Loader second(10, fill, options);
  for (int i = 0; i < 8; ++i) {
    const Batch a = first.next(), b = second.next();
    EXPECT_EQ(a.samples, b.samples);
    EXPECT_EQ(a.position, b.position);
    EXPECT_EQ(a.inputs.values(), b.inputs.values());
  }
}

TEST(Loader, StaysWithinItsBounds) {
  std::atomic<int> made = 0;
  Loader loader(100, [&](Batch&) { ++made; }, {.batch = 1, .threads = 3, .ahead = 4});
  loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(made.load(), 5);
}

TEST(Loader, AFaultComesAtItsBatch) {
  Loader loader(10,
                [](Batch& batch) {
                  if (batch.position.batch == 2) throw FileError("x.jpg: is corrupt");
                },
                {.batch = 2, .threads = 3, .ahead = 5});
  loader.next();
  loader.next();
  EXPECT_EQ(thrown<FileError>([&] { loader.next(); }), "x.jpg: is corrupt");
  EXPECT_EQ(thrown<FileError>([&] { loader.next(); }), "x.jpg: is corrupt");
}

TEST(Loader, BadOptionsAreRefused) {
  const auto fault = [](std::int64_t samples, const LoaderOptions& options) {
    return thrown<InvalidArgument>([&] { Loader(samples, fill, options); });
  };
  EXPECT_EQ(fault(0, {}), "a loader of 0 samples; it needs at least 1");
  EXPECT_EQ(fault(5, {.batch = 0}), "batch 0; it needs at least 1");
  EXPECT_EQ(fault(5, {.threads = 0}), "0 loader threads; it needs 1 to 1024");
  EXPECT_EQ(fault(5, {.ahead = 0}), "ahead 0; it needs at least 1");
  EXPECT_EQ(fault(5, {.repeats = 0}), "repeats 0; it needs at least 1");
  EXPECT_EQ(fault(5, {.batch = 6}),
            "5 samples do not fill a batch of 6, and the last one is dropped");
  EXPECT_EQ(fault(5, {.batch = 2, .start = {1, 3}}), "start at batch 3 of epoch 1; an epoch has 2");
}

}  // namespace
}  // namespace foci::data
