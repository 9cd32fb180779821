// SPDX-License-Identifier: Apache-2.0
// Decoding on the CUDA backend: every mechanism against the full causal pass of ref by the
// tolerance rule, token by token and several at a time, and step by step beside backend cpu; long
// caches, biases and masks that come and go, and what cannot be computed.
#include "attend/check.hpp"
#include "cpu/decoded.hpp"
#include "cuda/gpu.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>

namespace foci {
namespace {

using namespace cases;

Options on_gpu(Options how) {
  how.causal = true;
  how.backend = Backend::cuda;
  return how;
}

/// A case decoded, beside ref's full pass in the same type and in double.
struct OnGpu : Decoded {
  using Decoded::Decoded;

  void answer(Options how) {
    for (const char* name : {"q", "k", "v", "v_prev", "metric", "key_bias", "key_mask"})
      share(name);
    how.causal = true;
    how.backend = Backend::ref;
    attend(decoded_outputs(naive, how), naive.inputs(), how);
    attend(decoded_outputs(exact, how), exact.inputs(), how);
  }
  void add(Rule& rule, Decoder& decoder, const Options& how, std::int64_t step) {
    decode(decoder, ours, decoded_outputs(ours, on_gpu(how)), step);
    EXPECT_EQ(decoder.length(), ours.c.N);
    rule.add(ours, naive, exact);
  }
};

bool fits(const Made& made, Options how) {
  how.causal = true;
  how.backend = Backend::ref;
  return refused(made.inputs(), how).empty();
}

/// One shape after another, from a new decoder and from a reset one.
struct Sweep {
  int turn = 0;

  void compare(const Options& how, DType dtype, const std::string& what, bool everywhere = false) {
    Rule rule;
    const char* names[] = {"small", "padded", "left_padded", "holes"};
    const bool softmax = std::holds_alternative<Softmax>(how.weighting);
    for (int i = 0; i < (everywhere ? 4 : softmax ? 3 : 1); ++i) {
      OnGpu three(shape(names[turn++ % 4]), dtype);
      three.prepare(how, has_bias(how.weighting));
      if (!fits(three.ours, how)) return;
      three.answer(how);
      Decoder decoder(sizes_of(three.ours.c, dtype), on_gpu(how));
      three.add(rule, decoder, how, 4);
      if (!everywhere || i > 0) continue;
      decoder.reset();
      three.add(rule, decoder, how, 1);
    }
    rule.expect(what + " " + std::string(name_of(dtype)));
  }
};

TEST(CudaDecode, equals_the_full_pass) {
  FOCI_WANT_GPU();
  Sweep sweep;
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      const Options how{.metric = metric.metric, .weighting = weighting.weighting};
      sweep.compare(how, DType::f32, metric.name + " " + weighting.name);
    }
  }
}

TEST(CudaDecode, equals_the_full_pass_in_every_type_and_shape) {
  FOCI_WANT_GPU();
  Sweep sweep;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Metric& metric : {Metric(LayerChange{}), Metric(KeyCovariance{.period = 4})})
      sweep.compare({.metric = metric}, dtype, std::string(checks::name_of(metric)), true);
    for (const Weighting& weighting : {Weighting(Linear{}), Weighting(Decay{0.8, true})})
      sweep.compare({.weighting = weighting}, dtype, std::string(checks::name_of(weighting)), true);
  }
}

/// o, of softmax lse, and m where it is a line a token: what a step of one launch gives.
Outputs few_outputs(Made& made, const Options& how) {
  const Case& c = made.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  Outputs to{.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype)};
  if (!std::holds_alternative<Softmax>(how.weighting)) return to;
  to.lse = made.fresh("lse", {c.B, c.H, c.N}, wide);
  if (std::holds_alternative<LayerChange>(how.metric))
    to.metric = made.fresh("metric_used", {c.B, c.G, c.N, c.D}, wide);
  return to;
}

