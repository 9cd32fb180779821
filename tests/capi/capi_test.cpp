// SPDX-License-Identifier: Apache-2.0
// The C interface gives the C++ library's bits and turns its exceptions into statuses with a
// message.
#include <foci/foci.h>

#include "mechanisms.hpp"

#include <foci/decode.hpp>
#include <foci/device.hpp>

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

foci_view c_view(const View& view) {
  foci_view to = {};
  to.data = view.data;
  to.dtype = foci_dtype(int(view.dtype));
  to.rank = view.rank;
  for (int axis = 0; axis < view.rank; ++axis) {
    to.shape[axis] = view.shape[axis];
    to.strides[axis] = view.strides[axis];
  }
  return to;
}

foci_inputs c_inputs(const Inputs& from) {
  foci_inputs to = {};
  to.q = c_view(from.q);
  to.k = c_view(from.k);
  to.v = c_view(from.v);
  to.v_prev = c_view(from.v_prev);
  to.key_mask = c_view(from.key_mask);
  to.key_bias = c_view(from.key_bias);
  to.metric = c_view(from.metric);
  return to;
}

foci_options with(foci_metric metric, foci_weighting weighting) {
  foci_options o = foci_default_options();
  o.metric = metric;
  o.weighting = weighting;
  o.causal = 1;
  o.seed = 7;
  o.ridge = 1e-2;
  o.period = 4;
  return o;
}

const std::vector<std::pair<foci_metric, Metric>>& metric_twins() {
  static const std::vector<std::pair<foci_metric, Metric>> twins = {
      {FOCI_DOT, Dot{}},
      {FOCI_LAYER_CHANGE, LayerChange{}},
      {FOCI_FLAT, Flat{}},
      {FOCI_JACOBIAN, Jacobian{}},
      {FOCI_KEY_COVARIANCE, KeyCovariance{.ridge = 1e-2, .period = 4}},
      {FOCI_RANDOM, Random{.seed = 7}},
      {FOCI_GIVEN, Given{}}};
  return twins;
}

const std::vector<std::pair<foci_weighting, Weighting>>& weighting_twins() {
  static const std::vector<std::pair<foci_weighting, Weighting>> twins = {
      {FOCI_SOFTMAX, Softmax{}},
      {FOCI_RELU2, Relu2{}},
      {FOCI_IDENTITY, Identity{}},
      {FOCI_LINEAR, Linear{}},
      {FOCI_DECAY, Decay{}}};
  return twins;
}

TEST(CApi, gives_the_same_bits_as_cpp) {
  for (const auto& [c_metric, metric] : metric_twins()) {
    for (const auto& [c_weighting, weighting] : weighting_twins()) {
      const Options how{.metric = metric, .weighting = weighting, .causal = true};
      Made cpp(shape("holes")), c(shape("holes"));
      for (Made* made : {&cpp, &c}) give_metric(*made, metric);
      if (!refused(cpp.inputs(), how).empty()) continue;
      attend({.o = cpp.fresh("o", {2, 4, 15, 4}, DType::f64)}, cpp.inputs(), how);
      attend_backward({.d_o = cpp.find("d_o"), .dk = cpp.fresh("dk", {2, 2, 15, 4}, DType::f64)},
                      cpp.inputs(), {}, how);

      const foci_options o = with(c_metric, c_weighting);
      const foci_inputs from = c_inputs(c.inputs());
      foci_outputs to = {};
      to.o = c_view(c.fresh("o", {2, 4, 15, 4}, DType::f64));
      foci_gradients back = {};
      back.d_o = c_view(c.find("d_o"));
      back.dk = c_view(c.fresh("dk", {2, 2, 15, 4}, DType::f64));
      std::size_t bytes = 0;
      ASSERT_EQ(foci_need(&bytes, &from, &o, 2), FOCI_OK) << foci_last_error();
      std::vector<std::byte> workspace(bytes);
      foci_executor* executor = foci_executor_make(2);
      ASSERT_NE(executor, nullptr);
      const foci_call call = {workspace.data(), workspace.size(), executor};
      ASSERT_EQ(foci_attend(&to, &from, &o, &call), FOCI_OK) << foci_last_error();
      ASSERT_EQ(foci_attend_backward(&back, &from, &to, &o, nullptr), FOCI_OK) << foci_last_error();
      foci_executor_free(executor);
      EXPECT_EQ(cpp["o"].values(), c["o"].values());
      EXPECT_EQ(cpp["dk"].values(), c["dk"].values());
    }
  }
}

