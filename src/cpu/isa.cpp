// SPDX-License-Identifier: Apache-2.0
// Which instruction set runs: the best the machine has, or the one FOCI_ISA names.
#include "cpu/choose.hpp"

#include <foci/error.hpp>

#if defined(FOCI_HAS_AVX2)
#include <cpuid.h>
#endif

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#if defined(FOCI_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace foci::cpu {

namespace {

#if defined(FOCI_HAS_AMX)
/// Whether the processor has tiles of bf16 and the system lets this process use them: it wants to
/// be asked, once, before the first tile.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned tiles = 1u << 24, bf16 = 1u << 22;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tiles) == 0 || (d & bf16) == 0) return false;
  constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
}
#endif

#if defined(FOCI_HAS_AVX2)
/// Not every compiler can ask for it by name.
bool widens_halves() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

/// Best first.
struct Machine {
  std::array<const Kernels*, 3> kernels{};
  std::array<const NarrowKernels*, 2> narrow{};
  std::array<const char*, 5> names{};
  std::size_t count = 0, narrow_count = 0, name_count = 0;

  void add(const Kernels& more) { kernels[count++] = &more; }
  void add(const NarrowKernels& more) { narrow[narrow_count++] = &more; }

#if defined(FOCI_HAS_AVX512)
  void add_avx512() {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq")) {
      return;
    }
    add(avx512::kernels);
#if defined(FOCI_HAS_AVX512BF16)
    if (!__builtin_cpu_supports("avx512bf16")) return;
#if defined(FOCI_HAS_AMX)
    if (has_amx()) add(amx::kernels);
#endif
    add(avx512bf16::kernels);
#endif
  }
#endif

  Machine() {
#if defined(FOCI_HAS_AVX2)
    __builtin_cpu_init();
#if defined(FOCI_HAS_AVX512)
    add_avx512();
#endif
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && widens_halves())
      add(avx2::kernels);
#endif
    add(portable::kernels);
    for (std::size_t i = 0; i < narrow_count; ++i) names[name_count++] = narrow[i]->name;
    for (std::size_t i = 0; i < count; ++i) names[name_count++] = kernels[i]->name;
  }
};

const Machine& machine() {
  static const Machine here;
  return here;
}

/// What FOCI_ISA names; empty where it does not say.
std::string_view asked_for() {
  const char* name = std::getenv("FOCI_ISA");
  if (!name || !*name) return {};
  for (const char* known : isa_names()) {
    if (std::string_view(known) == name) return known;
  }
  std::string names;
  for (const char* known : isa_names()) names.append(names.empty() ? "" : ", ").append(known);
  throw InvalidArgument("FOCI_ISA is '" + std::string(name) + "'; this machine has: " + names);
}

}  // namespace

std::span<const Kernels* const> available() { return {machine().kernels.data(), machine().count}; }

std::span<const NarrowKernels* const> available_narrow() {
  return {machine().narrow.data(), machine().narrow_count};
}

std::span<const char* const> isa_names() { return {machine().names.data(), machine().name_count}; }

const Kernels& chosen() {
  const std::string_view name = asked_for();
  for (const Kernels* kernels : available()) {
    if (kernels->name == name) return *kernels;
  }
  return *available().front();
}

const NarrowKernels* chosen_narrow() {
  const std::string_view name = asked_for();
  for (const NarrowKernels* kernels : available_narrow()) {
    if (name.empty() || kernels->name == name) return kernels;
  }
  return nullptr;
}

}  // namespace foci::cpu
