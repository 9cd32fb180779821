// SPDX-License-Identifier: Apache-2.0
// AMX: eight tiles of sixteen rows of 64 bytes. multiply<C, A, B> adds the product of A (16 rows of
// 32 bf16) with B (16 pairs of lines of 16, interleaved) to C (16 x 16 floats). FOCI_AMX_EMULATED
// puts arrays in the place of tiles, so that tests can run the rest anywhere.
// Included inside the namespace of one instruction set.

struct alignas(64) TileShapes {
  std::uint8_t palette, start, reserved[14];
  std::uint16_t bytes[16];
  std::uint8_t rows[16];
};
static constexpr TileShapes tile_shapes = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

#if !defined(FOCI_AMX_EMULATED)

FOCI_INLINE void open_tiles() { asm volatile("ldtilecfg %0" ::"m"(tile_shapes)); }
FOCI_INLINE void close_tiles() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
FOCI_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
/// Sixteen rows of 64 bytes, `step` bytes apart.
template <int T>
FOCI_INLINE void tile_load(const void* from, long step) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(T) : "memory");
}
template <int T>
FOCI_INLINE void tile_store(void* to, long step) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(T) : "memory");
}
template <int C, int A, int B>
FOCI_INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#else

struct alignas(64) TileArray {
  std::uint16_t row[16][32];
};
static thread_local TileArray tiles[8];

static inline void open_tiles() {
  for (TileArray& tile : tiles) tile = {};
}
static inline void close_tiles() { open_tiles(); }

template <int T>
static void tile_zero() {
  tiles[T] = {};
}
template <int T>
static void tile_load(const void* from, long step) {
  for (long i = 0; i < 16; ++i)
    __builtin_memcpy(tiles[T].row[i], static_cast<const char*>(from) + i * step, 64);
}
template <int T>
static void tile_store(void* to, long step) {
  for (long i = 0; i < 16; ++i)
    __builtin_memcpy(static_cast<char*>(to) + i * step, tiles[T].row[i], 64);
}
template <int C, int A, int B>
static void tile_multiply() {
  for (long i = 0; i < 16; ++i) {
    float c[16];
    __builtin_memcpy(c, tiles[C].row[i], 64);
    for (long k = 0; k < 32; ++k) {
      for (long j = 0; j < 16; ++j)
        c[j] += widen(tiles[A].row[i][k]) * widen(tiles[B].row[k / 2][2 * j + k % 2]);
    }
    __builtin_memcpy(tiles[C].row[i], c, 64);
  }
}

#endif