/// Every field reaches the library: changing it changes the answer (or is refused).
TEST(CApi, every_option_is_passed_on) {
  Made made(shape("small"), 3);
  const auto answer = [&](const foci_options& o) {
    const foci_inputs from = c_inputs(made.inputs());
    foci_outputs to = {};
    to.o = c_view(made.fresh("o", {2, 4, 9, 4}, DType::f64));
    return foci_attend(&to, &from, &o, nullptr) == FOCI_OK ? made["o"].values()
                                                           : std::vector<double>{};
  };
  const auto differs = [&](foci_options base, auto change) {
    const std::vector<double> before = answer(base);
    EXPECT_FALSE(before.empty()) << foci_last_error();
    change(base);
    return answer(base) != before;
  };
  const foci_options layer = with(FOCI_LAYER_CHANGE, FOCI_SOFTMAX),
                     full = with(FOCI_KEY_COVARIANCE, FOCI_SOFTMAX);
  foci_options encoder = layer;
  encoder.causal = 0;
  EXPECT_TRUE(differs(layer, [](foci_options& o) { o.form = FOCI_DISTANCE; }));
  EXPECT_TRUE(differs(encoder, [](foci_options& o) { o.reduce = FOCI_REDUCE_MEDIAN; }));
  EXPECT_TRUE(differs(layer, [](foci_options& o) { o.normalize = FOCI_BY_MEAN; }));
  EXPECT_TRUE(differs(encoder, [](foci_options& o) { o.scope = FOCI_SCOPE_PREFIX; }));
  EXPECT_TRUE(differs(full, [](foci_options& o) { o.ridge = 1; }));
  EXPECT_TRUE(differs(full, [](foci_options& o) { o.prior = 1; }));
  EXPECT_TRUE(differs(full, [](foci_options& o) { o.period = 3; }));
  const foci_options random = with(FOCI_RANDOM, FOCI_SOFTMAX);
  EXPECT_TRUE(differs(random, [](foci_options& o) { o.floor = 0.5; }));
  EXPECT_TRUE(differs(random, [](foci_options& o) { o.seed = 8; }));
  EXPECT_TRUE(differs(random, [](foci_options& o) { o.layer = 1; }));
  EXPECT_TRUE(
      differs(with(FOCI_DOT, FOCI_RELU2), [](foci_options& o) { o.rescale = FOCI_RESCALE_L2; }));
  EXPECT_TRUE(differs(with(FOCI_DOT, FOCI_LINEAR), [](foci_options& o) { o.feature = FOCI_RELU; }));
  EXPECT_TRUE(differs(with(FOCI_DOT, FOCI_DECAY), [](foci_options& o) { o.rate = 0.5; }));
  EXPECT_TRUE(differs(with(FOCI_DOT, FOCI_DECAY), [](foci_options& o) { o.content = 1; }));
  EXPECT_TRUE(
      differs(layer, [](foci_options& o) { o.scale_rule = FOCI_SCALE_NUMBER, o.scale = 2; }));
  EXPECT_TRUE(differs(layer, [](foci_options& o) { o.causal = 0; }));
  EXPECT_TRUE(
      differs(layer, [](foci_options& o) { o.scope = FOCI_SCOPE_SEQUENCE, o.allow_leak = 1; }));
  EXPECT_TRUE(differs(layer, [](foci_options& o) { o.backend = FOCI_BACKEND_CUDA; }));
  foci_options automatic = full;
  automatic.causal = 0;
  EXPECT_TRUE(differs(automatic, [](foci_options& o) { o.scale_rule = FOCI_SCALE_MATCH_DOT; }));
}

TEST(CApi, zeroed_options_are_plain_attention) {
  Made a(shape("small")), b(shape("small"));
  attend({.o = a.fresh("o", {2, 4, 9, 4}, DType::f64)}, a.inputs());
  const foci_options zero = {};
  const foci_inputs from = c_inputs(b.inputs());
  foci_outputs to = {};
  to.o = c_view(b.fresh("o", {2, 4, 9, 4}, DType::f64));
  for (const foci_options* how : {&zero, static_cast<const foci_options*>(nullptr)}) {
    ASSERT_EQ(foci_attend(&to, &from, how, nullptr), FOCI_OK);
    EXPECT_EQ(a["o"].values(), b["o"].values());
  }
}

