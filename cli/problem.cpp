// SPDX-License-Identifier: Apache-2.0
// Reads the tensors of a call, converts them, and makes room for all that the call writes.
#include "cli/problem.hpp"

#include "cli/mechanism.hpp"
#include "cli/suggest.hpp"

#include <foci/attention.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

namespace foci::cli {
namespace {

/// Statistics and metrics are kept in at least float32.
DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

Tensor taken(const std::string& name, const View& from, DType dtype) {
  if (!is_floating(from.dtype)) return Tensor::copy(from, from.dtype);
  return Tensor::copy(from, name == "metric" || name == "key_bias" ? wide(dtype) : dtype);
}

}  // namespace

View Problem::view(const std::string& name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? View() : found->second.view();
}

Inputs Problem::inputs() const {
  return {.q = view("q"),
          .k = view("k"),
          .v = view("v"),
          .v_prev = view("v_prev"),
          .key_mask = view("key_mask"),
          .key_bias = view("key_bias"),
          .metric = view("metric"),
          .q_offsets = view("q_offsets"),
          .k_offsets = view("k_offsets")};
}

Sizes Problem::sizes() const {
  const View q = view("q"), k = view("k"), v = view("v");
  return {.B = q.shape[0],
          .H = q.shape[1],
          .G = k.shape[1],
          .N = q.shape[2],
          .M = k.shape[2],
          .D = q.shape[3],
          .E = v.shape[3]};
}

std::size_t Problem::bytes() const {
  std::size_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    total += std::size_t(tensor.view().count()) * size_of(tensor.view().dtype);
  }
  return total;
}

Problem read_problem(const Safetensors& file, const std::string& path, const Options& how,
                     DType dtype) {
  Problem problem;
  std::vector<std::string> names = {"q",        "k",         "v",         "key_mask",
                                    "key_bias", "q_offsets", "k_offsets", "do"};
  if (uses_v_prev(how.metric)) names.emplace_back("v_prev");
  if (std::holds_alternative<Given>(how.metric)) names.emplace_back("metric");
  for (const std::string& name : names) {
    if (const View view = file.find(name)) problem.tensors[name] = taken(name, view, dtype);
  }
  for (const char* name : {"q", "k", "v"}) {
    if (problem.tensors.count(name) > 0) continue;
    throw FileError(fmt::format("{}: has no tensor {}; it needs q, k and v, and holds {}",
                                shown(path), name, shown(listed(file.names()))));
  }
  return problem;
}

Problem converted(const Problem& from, DType dtype) {
  Problem problem;
  for (const auto& [name, tensor] : from.tensors)
    problem.tensors[name] = taken(name, tensor, dtype);
  return problem;
}

Prepared::Prepared(const Problem& problem, const Options& how, Executor& threads,
                   const Wanted& wanted)
    : problem_(problem),
      how_(how),
      threads_(threads),
      inputs_(problem.inputs()),
      on_gpu_(how.backend == Backend::cuda && has_cuda()) {
  const std::size_t here = need(inputs_, how_, threads_.threads()).workspace;  // and checks them
  if (on_gpu_) {
    place_inputs();
    const std::int64_t bytes = std::int64_t(need(inputs_, how_).workspace);
    workspace_there_ = DeviceTensor(DType::u8, std::array{bytes});
  } else {
    workspace_.resize(here);
  }
  make_outputs(wanted);
  if (wanted.gradients && problem_.view("do")) make_gradients();
}

View Prepared::make(const std::string& name, DType dtype, std::span<const std::int64_t> shape) {
  if (!on_gpu_) return (tensors_[name] = Tensor(dtype, shape)).view();
  return (made_there_[name] = DeviceTensor(dtype, shape)).view();
}

View Prepared::placed(const View& host) {
  return host ? there_.emplace_back(DeviceTensor::copy(host)).view() : View();
}

/// All but offsets, which stay on the host.
void Prepared::place_inputs() {
  for (View* view : {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.v_prev, &inputs_.key_mask,
                     &inputs_.key_bias, &inputs_.metric})
    *view = placed(*view);
}

Call Prepared::call() {
  if (!on_gpu_) return {.workspace = workspace_, .threads = &threads_};
  const View& room = workspace_there_;
  return {.workspace = {static_cast<std::byte*>(room.data), std::size_t(room.count())}};
}

