// SPDX-License-Identifier: Apache-2.0
// What is particular about decoding on the CPU backend: sizes over every tile, ranges, biases and
// metrics that come and go, numbers that must not leak, memory, and what cannot be computed.
#include "allocations.hpp"
#include "decoded.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>

namespace foci {
namespace {

using namespace cases;

/// Heads in groups of nine, lines longer than every tile and none of them whole.
TEST(CpuDecode, takes_any_size) {
  on_every_isa([] {
    for (const auto& weighting : weightings()) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Decoded three({"odd", 1, 9, 1, 37, 37, 77, 141}, dtype);
        three.compare({.weighting = weighting.weighting}, weighting.name);
      }
    }
  });
}

TEST(CpuDecode, crosses_many_chunks) {
  on_every_isa([] {
    Decoded three({"long", 1, 2, 1, 300, 300, 8, 8, Masked::holes}, DType::f32);
    three.compare({.metric = KeyCovariance{.ridge = 1e-3}}, "covariance");
  });
}

TEST(CpuDecode, holds_at_large_and_small_values) {
  on_every_isa([] {
    for (const double size : {1e4, 1e-4}) {
      for (const auto& weighting : weightings()) {
        Decoded three(shape("padded"), DType::f32, size);
        three.compare({.weighting = weighting.weighting}, weighting.name);
      }
    }
  });
}

/// Coordinates that rise one after another, fall below all that came before, or never count.
TEST(CpuDecode, exponentials_of_keys_neither_overflow_nor_vanish) {
  on_every_isa([] {
    Decoded three({"rising", 1, 2, 1, 60, 60, 4, 6}, DType::f32);
    float *k = three.ours["k"].data<float>(), *q = three.ours["q"].data<float>();
    for (int j = 0; j < 60; ++j) {
      k[4 * j] += 3.0f * float(j);
      k[4 * j + 1] -= 100.0f * float(j);
      k[4 * j + 2] += j == 30 ? 300.0f : 0.0f;
      k[4 * j + 3] = j < 20 ? -INFINITY : k[4 * j + 3];
    }
    for (int i = 0; i < 2 * 60; ++i) q[4 * i] -= 2.0f * float(i % 60);
    three.compare({.weighting = Linear{Feature::exp}}, "rising");
  });
}

TEST(CpuDecode, features_of_keys_far_below_zero_still_count) {
  on_every_isa([] {
    for (const float far : {-50.0f, -86.0f, -95.0f}) {
      Decoded three(shape("small"), DType::f32);
      float* k = three.ours["k"].data<float>();
      for (int j = 0; j < 2 * 2 * 9 * 4; ++j) k[j] += far;
      three.compare({.weighting = Linear{}}, std::to_string(far));
    }
  });
}

/// Without keys for a while, and slowly: what is left of the past must neither drift nor die.
TEST(CpuDecode, decays_over_gaps) {
  on_every_isa([] {
    for (const double rate : {0.5, 0.999, 1.0}) {
      for (const bool content : {false, true}) {
        Decoded three({"gaps", 1, 2, 1, 200, 200, 4, 4, Masked::tail}, DType::f32);
        auto* keep = three.ours["key_mask"].data<std::uint8_t>();
        for (int j = 0; j < 200; ++j) keep[j] = j % 50 < 20;
        three.compare({.weighting = Decay{rate, content}},
                      std::to_string(rate) + (content ? " content" : ""));
      }
    }
  });
}

TEST(CpuDecode, hides_keys_whose_bias_is_minus_infinity) {
  on_every_isa([] {
    Decoded three(shape("small"), DType::f32);
    Tensor bias(DType::f32, {2, 4, 9});
    for (int h = 0; h < 8; ++h) bias.data<float>()[h * 9] = -INFINITY;  // the first key of all
    for (int j = 0; j < 9; ++j) bias.data<float>()[j] = -INFINITY;      // every key of one head
    three.ours.put("key_bias", std::move(bias));
    three.compare({}, "hidden");
  });
}

/// A decoder of the CPU backend and one of ref, fed alike, and ref in double.
struct Fed {
  Options how;
  Case c;
  Decoded three;
  Decoder ours, naive, exact;
  Fed(const Options& options, const Case& of)
      : how(options),
        c(of),
        three(of, DType::f32),
        ours(sizes_of(of, DType::f32), on(Backend::cpu)),
        naive(sizes_of(of, DType::f32), on(Backend::ref)),
        exact(sizes_of(of, DType::f64), on(Backend::ref)) {
    three.prepare(how);
    for (const char* name : {"q", "k", "v", "v_prev", "metric", "key_mask"}) three.share(name);
  }
  Options on(Backend backend) const {
    Options options = how;
    options.causal = true;
    options.backend = backend;
    return options;
  }
  /// change(inputs, i) may alter what token i brings.
  template <class Change>
  void compare(Change&& change) {
    const auto feed = [&](Decoder& decoder, Made& made) {
      Outputs to = decoded_outputs(made, how);
      to.metric = made.fresh("metric_used", {}, DType::f32);
      for (std::int64_t i = 0; i < c.N; ++i) {
        Inputs from = tokens(made, i, i + 1);
        change(from, i);
        decoder.step(rows(to, i, i + 1), from);
      }
    };
    feed(ours, three.ours);
    feed(naive, three.naive);
    feed(exact, three.exact);
    Rule rule;
    rule.add(three.ours, three.naive, three.exact);
    rule.expect("fed");
  }
};