/// A prompt, then single tokens and a few at a time; after each step both backends must agree as
/// well as the rule lets either be off.
void step_beside_cpu(const Options& how, const Case& c, DType dtype, const std::string& what) {
  OnGpu three(c, dtype);
  three.prepare(how, has_bias(how.weighting));
  if (!fits(three.ours, how)) return;
  three.answer(how);
  Made other = three.copy();
  Options on_cpu = on_gpu(how);
  on_cpu.backend = Backend::cpu;
  Decoder gpu(sizes_of(c, dtype), on_gpu(how)), cpu(sizes_of(c, dtype), on_cpu);
  const Outputs to = few_outputs(three.ours, how), beside = few_outputs(other, how);
  const std::vector<double> right = three.exact["o"].values();
  double largest = 0;
  for (const double x : right) largest = std::max(largest, std::abs(x));
  const double allowed = 2 * farthest(three.naive["o"].values(), right) + eps_of(dtype) * largest;
  for (std::int64_t i = 0, n = c.N - 10; i < c.N; i += n, n = std::min(i % 3 + 1, c.N - i)) {
    gpu.step(rows(to, i, i + n), tokens(three.ours, i, i + n));
    cpu.step(rows(beside, i, i + n), tokens(other, i, i + n));
    const Tensor o = Tensor::copy(rows(to, i, i + n).o, DType::f64),
                 same = Tensor::copy(rows(beside, i, i + n).o, DType::f64);
    EXPECT_LE(farthest(o.values(), same.values()), 2 * allowed) << what << ", token " << i;
  }
  Rule rule;
  rule.add(three.ours, three.naive, three.exact);
  rule.expect(what);
}

/// The emulator takes those that are one launch, and key-covariance.
TEST(CudaDecode, follows_backend_cpu_step_by_step) {
  FOCI_WANT_GPU();
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      const Options how{.metric = metric.metric, .weighting = weighting.weighting};
#ifdef FOCI_EMULATED
      const bool few = metric.name == "dot" || metric.name == "layer_change_mean";
      const bool some = few || metric.name == "flat" || metric.name == "key_covariance";
      if (weighting.name == "softmax" ? !some : !few) continue;
#endif
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const std::string what = metric.name + " " + weighting.name + " ";
        if (dtype != DType::f32 && weighting.name != "softmax") continue;
        const Masked masked = dtype == DType::bf16 ? Masked::holes : Masked::nothing;
        step_beside_cpu(how, {"beside", 1, 4, 2, 76, 76, 8, 8, masked}, dtype,
                        what + std::string(name_of(dtype)));
      }
    }
  }
}

/// Chunks that end within a step and between steps, after a prompt, and where a step that asks for
/// statistics comes in between.
TEST(CudaDecode, covariances_go_on_from_ended_chunks) {
  FOCI_WANT_GPU();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Options how{.metric = KeyCovariance{.ridge = 1e-3, .period = 16}};
    OnGpu three({"chunks", 1, 2, 1, 110, 110, dtype == DType::f32 ? 8 : 12, 8}, dtype);
    three.answer(how);
    Decoder decoder(sizes_of(three.ours.c, dtype), on_gpu(how));
    const Outputs all = decoded_outputs(three.ours, on_gpu(how));
    for (std::int64_t i = 0, n = 70; i < 110;
         i += n, n = std::min<std::int64_t>(i % 7 + 1, 110 - i)) {
      Outputs part = rows(all, i, i + n);
      const bool few = i > 75 && i != 100;
      if (few) part = {.o = part.o, .lse = part.lse};
      decoder.step(part, tokens(three.ours, i, i + n));
    }
    for (const char* name : {"concentration", "effective_keys", "entropy", "largest", "largest_at"})
      three.ours.fresh(name, {}, dtype);
    Rule rule;
    rule.add(three.ours, three.naive, three.exact);
    rule.expect(std::string(name_of(dtype)));
  }
}

/// Lines longer than a tile and none of them whole.
TEST(CudaDecode, takes_any_size) {
  FOCI_WANT_GPU();
  for (const auto& weighting : weightings()) {
    const Options how{.weighting = weighting.weighting};
    Rule rule;
    OnGpu three({"odd", 1, 9, 1, 7, 7, 77, 141}, DType::f32);
    three.answer(how);
    Decoder decoder(sizes_of(three.ours.c, DType::f32), on_gpu(how));
    three.add(rule, decoder, how, 3);
    rule.expect(weighting.name);
  }
}

