// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process, it sets the clock forth and back by hours every quarter of a second, as
// far as that process can see. The clock that only counts is left alone.
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

long real_time(timespec& to) {
  const long status = ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &to);
  const long quarter = to.tv_sec * 4 + to.tv_nsec / 250000000;
  to.tv_sec += (quarter % 3 - 1) * 7200;
  return status;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int clock_gettime(clockid_t which, timespec* to) noexcept {
  if (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE) return int(real_time(*to));
  return int(::syscall(SYS_clock_gettime, which, to));
}

int gettimeofday(timeval* to, void*) noexcept {
  timespec now{};
  const long status = real_time(now);
  to->tv_sec = now.tv_sec;
  to->tv_usec = now.tv_nsec / 1000;
  return int(status);
}

time_t time(time_t* to) noexcept {
  timespec now{};
  real_time(now);
  if (to != nullptr) *to = now.tv_sec;
  return now.tv_sec;
}
}
