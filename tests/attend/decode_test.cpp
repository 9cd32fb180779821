// SPDX-License-Identifier: Apache-2.0
// Decoding token by token, or a few at a time, gives what the full causal pass gives; by the
// tolerance rule of the type, and in double to rounding.
#include "steps.hpp"
#include "thrown.hpp"

#include <foci/device.hpp>
#include <foci/error.hpp>

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

/// 0 where both are the same infinity.
double apart(double a, double b) { return a == b ? 0 : std::abs(a - b); }

void expect_near(const Made& full, const Made& decoded, double tolerance) {
  for (const std::string& name : results(full)) {
    const std::vector<double> want = full[name].values(), got = decoded[name].values();
    double largest = 0;
    for (const double x : want)
      largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(apart(want[i], got[i]), tolerance * (largest + 1e-300)) << name << "[" << i << "]";
    }
  }
}

void compare(const Case& c, const Options& how, std::int64_t step, DType dtype, double tolerance) {
  Made full(c, 9, dtype), decoded(c, 9, dtype);
  for (Made* made : {&full, &decoded}) give_metric(*made, how.metric);
  if (!refused(full.inputs(), how).empty()) return;
  for (Made* made : {&full, &decoded}) {
    made->normal("key_bias", {c.B, c.G, c.M}, 1);
    if (!refused(made->inputs(), how).empty())
      *made = Made(c, 9, dtype), give_metric(*made, how.metric);
  }
  const Outputs whole = decoded_outputs(full, how), parts = decoded_outputs(decoded, how);
  attend(whole, full.inputs(), how);
  Decoder decoder(sizes_of(c, dtype), how);
  for (int again = 0; again < 2; ++again) {  // the second time from a reset decoder
    decode(decoder, decoded, parts, step);
    EXPECT_EQ(decoder.length(), c.N);
    expect_near(full, decoded, tolerance);
    decoder.reset();
  }
}

TEST(Decode, equals_the_full_pass) {
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      for (const char* name : {"small", "padded", "left_padded", "holes"}) {
        for (const std::int64_t step : {1, 4}) {
          SCOPED_TRACE(metric.name + " " + weighting.name + " " + name);
          compare(shape(name),
                  {.metric = metric.metric, .weighting = weighting.weighting, .causal = true}, step,
                  DType::f64, 1e-11);
        }
      }
    }
  }
}

TEST(Decode, equals_the_full_pass_in_every_type) {
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f32, 2e-5}, {DType::bf16, 2e-2}, {DType::f16, 2e-3}}) {
    for (const Metric& metric :
         {Metric(Dot{}), Metric(LayerChange{}), Metric(KeyCovariance{.period = 4})}) {
      compare(shape("holes"), {.metric = metric, .causal = true}, 1, dtype, tolerance);
    }
  }
}

TEST(Decode, crosses_many_chunks) {
  compare({"long", 1, 2, 1, 300, 300, 8, 8, Masked::holes},
          {.metric = KeyCovariance{.ridge = 1e-3}, .causal = true}, 7, DType::f64, 1e-10);
}

class DecoderMessages : public testing::Test {
 protected:
  DecoderSizes sizes_{.B = 1, .H = 2, .G = 1, .D = 4, .E = 4, .capacity = 3, .dtype = DType::f64};
  Options how_{.causal = true};
  Made token_{{"token", 1, 2, 1, 1, 1, 4, 4}};

  Outputs to() {
    return {.o = token_.fresh("o", {token_.c.B, token_.c.H, token_.c.N, token_.c.E}, token_.dtype)};
  }
  std::string when_made() {
    return thrown<InvalidArgument>([&] { Decoder decoder(sizes_, how_); });
  }
  std::string when_stepped(Decoder& decoder) {
    return thrown<InvalidArgument>([&] { decoder.step(to(), token_.inputs()); });
  }
};

TEST_F(DecoderMessages, about_options_and_sizes) {
  how_.causal = false;
  EXPECT_EQ(when_made(), "a decoder attends to the past only: set causal");
  how_ = {.metric = LayerChange{.scope = Scope::sequence}, .causal = true, .allow_leak = true};
  EXPECT_EQ(when_made(), "a decoder never sees the whole sequence: its scope is prefix");
  how_ = {.causal = true};
  sizes_.G = 3;
  EXPECT_NE(when_made().find("H a multiple of G"), std::string::npos);
  sizes_.G = 1;
  sizes_.dtype = DType::i64;
  EXPECT_EQ(when_made(), "decoder type i64; it must be f64, f32, bf16 or f16");
  sizes_.dtype = DType::f64;
  how_.backend = Backend::cuda;
  EXPECT_EQ(thrown<Unsupported>([&] { Decoder decoder(sizes_, how_); }),
            has_cuda() ? "backend cuda computes in f32 and takes no f64; the nearest that can is "
                         "backend ref"
                       : "backend cuda is not in this build; it has: cpu, ref");
  how_.backend = Backend::cpu;
  EXPECT_EQ(thrown<Unsupported>([&] { Decoder decoder(sizes_, how_); }),
            "backend cpu computes in f32 and takes no f64; the nearest that can is backend ref");
}