/// A prompt of 600 tokens, then ten alone and ten five at a time.
void go_on(const Case& c, DType dtype, const Metric& metric, bool biased) {
  Options how{.metric = metric, .causal = true, .backend = Backend::ref};
  Decoded three(c, dtype);
  if (biased)
    three.ours.put("key_bias",
                   Tensor::copy(three.ours.normal("key_bias", {1, c.H, c.M}, 2), DType::f32));
  for (const char* name : {"q", "k", "v", "v_prev", "key_mask", "key_bias"}) three.share(name);
  const auto outputs = [&](Made& made) {
    const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
    return Outputs{.o = made.fresh("o", {1, c.H, c.N, c.E}, made.dtype),
                   .lse = made.fresh("lse", {1, c.H, c.N}, wide)};
  };
  attend(outputs(three.naive), three.naive.inputs(), how);
  attend(outputs(three.exact), three.exact.inputs(), how);
  Decoder decoder(sizes_of(c, dtype), on_gpu(how));
  const Outputs to = outputs(three.ours);
  decoder.step(rows(to, 0, 600), tokens(three.ours, 0, 600));
  for (std::int64_t i = 600, n = 1; i < 620; i += n) {
    n = i < 610 ? 1 : 5;
    decoder.step(rows(to, i, i + n), tokens(three.ours, i, i + n));
  }
  Rule rule;
  rule.add(three.ours, three.naive, three.exact);
  rule.expect(std::string(name_of(dtype)));
}

/// So many keys that they are split over blocks; lines that are read in pieces, and not.
TEST(CudaDecode, goes_on_over_a_long_cache) {
  FOCI_WANT_GPU();
  for (const Metric& metric : {Metric(Dot{}), Metric(LayerChange{})}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      go_on({"long", 1, 4, 2, 620, 620, 16, 16, Masked::holes}, dtype, metric, false);
  }
  go_on({"many rows", 1, 8, 1, 620, 620, 24, 24}, DType::bf16, LayerChange{}, true);
  go_on({"odd", 1, 2, 1, 620, 620, 12, 12}, DType::bf16, Flat{}, true);
}

TEST(CudaDecode, crosses_many_chunks) {
  FOCI_WANT_GPU();
  const Options how{.metric = KeyCovariance{.ridge = 1e-3, .period = 16}};
  OnGpu three({"long", 1, 2, 1, 70, 70, 8, 8, Masked::holes}, DType::f32);
  three.answer(how);
  Decoder decoder(sizes_of(three.ours.c, DType::f32), on_gpu(how));
  Rule rule;
  three.add(rule, decoder, how, 3);
  rule.expect("covariance");
}

/// Without keys for a while, and slowly: what is left of the past must neither drift nor die.
TEST(CudaDecode, decays_over_gaps) {
  FOCI_WANT_GPU();
  for (const double rate : {0.5, 0.999, 1.0}) {
    for (const bool content : {false, true}) {
      const Options how{.weighting = Decay{rate, content}};
      OnGpu three({"gaps", 1, 2, 1, 120, 120, 4, 4, Masked::tail}, DType::f32);
      auto* keep = three.ours["key_mask"].data<std::uint8_t>();
      for (int j = 0; j < 120; ++j) keep[j] = j % 50 < 20;
      three.answer(how);
      Decoder decoder(sizes_of(three.ours.c, DType::f32), on_gpu(how));
      Rule rule;
      three.add(rule, decoder, how, 7);
      rule.expect(std::to_string(rate) + (content ? " content" : ""));
    }
  }
}

/// Coordinates that rise one after another, fall below all that came before, or never count.
TEST(CudaDecode, exponentials_of_keys_neither_overflow_nor_vanish) {
  FOCI_WANT_GPU();
  const Options how{.weighting = Linear{Feature::exp}};
  OnGpu three({"rising", 1, 2, 1, 60, 60, 4, 6}, DType::f32);
  float *k = three.ours["k"].data<float>(), *q = three.ours["q"].data<float>();
  for (int j = 0; j < 60; ++j) {
    k[4 * j] += 3.0f * float(j);
    k[4 * j + 1] -= 100.0f * float(j);
    k[4 * j + 2] += j == 30 ? 300.0f : 0.0f;
    k[4 * j + 3] = j < 20 ? -INFINITY : k[4 * j + 3];
  }
  for (int i = 0; i < 2 * 60; ++i) q[4 * i] -= 2.0f * float(i % 60);
  three.answer(how);
  Decoder decoder(sizes_of(three.ours.c, DType::f32), on_gpu(how));
  const Outputs all = decoded_outputs(three.ours, on_gpu(how));
  decode(decoder, three.ours, all, 1);
  Rule rule;
  rule.add(three.ours, three.naive, three.exact);
  decoder.reset();
  decode(decoder, three.ours, {.o = all.o}, 1);
  rule.add(three.ours, three.naive, three.exact);
  rule.expect("rising");
}