const std::map<std::string, Tensor>& Prepared::tensors() const {
  for (const auto& [name, tensor] : made_there_) tensors_[name] = tensor.host();
  return tensors_;
}

void Prepared::make_outputs(const Wanted& wanted) {
  const Sizes size = problem_.sizes();
  const DType dtype = inputs_.q.dtype;
  const Shape rows = {size.B, size.H, size.N};
  outputs_.o = make("o", dtype, Shape{size.B, size.H, size.N, size.E});
  if (std::holds_alternative<Softmax>(how_.weighting))
    outputs_.lse = make("lse", wide(dtype), rows);
  if (!wanted.statistics) return;
  outputs_.concentration = make("concentration", wide(dtype), rows);
  outputs_.effective_keys = make("effective_keys", wide(dtype), rows);
  if (has_entropy(how_.weighting)) outputs_.entropy = make("entropy", wide(dtype), rows);
  outputs_.largest = make("largest", wide(dtype), rows);
  outputs_.largest_at = make("largest_at", DType::i64, rows);
  Shape metric = metric_shape(inputs_, how_);
  if (metric.empty()) return;
  outputs_.metric = make("metric", wide(dtype), metric);
  if (std::holds_alternative<MatchDot>(how_.scale)) {
    const View& packed = inputs_.q_offsets;
    const std::int64_t sequences = packed ? packed.shape[0] - 1 : size.B;
    outputs_.scale = make("scale", wide(dtype), Shape{sequences, size.G});
  }
  if (std::holds_alternative<KeyCovariance>(how_.metric)) {
    metric.resize(metric.size() - 2);
    outputs_.status = make("status", DType::i32, metric);
  }
}

void Prepared::make_gradients() {
  const auto like = [&](const char* name, const View& view) {
    return view ? make(name, view.dtype, view.sizes()) : View();
  };
  const Sizes size = problem_.sizes();
  const Shape shape = {size.B, size.H, size.N, size.E};
  gradients_.d_o = problem_.view("do");
  if (!std::ranges::equal(gradients_.d_o.sizes(), shape)) {
    throw InvalidArgument(fmt::format("do has shape {}; it must be (B,H,N,E) = {}",
                                      to_string(gradients_.d_o.sizes()), to_string(shape)));
  }
  if (!is_floating(gradients_.d_o.dtype)) {
    throw InvalidArgument(fmt::format("do has type {}; it must be f64, f32, bf16 or f16",
                                      name_of(gradients_.d_o.dtype)));
  }
  if (on_gpu_) gradients_.d_o = placed(gradients_.d_o);
  gradients_.dq = like("dq", inputs_.q);
  gradients_.dk = like("dk", inputs_.k);
  gradients_.dv = like("dv", inputs_.v);
  if (uses_v_prev(how_.metric)) gradients_.dv_prev = like("dv_prev", inputs_.v_prev);
  gradients_.dkey_bias = like("dkey_bias", inputs_.key_bias);
  if (inputs_.metric) {
    gradients_.dmetric = like("dmetric", inputs_.metric);
  } else if (const Shape metric = metric_shape(inputs_, how_); !metric.empty()) {
    gradients_.dmetric = make("dmetric", wide(inputs_.q.dtype), metric);
  }
}

void Prepared::forward() {
  attend(outputs_, inputs_, how_, call());
  if (on_gpu_) synchronize();
}

void Prepared::backward() {
  attend_backward(gradients_, inputs_, outputs_, how_, call());
  if (on_gpu_) synchronize();
}

std::size_t Prepared::bytes() const {
  const auto of = [](const View& view) { return std::size_t(view.count()) * size_of(view.dtype); };
  std::size_t total = problem_.bytes() + workspace_.size();
  if (on_gpu_) total += of(workspace_there_);
  for (const auto& [name, tensor] : made_there_) total += of(tensor);
  if (on_gpu_) return total;
  for (const auto& [name, tensor] : tensors_) total += of(tensor);
  return total;
}

std::map<std::string, Tensor> answers(const Problem& problem, const Options& how,
                                      Executor& threads) {
  Prepared prepared(problem, how, threads, {.statistics = true, .gradients = true});
  prepared.forward();
  if (prepared.has_gradients()) prepared.backward();
  return std::move(prepared).take();
}

}  // namespace foci::cli