TEST(CpuDecode, takes_a_bias_now_and_then) {
  on_every_isa([] {
    for (const Weighting& weighting :
         {Weighting(Softmax{}), Weighting(Identity{}), Weighting(Decay{0.8, true})}) {
      Fed fed({.weighting = weighting, .causal = true}, shape("holes"));
      fed.three.ours.normal("key_bias", {2, 2, 15}, 1);
      fed.three.share("key_bias");
      fed.compare([](Inputs& from, std::int64_t i) {
        if (i % 3 != 1) from.key_bias = {};
      });
    }
  });
}

TEST(CpuDecode, takes_another_metric_with_every_token) {
  on_every_isa([] {
    std::vector<Tensor> given;
    for (unsigned i = 0; i < 15; ++i) {
      Made made(shape("holes"), i / 3, DType::f32);  // each a few times
      give_metric(made, Given{Form::product, Extent::full});
      given.push_back(Tensor::copy(made["metric"], DType::f32));
    }
    Fed full({.metric = Given{Form::product, Extent::full}}, shape("holes"));
    full.compare([&](Inputs& from, std::int64_t i) { from.metric = given[std::size_t(i)]; });
    Fed lines({.metric = Given{}}, shape("holes"));
    for (Tensor& m : given) {
      Tensor line(DType::f32, {2, 4, 1, 4});  // a line for every query head
      for (int d = 0; d < 32; ++d) line.data<float>()[d] = std::abs(m.data<float>()[d]);
      m = std::move(line);
    }
    lines.compare([&](Inputs& from, std::int64_t i) { from.metric = given[std::size_t(i)]; });
  });
}

/// What a token that is masked or gone holds reaches no row, not even as 0 times infinity.
TEST(CpuDecode, keeps_nothing_of_masked_or_forgotten_tokens) {
  on_every_isa([] {
    for (const auto& metric : metrics()) {
      for (const auto& weighting : weightings()) {
        Options how{.metric = metric.metric, .weighting = weighting.weighting, .causal = true};
        Decoded clean(shape("holes"), DType::f32);
        clean.prepare(how);
        if (!refused(clean.ours.inputs(), how).empty()) continue;
        how.backend = Backend::cpu;
        Made dirty = clean.copy(), poison = clean.copy();
        for (const char* name : {"k", "v", "v_prev"}) {
          for (int i = 0; i < 2 * 2 * 15 * 4; ++i) {
            const bool kept =
                dirty["key_mask"].data<std::uint8_t>()[i / 120 * 15 + i / 4 % 15] != 0;
            if (!kept) dirty[name].data<float>()[i] = std::nanf("");
            poison[name].data<float>()[i] = i % 2 == 0 ? std::nanf("") : INFINITY;
          }
        }
        Decoder decoder(sizes_of(clean.ours.c, DType::f32), how),
            soiled(sizes_of(clean.ours.c, DType::f32), how);
        decode(decoder, clean.ours, decoded_outputs(clean.ours, how), 1);
        try {
          decode(soiled, poison, decoded_outputs(poison, how), 1);
        } catch (const NumericalError&) {  // a covariance of such keys
        }
        soiled.reset();
        decode(soiled, dirty, decoded_outputs(dirty, how), 1);
        expect_same_bits(clean.ours, dirty, metric.name + " " + weighting.name);
      }
    }
  });
}

TEST(CpuDecode, gives_the_same_output_whether_or_not_statistics_are_asked) {
  for (const auto& weighting : weightings()) {
    const Options how{.weighting = weighting.weighting, .causal = true, .backend = Backend::cpu};
    Decoded three(shape("holes"), DType::f32);
    Made alone = three.copy();
    Decoder decoder(sizes_of(three.ours.c, DType::f32), how);
    decode(decoder, three.ours, decoded_outputs(three.ours, how), 1);
    decoder.reset();
    decode(decoder, alone, {.o = alone.fresh("o", {2, 4, 15, 4}, DType::f32)}, 1);
    EXPECT_EQ(three.ours["o"].values(), alone["o"].values()) << weighting.name;
  }
}

