// SPDX-License-Identifier: Apache-2.0
// Which instruction set runs: the best the machine has, or the one FOCI_ISA names.
#include "cpu/choose.hpp"

#include <foci/error.hpp>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

namespace foci::cpu {

namespace {

/// Best first.
struct Machine {
  std::array<const Kernels*, 3> kernels{};
  std::size_t count = 0;

  Machine() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
      kernels[count++] = &avx512::kernels;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      kernels[count++] = &avx2::kernels;
    }
#endif
    kernels[count++] = &portable::kernels;
  }
};

}  // namespace

std::span<const Kernels* const> available() {
  static const Machine machine;
  return {machine.kernels.data(), machine.count};
}

namespace {

const Kernels& asked_for(const char* name) {
  std::string names;
  for (const Kernels* kernels : available()) {
    if (std::string_view(kernels->name) == name) return *kernels;
    names += std::string(names.empty() ? "" : ", ") + kernels->name;
  }
  throw InvalidArgument("FOCI_ISA is '" + std::string(name) + "'; this machine has: " + names);
}

}  // namespace

const Kernels& chosen() {
  const char* name = std::getenv("FOCI_ISA");
  if (name && *name) return asked_for(name);
  return *available().front();
}

}  // namespace foci::cpu