TEST_F(DecoderMessages, about_a_step_and_it_leaves_the_state_alone) {
  Decoder decoder(sizes_, how_);
  decoder.step(to(), token_.inputs());

  Made wrong({"wrong", 1, 2, 1, 1, 1, 8, 4});
  std::swap(wrong, token_);
  EXPECT_EQ(when_stepped(decoder),
            "the step has B 1, H 2, G 1, D 8, E 4; the decoder was made for 1, 2, 1, 4, 4");
  token_ = Made({"cross", 1, 2, 1, 1, 2, 4, 4});
  EXPECT_EQ(when_stepped(decoder), "a step brings as many queries as keys; it has 1 and 2");
  token_ = Made({"long", 1, 2, 1, 3, 3, 4, 4});
  EXPECT_EQ(when_stepped(decoder), "the decoder holds 1 of 3 tokens; 3 more do not fit");
  token_ = Made({"token", 1, 2, 1, 1, 1, 4, 4}, 1, DType::f32);
  EXPECT_EQ(when_stepped(decoder), "the step's type is f32; the decoder was made for f64");

  token_ = std::move(wrong);
  token_.put("q", Tensor::copy(Made({"other", 1, 2, 1, 1, 1, 4, 4}, 8)["q"], DType::f64));
  token_.put("v", Tensor::copy(Made({"other", 1, 2, 1, 1, 1, 4, 4}, 8)["v"], DType::f64));
  decoder.step(to(), token_.inputs());
  const std::vector<double> disturbed = token_["o"].values();
  Decoder calm(sizes_, how_);
  Made first({"token", 1, 2, 1, 1, 1, 4, 4});
  calm.step({.o = first.fresh("o", {1, 2, 1, 4}, DType::f64)}, first.inputs());
  calm.step(to(), token_.inputs());
  EXPECT_EQ(disturbed, token_["o"].values());
  EXPECT_EQ(decoder.length(), 2);
}

/// What fails on the way is found before any head takes the token.
TEST_F(DecoderMessages, about_metrics_that_cannot_be_used_and_it_leaves_the_state_alone) {
  how_.metric = Given{Form::product, Extent::full};
  Decoder decoder(sizes_, how_);
  Tensor good(DType::f64, {1, 1, 4, 4}), bad(DType::f64, {1, 1, 4, 4});
  for (int d = 0; d < 4; ++d) good.data<double>()[d * 5] = 1;
  bad.data<double>()[1] = bad.data<double>()[4] = 2;
  Inputs from = token_.inputs();
  for (int again = 0; again < 10; ++again) {  // more often than the decoder has room
    from.metric = bad;
    EXPECT_EQ(thrown<InvalidArgument>([&] { decoder.step(to(), from); }),
              "metric given: P of batch 0, key head 0 is not positive semidefinite");
  }
  EXPECT_EQ(decoder.length(), 0);
  from.metric = good;
  decoder.step(to(), from);
  for (int e = 0; e < 4; ++e)
    EXPECT_EQ(token_["o"].data<double>()[e], token_["v"].data<double>()[e]);  // one key
}

TEST_F(DecoderMessages, a_covariance_that_fails_takes_no_token) {
  sizes_ = {.B = 2, .H = 1, .G = 1, .D = 2, .E = 2, .capacity = 6, .dtype = DType::f64};
  how_.metric = KeyCovariance{.ridge = 0, .prior = 0.0, .period = 2};
  Made three({"tokens", 2, 1, 1, 3, 3, 2, 2});
  for (int i = 0; i < 6; ++i)
    three["k"].data<double>()[6 + i] = 3;  // batch entry 1 does not scatter
  for (int i = 0; i < 6; ++i) three["k"].data<double>()[i] = i * i;
  Decoder decoder(sizes_, how_);
  const Outputs to{.o = three.fresh("o", {2, 1, 3, 2}, DType::f64)};
  EXPECT_THROW(decoder.step(to, three.inputs()), NumericalError);
  EXPECT_EQ(decoder.length(), 2) << "the third token is the first that asks for a covariance";
  Inputs third = tokens(three, 2, 3);
  const Outputs one = rows(to, 2, 3);
  for (int again = 0; again < 10; ++again) EXPECT_THROW(decoder.step(one, third), NumericalError);
  EXPECT_EQ(decoder.length(), 2);
}

TEST_F(DecoderMessages, about_room_no_machine_has) {
  sizes_.capacity = std::int64_t(1) << 62;
  EXPECT_EQ(when_made(), "these sizes ask for more memory than any machine can address");
}

TEST_F(DecoderMessages, about_what_it_does_not_do) {
  how_.metric = KeyCovariance{};
  Decoder decoder(sizes_, how_);
  Outputs to = this->to();
  to.metric = token_.fresh("metric_used", metric_shape(token_.inputs(), how_), DType::f64);
  EXPECT_EQ(thrown<InvalidArgument>([&] { decoder.step(to, token_.inputs()); }),
            "a decoder does not write out a full metric, its status or its scale");
  Tensor offsets(DType::i64, {2});
  offsets.data<std::int64_t>()[1] = 1;
  Inputs packed = token_.inputs();
  packed.q_offsets = packed.k_offsets = offsets;
  EXPECT_EQ(thrown<InvalidArgument>([&] { decoder.step(this->to(), packed); }),
            "a decoder takes no packed sequences: use one decoder a sequence");
}

}  // namespace
}  // namespace foci
