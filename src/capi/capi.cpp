// SPDX-License-Identifier: Apache-2.0
// The C interface: plain structs to C++ ones, exceptions to status codes. Computes nothing itself.
#include <foci/foci.h>

#include <foci/attention.hpp>
#include <foci/decode.hpp>
#include <foci/error.hpp>
#include <foci/executor.hpp>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

struct foci_executor {
  foci::Executor executor;
};

struct foci_decoder {
  foci::Decoder decoder;
};

namespace {

using namespace foci;

static_assert(int(FOCI_BOOL) == int(DType::boolean) && int(FOCI_F16) == int(DType::f16));
static_assert(FOCI_MAX_RANK == max_rank);

thread_local std::string last_error;

foci_status failed(foci_status status, const char* what) noexcept {
  try {
    last_error = what;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

/// Runs f and turns what it throws into a status.
template <class F>
foci_status guarded(F&& f) noexcept {
  try {
    f();
    return FOCI_OK;
  } catch (const InvalidArgument& error) {
    return failed(FOCI_INVALID_ARGUMENT, error.what());
  } catch (const Unsupported& error) {
    return failed(FOCI_UNSUPPORTED, error.what());
  } catch (const NumericalError& error) {
    return failed(FOCI_NUMERICAL_ERROR, error.what());
  } catch (const std::bad_alloc&) {
    return failed(FOCI_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return failed(FOCI_FAILED, error.what());
  } catch (...) {
    return failed(FOCI_FAILED, "unknown failure");
  }
}

template <class P>
const P& required(const P* pointer, const char* name) {
  if (!pointer) throw InvalidArgument(std::string(name) + " is NULL");
  return *pointer;
}

/// The number in a C enum, which C lets be any; C++ may not even load one that names nothing.
template <class C>
int number_in(const C& value) {
  static_assert(std::is_enum_v<C> && sizeof(C) == sizeof(int));
  int number = 0;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

[[noreturn]] void names_nothing(const char* name, int number) {
  throw InvalidArgument(std::string(name) + " is " + std::to_string(number) +
                        ", which names nothing");
}

/// A C enum as its C++ twin, whose values stand in the same order.
template <class E, class C>
E twin(const C& value, E last, const char* name) {
  const int number = number_in(value);
  if (number < 0 || number > int(last)) names_nothing(name, number);
  return E(number);
}

View view(const foci_view& from) {
  View to;
  if (from.rank < 0 || from.rank > max_rank) {
    throw InvalidArgument("a view has rank " + std::to_string(from.rank) +
                          "; it must be 0 (absent) to 5");
  }
  to.data = from.data;
  to.dtype = twin(from.dtype, DType::boolean, "dtype");
  to.rank = from.rank;
  for (int axis = 0; axis < from.rank; ++axis) {
    to.shape[axis] = from.shape[axis];
    to.strides[axis] = from.strides[axis];
  }
  return to;
}

Inputs inputs(const foci_inputs& f) {
  return {.q = view(f.q),
          .k = view(f.k),
          .v = view(f.v),
          .v_prev = view(f.v_prev),
          .key_mask = view(f.key_mask),
          .key_bias = view(f.key_bias),
          .metric = view(f.metric),
          .q_offsets = view(f.q_offsets),
          .k_offsets = view(f.k_offsets)};
}

Outputs outputs(const foci_outputs& f) {
  return {.o = view(f.o),
          .lse = view(f.lse),
          .concentration = view(f.concentration),
          .effective_keys = view(f.effective_keys),
          .entropy = view(f.entropy),
          .largest = view(f.largest),
          .largest_at = view(f.largest_at),
          .metric = view(f.metric),
          .status = view(f.status),
          .scale = view(f.scale)};
}

Gradients gradients(const foci_gradients& f) {
  return {.d_o = view(f.d_o),
          .dq = view(f.dq),
          .dk = view(f.dk),
          .dv = view(f.dv),
          .dv_prev = view(f.dv_prev),
          .dmetric = view(f.dmetric),
          .dkey_bias = view(f.dkey_bias)};
}

Metric metric(const foci_options& o) {
  const auto form = [&] { return twin(o.form, Form::distance, "form"); };
  const auto reduce = [&] { return twin(o.reduce, Reduce::median, "reduce"); };
  const auto normalize = [&] { return twin(o.normalize, Normalize::none, "normalize"); };
  const auto scope = [&] { return twin(o.scope, Scope::prefix, "scope"); };
  switch (number_in(o.metric)) {
    case FOCI_DOT:
      return Dot{form()};
    case FOCI_LAYER_CHANGE:
      return LayerChange{form(), reduce(), normalize(), scope()};
    case FOCI_FLAT:
      return Flat{form(), reduce(), normalize(), scope()};
    case FOCI_JACOBIAN:
      return Jacobian{form(), normalize(), scope()};
    case FOCI_KEY_COVARIANCE: {
      KeyCovariance covariance{.ridge = o.ridge,
                               .prior = {},
                               .period = o.period == 0 ? KeyCovariance{}.period : o.period,
                               .scope = scope()};
      if (!(o.prior < 0)) covariance.prior = o.prior;
      return covariance;
    }
    case FOCI_RANDOM:
      return Random{form(), normalize(), o.floor, o.seed, o.layer};
    case FOCI_GIVEN:
      return Given{form(), twin(o.extent, Extent::full, "extent")};
  }
  names_nothing("metric", number_in(o.metric));
}

Weighting weighting(const foci_options& o) {
  const auto rescale = [&] { return twin(o.rescale, Rescale::none, "rescale"); };
  switch (number_in(o.weighting)) {
    case FOCI_SOFTMAX:
      return Softmax{};
    case FOCI_RELU2:
      return Relu2{rescale()};
    case FOCI_IDENTITY:
      return Identity{rescale()};
    case FOCI_LINEAR:
      return Linear{twin(o.feature, Feature::exp, "feature")};
    case FOCI_DECAY:
      return Decay{o.rate == 0 ? Decay{}.rate : o.rate, o.content != 0};
  }
  names_nothing("weighting", number_in(o.weighting));
}

Scale scale(const foci_options& o) {
  switch (number_in(o.scale_rule)) {
    case FOCI_SCALE_STANDARD:
      return std::monostate{};
    case FOCI_SCALE_NUMBER:
      return o.scale;
    case FOCI_SCALE_MATCH_DOT:
      return MatchDot{};
  }
  names_nothing("scale_rule", number_in(o.scale_rule));
}

Options options(const foci_options* o) {
  if (!o) return {};
  return {.metric = metric(*o),
          .weighting = weighting(*o),
          .scale = scale(*o),
          .causal = o->causal != 0,
          .allow_leak = o->allow_leak != 0,
          .metric_grad = twin(o->metric_grad, MetricGrad::through, "metric_grad"),
          .backend = twin(o->backend, Backend::cuda, "backend")};
}

Call call_of(const foci_call& call) {
  return {.workspace = {static_cast<std::byte*>(call.workspace), call.workspace_bytes},
          .threads = call.executor ? &call.executor->executor : nullptr};
}

}  // namespace

const char* foci_last_error(void) { return last_error.c_str(); }

const char* foci_version(void) { return version().data(); }

foci_view foci_row_major(const void* data, foci_dtype dtype, int rank, const int64_t* shape) {
  foci_view to = {};
  if (rank < 1 || rank > FOCI_MAX_RANK || !shape) return to;
  to.data = const_cast<void*>(data);
  to.dtype = dtype;
  to.rank = rank;
  int64_t step = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    to.shape[axis] = shape[axis];
    to.strides[axis] = step;
    step *= std::max<int64_t>(shape[axis], 1);
  }
  return to;
}

foci_options foci_default_options(void) {
  foci_options o = {};
  const KeyCovariance covariance;
  o.ridge = covariance.ridge;
  o.prior = -1;
  o.period = covariance.period;
  o.floor = Random{}.floor;
  o.rate = Decay{}.rate;
  return o;
}

foci_executor* foci_executor_make(int threads) {
  foci_executor* made = nullptr;
  guarded([&] { made = new foci_executor{Executor(threads)}; });
  return made;
}

void foci_executor_free(foci_executor* executor) { delete executor; }

foci_status foci_attend(const foci_outputs* to, const foci_inputs* from, const foci_options* how,
                        const foci_call* call) {
  return guarded([&] {
    const Outputs o = outputs(required(to, "to"));
    const Inputs i = inputs(required(from, "from"));
    call ? attend(o, i, options(how), call_of(*call)) : attend(o, i, options(how));
  });
}

foci_status foci_attend_backward(const foci_gradients* to, const foci_inputs* from,
                                 const foci_outputs* saved, const foci_options* how,
                                 const foci_call* call) {
  return guarded([&] {
    const Gradients g = gradients(required(to, "to"));
    const Inputs i = inputs(required(from, "from"));
    const Outputs o = saved ? outputs(*saved) : Outputs{};
    call ? attend_backward(g, i, o, options(how), call_of(*call))
         : attend_backward(g, i, o, options(how));
  });
}

foci_status foci_need(size_t* bytes, const foci_inputs* from, const foci_options* how,
                      int threads) {
  return guarded([&] {
    required(bytes, "bytes");
    *bytes = need(inputs(required(from, "from")), options(how), threads).workspace;
  });
}

foci_status foci_metric_shape(int* rank, int64_t shape[FOCI_MAX_RANK], const foci_inputs* from,
                              const foci_options* how) {
  return guarded([&] {
    required(rank, "rank");
    required(shape, "shape");
    const Shape of = metric_shape(inputs(required(from, "from")), options(how));
    *rank = int(of.size());
    std::copy(of.begin(), of.end(), shape);
  });
}

foci_decoder* foci_decoder_make(const foci_decoder_sizes* sizes, const foci_options* how) {
  foci_decoder* made = nullptr;
  guarded([&] {
    const foci_decoder_sizes& z = required(sizes, "sizes");
    made = new foci_decoder{Decoder({.B = z.B,
                                     .H = z.H,
                                     .G = z.G,
                                     .D = z.D,
                                     .E = z.E,
                                     .capacity = z.capacity,
                                     .dtype = twin(z.dtype, DType::boolean, "dtype")},
                                    options(how))};
  });
  return made;
}

foci_status foci_decoder_step(foci_decoder* decoder, const foci_outputs* to,
                              const foci_inputs* tokens) {
  return guarded([&] {
    required(decoder, "decoder");
    decoder->decoder.step(outputs(required(to, "to")), inputs(required(tokens, "tokens")));
  });
}

int64_t foci_decoder_length(const foci_decoder* decoder) {
  return decoder ? decoder->decoder.length() : 0;
}

void foci_decoder_reset(foci_decoder* decoder) {
  if (decoder) decoder->decoder.reset();
}

void foci_decoder_free(foci_decoder* decoder) { delete decoder; }