TEST(CpuDecode, allocates_nothing) {
  on_every_isa([] {
    for (const auto& metric : metrics()) {
      for (const auto& weighting : weightings()) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          const Options how{.metric = metric.metric,
                            .weighting = weighting.weighting,
                            .causal = true,
                            .backend = Backend::cpu};
          Made made({"tokens", 1, 4, 2, 3, 3, 4, 4}, 1, dtype);
          give_metric(made, how.metric);
          Options asked = how;
          asked.backend = Backend::ref;
          if (!refused(made.inputs(), asked).empty()) continue;
          Decoder decoder({.B = 1, .H = 4, .G = 2, .D = 4, .E = 4, .capacity = 30, .dtype = dtype},
                          how);
          const Outputs to = decoded_outputs(made, how);
          const Inputs from = made.inputs();
          const std::int64_t before = allocations;
          for (int t = 0; t < 10; ++t) decoder.step(to, from);
          EXPECT_EQ(allocations, before) << metric.name << " " << weighting.name;
        }
      }
    }
  });
}

/// What fails on the way is found before any head takes the token.
TEST(CpuDecode, a_covariance_that_fails_takes_no_token) {
  const Options how{.metric = KeyCovariance{.ridge = 0, .prior = 0.0, .period = 2},
                    .causal = true,
                    .backend = Backend::cpu};
  Made three({"tokens", 2, 1, 1, 3, 3, 2, 2}, 1, DType::f32);
  for (int i = 0; i < 6; ++i) three["k"].data<float>()[i] = float(i * i);
  for (int i = 0; i < 6; ++i) three["k"].data<float>()[6 + i] = 3;  // does not scatter
  Decoder decoder({.B = 2, .H = 1, .G = 1, .D = 2, .E = 2, .capacity = 6}, how);
  const Outputs to{.o = three.fresh("o", {2, 1, 3, 2}, DType::f32)};
  EXPECT_NE(thrown<NumericalError>([&] {
              decoder.step(to, three.inputs());
            }).find("sequence 1, key head 0 (2 keys)"),
            std::string::npos);
  EXPECT_EQ(decoder.length(), 2) << "the third token is the first that asks for a covariance";
  for (int again = 0; again < 10; ++again)
    EXPECT_THROW(decoder.step(rows(to, 2, 3), tokens(three, 2, 3)), NumericalError);
  EXPECT_EQ(decoder.length(), 2);
}

TEST(CpuDecode, a_bad_metric_takes_no_token) {
  const Options how{
      .metric = Given{Form::product, Extent::full}, .causal = true, .backend = Backend::cpu};
  Decoder decoder({.B = 1, .H = 2, .G = 1, .D = 4, .E = 4, .capacity = 3}, how);
  Made token({"token", 1, 2, 1, 1, 1, 4, 4}, 1, DType::f32);
  const Outputs to{.o = token.fresh("o", {1, 2, 1, 4}, DType::f32)};
  Tensor good(DType::f32, {1, 1, 4, 4}), bad(DType::f32, {1, 1, 4, 4});
  for (int d = 0; d < 4; ++d) good.data<float>()[d * 5] = 1;
  bad.data<float>()[1] = bad.data<float>()[4] = 2;
  Inputs from = token.inputs();
  for (int again = 0; again < 10; ++again) {  // more often than the decoder has room
    from.metric = bad;
    EXPECT_EQ(thrown<InvalidArgument>([&] { decoder.step(to, from); }),
              "metric given: P of batch 0, key head 0 is not positive semidefinite");
  }
  EXPECT_EQ(decoder.length(), 0);
  from.metric = good;
  decoder.step(to, from);
  for (int e = 0; e < 4; ++e)
    EXPECT_EQ(token["o"].data<float>()[e], token["v"].data<float>()[e]);  // one key
}

TEST(CpuDecode, asks_for_the_instruction_set_when_it_is_made) {
  ASSERT_EQ(setenv("FOCI_ISA", "sse9", 1), 0);
  const auto make = [] {
    return Decoder({.D = 4, .E = 4, .capacity = 3}, {.causal = true, .backend = Backend::cpu});
  };
  EXPECT_NE(thrown<InvalidArgument>([&] { make(); }).find("FOCI_ISA is 'sse9'"), std::string::npos);
  unsetenv("FOCI_ISA");
  Decoder decoder = make();
  ASSERT_EQ(setenv("FOCI_ISA", "sse9", 1), 0);
  Made token({"token", 1, 1, 1, 1, 1, 4, 4}, 1, DType::f32);
  EXPECT_NO_THROW(decoder.step({.o = token.fresh("o", {1, 1, 1, 4}, DType::f32)}, token.inputs()));
  unsetenv("FOCI_ISA");
}

}  // namespace
}  // namespace foci