TEST(CApi, failures_have_a_status_and_a_message) {
  Made made(shape("small"));
  foci_inputs from = c_inputs(made.inputs());
  foci_outputs to = {};
  EXPECT_EQ(foci_attend(nullptr, &from, nullptr, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "to is NULL");
  EXPECT_EQ(foci_attend(&to, nullptr, nullptr, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "from is NULL");
  EXPECT_EQ(foci_attend(&to, &from, nullptr, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "o is missing; it must be (B,H,N,E)");
  to.o = c_view(made.fresh("o", {2, 4, 9, 4}, DType::f64));
  foci_options o = foci_default_options();
  o.backend = FOCI_BACKEND_CUDA;
  EXPECT_EQ(foci_attend(&to, &from, &o, nullptr), FOCI_UNSUPPORTED);
  EXPECT_STREQ(foci_last_error(), has_cuda() ? "backend cuda computes in f32 and takes no f64; the "
                                               "nearest that can is backend ref"
                                             : "backend cuda is not in this build; it has: cpu, "
                                               "ref");
  o = foci_default_options();
  o.metric = foci_metric(99);
  EXPECT_EQ(foci_attend(&to, &from, &o, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "metric is 99, which names nothing");
  o = foci_default_options();
  o.weighting = foci_weighting(-1);
  EXPECT_EQ(foci_attend(&to, &from, &o, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "weighting is -1, which names nothing");
  o = foci_default_options();
  o.form = foci_form(5);
  EXPECT_EQ(foci_attend(&to, &from, &o, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "form is 5, which names nothing");
  o = foci_default_options();
  o.scale_rule = foci_scale_rule(3);
  EXPECT_EQ(foci_attend(&to, &from, &o, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "scale_rule is 3, which names nothing");
  o = foci_default_options();
  o.metric = FOCI_KEY_COVARIANCE;
  made["k"].data<double>()[0] = std::nan("");
  EXPECT_EQ(foci_attend(&to, &from, &o, nullptr), FOCI_NUMERICAL_ERROR);
  from.q.rank = 6;
  EXPECT_EQ(foci_attend(&to, &from, nullptr, nullptr), FOCI_INVALID_ARGUMENT);
  EXPECT_STREQ(foci_last_error(), "a view has rank 6; it must be 0 (absent) to 5");
}

TEST(CApi, tells_the_metrics_shape) {
  Made made(shape("small"));
  const foci_inputs from = c_inputs(made.inputs());
  int rank = -1;
  int64_t shape[FOCI_MAX_RANK] = {};
  foci_options o = foci_default_options();
  EXPECT_EQ(foci_metric_shape(&rank, shape, &from, &o), FOCI_OK);
  EXPECT_EQ(rank, 0);
  o.metric = FOCI_KEY_COVARIANCE;
  EXPECT_EQ(foci_metric_shape(&rank, shape, &from, &o), FOCI_OK);
  EXPECT_EQ(rank, 4);
  EXPECT_EQ(shape[1], 2);
  EXPECT_EQ(shape[3], 4);
}

TEST(CApi, row_major_views) {
  const int64_t shape[3] = {2, 3, 4};
  const float data[24] = {};
  const foci_view view = foci_row_major(data, FOCI_F32, 3, shape);
  EXPECT_EQ(view.strides[0], 12);
  EXPECT_EQ(view.strides[1], 4);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(foci_row_major(data, FOCI_F32, 6, shape).rank, 0);
}

TEST(CApi, decodes) {
  Made made({"token", 1, 2, 1, 1, 1, 4, 4});
  foci_decoder_sizes sizes = {1, 2, 1, 4, 4, 2, FOCI_F64};
  foci_options o = foci_default_options();
  EXPECT_EQ(foci_decoder_make(&sizes, &o), nullptr);
  EXPECT_STREQ(foci_last_error(), "a decoder attends to the past only: set causal");
  o.causal = 1;
  foci_decoder* decoder = foci_decoder_make(&sizes, &o);
  ASSERT_NE(decoder, nullptr);
  const foci_inputs from = c_inputs(made.inputs());
  foci_outputs to = {};
  to.o = c_view(made.fresh("o", {1, 2, 1, 4}, DType::f64));
  EXPECT_EQ(foci_decoder_step(decoder, &to, &from), FOCI_OK);
  for (int e = 0; e < 4; ++e)
    EXPECT_EQ(made["o"].data<double>()[e], made["v"].data<double>()[e]);  // one key
  EXPECT_EQ(foci_decoder_step(decoder, &to, &from), FOCI_OK);
  EXPECT_EQ(foci_decoder_step(decoder, &to, &from), FOCI_INVALID_ARGUMENT);
  EXPECT_EQ(foci_decoder_length(decoder), 2);
  foci_decoder_reset(decoder);
  EXPECT_EQ(foci_decoder_length(decoder), 0);
  foci_decoder_free(decoder);
  EXPECT_EQ(foci_decoder_step(nullptr, &to, &from), FOCI_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace foci
