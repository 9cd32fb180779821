// SPDX-License-Identifier: Apache-2.0
// The tile passes held to plain loops by the tolerance rule: every weighting over every score, and
// shapes that are awkward on purpose.
#include "cuda/tile_run.hpp"

namespace foci::cuda::cases {
namespace {

constexpr Score scores[] = {Score::product, Score::weighted, Score::difference};
constexpr Rescale rescales[] = {Rescale::length, Rescale::l1, Rescale::l2, Rescale::none};

Weigh weigh_of(Kind kind, Rescale rescale = Rescale::none) {
  Weigh how;
  how.kind = kind;
  how.rescale = rescale;
  return how;
}

Mechanism softmax(Score score = Score::product) { return {score, weigh_of(Kind::softmax)}; }

Mechanism linear() {
  Mechanism how{Score::product, weigh_of(Kind::identity, Rescale::l1)};
  how.weigh.features = true;
  return how;
}

Mechanism decay(double rate, bool content, Score score = Score::product) {
  Mechanism how{score, weigh_of(content ? Kind::decay_content : Kind::decay), rate};
  how.weigh.log2_rate = float(std::log2(rate));
  return how;
}

/// One query, one key, one over a tile, more of either, wide values, odd sizes.
std::vector<Case> shapes() {
  std::vector<Case> all = {
      {1, 2, 2, 1, 1, 8, 8},
      {1, 4, 1, 1, 33, 8, 8, false, Masked::nothing, Biased::key_heads},
      {1, 2, 2, 12, 5, 4, 4, true, Masked::nothing, Biased::heads},
      {2, 2, 1, 5, 70, 7, 3, true, Masked::nothing, Biased::no, Memory::heads_inside},
      {1, 2, 2, 65, 65, 8, 8, true},
      {1, 4, 2, 70, 66, 5, 11, false, Masked::holes, Biased::heads},
      {1, 2, 2, 6, 6, 1, 1, true},
      {3, 2, 2, 13, 13, 4, 4, true, Masked::tail},
      {2, 2, 1, 66, 66, 4, 4, true, Masked::head, Biased::key_heads},
      {2, 2, 2, 5, 6, 4, 4, false, Masked::everything, Biased::heads},
      {1, 2, 2, 3, 0, 4, 4},
      {3, 4, 2, 70, 75, 12, 6, true, Masked::holes, Biased::key_heads, Memory::packed},
      {2, 2, 1, 40, 40, 8, 12, true, Masked::tail, Biased::heads, Memory::rows, 7},
      {3, 4, 2, 80, 72, 8, 4, true, Masked::nothing, Biased::key_heads, Memory::packed, 33},
  };
  return all;
}

void sweep(const Mechanism& how) {
  Comparison found;
  std::uint64_t seed = 1;
  for (Case c : shapes()) {
    if (how.weigh.kind >= Kind::decay) c.causal = true;
    compare(found, c, how, ++seed);
    if (how.weigh.kind == Kind::softmax) compare(found, c, how, ++seed);
  }
  expect_agreement(found);
}

TEST(Tile, softmax) {
  for (const Score score : scores) sweep(softmax(score));
}

TEST(Tile, relu2) {
  for (const Rescale rescale : rescales) sweep({Score::product, weigh_of(Kind::relu2, rescale)});
}

TEST(Tile, identity) {
  for (const Rescale rescale : rescales) sweep({Score::product, weigh_of(Kind::identity, rescale)});
  sweep({Score::weighted, weigh_of(Kind::identity, Rescale::l2)});
  sweep({Score::difference, weigh_of(Kind::identity, Rescale::l1)});
}

TEST(Tile, linear_is_identity_over_features) { sweep(linear()); }

TEST(Tile, decay) {
  for (const double rate : {1.0, 0.3}) sweep(decay(rate, false));
}

TEST(Tile, decay_with_content) {
  sweep(decay(0.9, true));
  sweep(decay(0.5, true, Score::weighted));
}

/// A bias of minus infinity hides a key from softmax, and may hide all of them.
TEST(Tile, bias_of_minus_infinity) {
  Comparison found;
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    Drawn drawn({1, 2, 2, 70, 70, 8, 8, false, Masked::nothing, Biased::heads}, softmax(), seed);
    for (std::int64_t j = 0; j < 140; ++j) {
      if (j >= 70 || j % 3 == 0) drawn.bias.data<float>()[j] = -INFINITY;
    }
    compare(found, drawn);
  }
  expect_agreement(found);
}

/// What is masked may hold anything at all.
TEST(Tile, masked_keys_are_not_looked_at) {
  for (const Mechanism& how : {softmax(), linear(), decay(0.9, true)}) {
    Comparison found;
    Drawn drawn({1, 1, 1, 70, 70, 8, 8, true, Masked::holes}, how, 3);
    for (std::int64_t j = 0; j < 70; ++j) {
      for (std::int64_t d = 0; d < 8 && !drawn.keeps(drawn.sequences[0], j); ++d)
        drawn.k.data<float>()[j * 8 + d] = drawn.v.data<float>()[j * 8 + d] = NAN;
    }
    compare(found, drawn);
    expect_agreement(found);
  }
}

/// The kernels of every width, rows and columns one over a tile.
TEST(Tile, wide_lines) {
  for (const Score score : scores) {
    for (const Mechanism& how :
         {softmax(score), Mechanism{score, weigh_of(Kind::identity, Rescale::l2)}}) {
      Comparison found;
      compare(found, {1, 1, 1, 65, 67, 65, 30, true}, how, 7);
      compare(found, {1, 2, 1, 35, 33, 128, 100, false, Masked::holes, Biased::heads}, how, 8);
      compare(found, {1, 1, 1, 65, 34, 129, 40, true}, how, 9);
      compare(found, {1, 1, 1, 33, 66, 6, 256, false}, how, 10);
      compare(found, {1, 1, 1, 34, 34, 256, 255, true}, how, 11);
      expect_agreement(found);
    }
  }
}

TEST(Tile, sixteen_bits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Comparison found;
    for (const Mechanism& how :
         {softmax(), linear(), decay(0.8, true), {Score::difference, weigh_of(Kind::softmax)}}) {
      compare(
          found,
          {2, 4, 2, 70, 70, 16, 8, true, Masked::tail, Biased::heads, Memory::rows, 0, 1, dtype},
          how, 3);
      compare(found,
              {2, 2, 1, 9, 9, 5, 7, true, Masked::nothing, Biased::no, Memory::heads_inside, 0, 1,
               dtype},
              how, 4);
    }
    expect_agreement(found);
  }
}

/// Scores of size 1 from inputs far from it, and scores far from it.
TEST(Tile, large_and_small_numbers) {
  for (const double size : {1e4, 1e-4}) {
    for (const Mechanism& how :
         {softmax(), Mechanism{Score::weighted, weigh_of(Kind::softmax)}, linear(),
          Mechanism{Score::product, weigh_of(Kind::relu2, Rescale::l2)}, decay(0.9, true)}) {
      Comparison found;
      for (std::uint64_t seed = 1; seed < 6; ++seed)
        compare(found,
                {1, 2, 2, 66, 66, 16, 8, true, Masked::nothing, Biased::no, Memory::rows, 0, size},
                how, seed);
      expect_agreement(found);
    }
  }
}

}  // namespace
}  // namespace foci::cuda::cases
