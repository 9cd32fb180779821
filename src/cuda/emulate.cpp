// SPDX-License-Identifier: Apache-2.0
// Fibers for emulate.hpp: a block's threads on stacks of their own, changing places by hand on
// x86-64 and through ucontext elsewhere.
#include "cuda/emulate.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace foci::emulate {

Fiber* now = nullptr;
uint3 block;
dim3 threads, blocks;

namespace {

constexpr std::size_t stack_bytes = 128 * 1024;

struct Machine {
  std::vector<std::unique_ptr<std::byte[]>> stacks;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<std::byte> shared;
  unsigned turn = 0;  // of the block's barrier
  int arrived = 0, alive = 0;
  int step = 1;  // which way the threads take their turns
  void (*kernel)(void*) = nullptr;
  void* context = nullptr;
#if !defined(__x86_64__)
  std::vector<ucontext_t> contexts;
  ucontext_t home_context;
#endif
  Fiber home;
};

Machine machine;

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "emulated kernel, block (%u,%u,%u), thread %u: %s\n", block.x, block.y,
               block.z, now ? now->thread.x : 0, why);
  std::abort();
}

#if defined(__x86_64__)
extern "C" void foci_emulate_switch(void** from, void* to);
asm(R"(
.text
.type foci_emulate_switch,@function
foci_emulate_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size foci_emulate_switch,.-foci_emulate_switch
)");
#endif

void go_to(Fiber& next) {
  Fiber& self = *now;
  if (&self == &next) return;
  now = &next;
#if defined(__x86_64__)
  foci_emulate_switch(&self.stack_top, next.stack_top);
#else
  ucontext_t& from =
      &self == &machine.home ? machine.home_context : machine.contexts[std::size_t(self.index)];
  swapcontext(&from, &next == &machine.home ? &machine.home_context
                                            : &machine.contexts[std::size_t(next.index)]);
#endif
}

Warp& warp_of(const Fiber& fiber) { return machine.warps[std::size_t(fiber.index / lanes)]; }

bool can_run(const Fiber& fiber) {
  switch (fiber.waits) {
    case Fiber::Waits::no:
      return true;
    case Fiber::Waits::block:
      return machine.turn != fiber.block_turn;
    case Fiber::Waits::warp:
      return warp_of(fiber).turn != fiber.warp_turn;
    default:
      return false;
  }
}

/// To the next thread that can run; home when all are done.
void pass_on() {
  if (machine.alive == 0) return go_to(machine.home);
  const int count = int(machine.fibers.size());
  int at = now->index;
  for (int tried = 0; tried < count; ++tried) {
    at = (at + machine.step + count) % count;
    if (!can_run(machine.fibers[std::size_t(at)])) continue;
    return go_to(machine.fibers[std::size_t(at)]);
  }
  give_up("a barrier that not all threads reach");
}

void release_block() {
  if (machine.arrived < machine.alive) return;
  machine.arrived = 0;
  ++machine.turn;
}

void release_warp(Warp& warp) {
  if (warp.arrived < warp.alive) return;
  warp.arrived = 0;
  ++warp.turn;
}

void begin() {
  machine.kernel(machine.context);
  Fiber& self = *now;
  self.waits = Fiber::Waits::done;
  Warp& warp = warp_of(self);
  --warp.alive;
  --machine.alive;
  release_warp(warp);
  release_block();
  pass_on();
  give_up("it went on after its end");
}

void prepare(Fiber& fiber, int index) {
  fiber = {};
  fiber.index = index;
  fiber.thread = {unsigned(index) % threads.x, unsigned(index) / threads.x % threads.y,
                  unsigned(index) / (threads.x * threads.y)};
  std::byte* stack = machine.stacks[std::size_t(index)].get();
#if defined(__x86_64__)
  auto top = reinterpret_cast<std::uintptr_t>(stack + stack_bytes) & ~std::uintptr_t(15);
  auto* words = reinterpret_cast<void**>(top);
  *--words = nullptr;  // begin() is entered as if it had been called from here
  *--words = reinterpret_cast<void*>(&begin);
  for (int saved = 0; saved < 6; ++saved) *--words = nullptr;
  fiber.stack_top = words;
#else
  ucontext_t& context = machine.contexts[std::size_t(index)];
  getcontext(&context);
  context.uc_stack = {.ss_sp = stack, .ss_flags = 0, .ss_size = stack_bytes};
  context.uc_link = nullptr;
  makecontext(&context, &begin, 0);
#endif
}

void run_block(std::size_t shared) {
  const int count = int(machine.fibers.size());
  std::memset(machine.shared.data(), 0xff, machine.shared.size());
  static_cast<void>(shared);
  machine.arrived = 0;
  machine.alive = count;
  for (Warp& warp : machine.warps) warp.arrived = warp.alive = 0;
  for (int i = 0; i < count; ++i) {
    prepare(machine.fibers[std::size_t(i)], i);
    ++warp_of(machine.fibers[std::size_t(i)]).alive;
  }
  now = &machine.home;
  go_to(machine.fibers[machine.step > 0 ? 0 : std::size_t(count - 1)]);
}

}  // namespace

std::byte* shared_memory() {
  const auto at = reinterpret_cast<std::uintptr_t>(machine.shared.data());
  return machine.shared.data() + (128 - at % 128) % 128;
}

void sync_block() {
  now->block_turn = machine.turn;
  ++machine.arrived;
  release_block();
  if (machine.turn != now->block_turn) return;
  now->waits = Fiber::Waits::block;
  pass_on();
  now->waits = Fiber::Waits::no;
}

void sync_warp() {
  Warp& warp = warp_of(*now);
  now->warp_turn = warp.turn;
  ++warp.arrived;
  release_warp(warp);
  if (warp.turn != now->warp_turn) return;
  now->waits = Fiber::Waits::warp;
  pass_on();
  now->waits = Fiber::Waits::no;
}

std::byte (*exchange(const void* mine, std::size_t bytes))[slot_bytes] {
  Warp& warp = warp_of(*now);
  auto* slots = warp.slots[warp.turn % 2];
  std::memcpy(slots[now->index % lanes], mine, bytes);
  sync_warp();
  return slots;
}

void run_erased(dim3 grid, dim3 size, std::size_t shared, void (*kernel)(void*), void* context) {
  static unsigned launches = 0;
  ++launches;
  threads = size;
  blocks = grid;
  const std::size_t count = std::size_t(size.x) * size.y * size.z;
  if (count == 0 || count > 1024) give_up("a block of no threads or of more than 1024");
  if (shared > 232448 - 1024) give_up("more shared memory than any GPU has");
  while (machine.stacks.size() < count)
    machine.stacks.push_back(std::make_unique<std::byte[]>(stack_bytes));
  machine.fibers.resize(count);
  machine.warps.assign((count + lanes - 1) / lanes, {});
  machine.shared.resize(shared + 128);
#if !defined(__x86_64__)
  machine.contexts.resize(count);
#endif
  machine.kernel = kernel;
  machine.context = context;
  for (block.z = 0; block.z < grid.z; ++block.z) {
    for (block.y = 0; block.y < grid.y; ++block.y) {
      for (block.x = 0; block.x < grid.x; ++block.x) {
        machine.step = (block.x + block.y + block.z + launches) % 2 == 0 ? 1 : -1;
        run_block(shared);
      }
    }
  }
}

}  // namespace foci::emulate
