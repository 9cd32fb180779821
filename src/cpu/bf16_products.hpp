// SPDX-License-Identifier: Apache-2.0
// The two products everything is made of. amx_products.hpp and pair_products.hpp carry them out:
//   void product(const Product&)      void sum(const Sum&)
// tile_rows: rows are a multiple; multiplies_aside: whether vectors are free meanwhile.
// Included inside the namespace of one instruction set.

/// out (rows, panel) = the sum over parts, the last first, of a (rows, depth) times a panel of
/// pairs (depth/2, panel). One of the two may have but one part: its part is 0 steps long.
struct Product {
  float* out;
  const std::uint16_t* a;
  const float* b;
  long rows, depth;  // rows: at most 32, a multiple of tile_rows; depth: without its padding to 32
  long a_step;
  int parts;
  long a_part, b_part;
};

/// Row length of what is summed up by, weights and their gradients: a compile-time constant keeps
/// addresses in the instructions.
static constexpr long stride = block_keys + 32;

/// Which lines a row meets: all, those before its bound, or those from its bound on. Bounds never
/// fall from row to row.
enum class Meets { all, before, after };

/// out (rows, columns), a row every out_step, += or = a (rows, count) times pairs of lines
/// (count/2, panel). A line that a row does not meet is not even multiplied with 0, unless it is
/// finite, for it may be infinite; a is 0 there.
struct Sum {
  float* out;
  long out_step;
  const std::uint16_t* a;  // a row every `stride`
  const float* lines;
  long rows, count, columns;  // rows: like Product; columns: at most a panel
  Meets meets;
  const std::int64_t* bound;  // (rows)
  long origin;                // of bounds: what line 0 is called
  bool first;                 // = instead of +=
};

/// The first line that row i does not meet (before), or meets (after), within [0, count].
FOCI_INLINE long bound_of(const Sum& of, long i) {
  const long bound = of.bound[i] - of.origin;
  return bound < 0 ? 0 : bound > of.count ? of.count : bound;
}