/// What a token that is masked or gone holds reaches no row, not even as 0 times infinity.
TEST(CudaDecode, keeps_nothing_of_masked_or_forgotten_tokens) {
  FOCI_WANT_GPU();
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      Options how{.metric = metric.metric, .weighting = weighting.weighting};
      Decoded clean(shape("holes"), DType::f32);
      clean.prepare(how);
      const bool either = metric.name == "dot" ? weighting.name.find('_') == std::string::npos
                                               : weighting.name == "softmax";
      if (!either || !fits(clean.ours, how)) continue;
      how = on_gpu(how);
      Made dirty = clean.copy(), poison = clean.copy();
      for (const char* name : {"k", "v", "v_prev"}) {
        for (int i = 0; i < 2 * 2 * 15 * 4; ++i) {
          const bool kept = dirty["key_mask"].data<std::uint8_t>()[i / 120 * 15 + i / 4 % 15] != 0;
          if (!kept) dirty[name].data<float>()[i] = std::nanf("");
          poison[name].data<float>()[i] = i % 2 == 0 ? std::nanf("") : INFINITY;
        }
      }
      Decoder decoder(sizes_of(clean.ours.c, DType::f32), how),
          soiled(sizes_of(clean.ours.c, DType::f32), how);
      decode(decoder, clean.ours, decoded_outputs(clean.ours, how), 5);
      try {
        decode(soiled, poison, decoded_outputs(poison, how), 5);
      } catch (const NumericalError&) {  // a covariance of such keys
      }
      soiled.reset();
      decode(soiled, dirty, decoded_outputs(dirty, how), 5);
      expect_same_bits(clean.ours, dirty, metric.name + " " + weighting.name);
    }
  }
}

/// What fails on the way takes no token, over host memory, where somebody can be told.
TEST(CudaDecode, a_covariance_that_fails_takes_no_token) {
  FOCI_WANT_GPU();
  const Options how = on_gpu({.metric = KeyCovariance{.ridge = 0, .prior = 0.0, .period = 2}});
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

TEST(CudaDecode, a_bad_metric_takes_no_token) {
  FOCI_WANT_GPU();
  const Options how = on_gpu({.metric = Given{Form::product, Extent::full}});
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

/// Tokens and rows in device memory, as they are.
TEST(CudaDecode, takes_device_memory) {
  FOCI_WANT_GPU();
  const Case c = shape("small");
  const Options how = on_gpu({.metric = LayerChange{}});
  Made made(c, 3, DType::f32);
  Decoder staged(sizes_of(c, DType::f32), how), there(sizes_of(c, DType::f32), how);
  decode(staged, made, {.o = made.fresh("o", {c.B, c.H, c.N, c.E}, DType::f32)}, c.N);
  const DeviceTensor q = DeviceTensor::copy(made["q"]), k = DeviceTensor::copy(made["k"]),
                     v = DeviceTensor::copy(made["v"]), before = DeviceTensor::copy(made["v_prev"]);
  const DeviceTensor o(DType::f32, made["o"].view().sizes());
  there.step({.o = o}, {.q = q, .k = k, .v = v, .v_prev = before});
  EXPECT_EQ(o.host().values(), made["o"].values());
  there.reset();
  const auto mixed = [&] {
    there.step({.o = o}, {.q = q, .k = made["k"], .v = v, .v_prev = before});
  };
  EXPECT_EQ(thrown<InvalidArgument>(mixed),
            "k lies in host memory and q on the GPU; a call's tensors lie on one side");
  EXPECT_EQ(there.length(), 0);
}

TEST(CudaDecode, says_what_it_does_not_take) {
  FOCI_WANT_GPU();
  const auto made = [](DType dtype, std::int64_t D) {
    return thrown<Unsupported>(
        [&] { Decoder({.D = D, .E = 4, .capacity = 3, .dtype = dtype}, on_gpu({})); });
  };
  EXPECT_EQ(made(DType::f64, 4),
            "backend cuda computes in f32 and takes no f64; the nearest that can is backend ref");
  EXPECT_NE(made(DType::f32, 300).find("at most 256 numbers"), std::string::npos);
}

}  // namespace
}  // namespace foci
