// SPDX-License-Identifier: Apache-2.0
// One call on the device: the metric is estimated and folded, a pass runs over queries and keys,
// and on the way back the metric takes apart what the pass left behind.
#include "cuda/chunked.cuh"
#include "cuda/cuda.hpp"
#include "cuda/decode.cuh"
#include "cuda/diagonal.cuh"
#include "cuda/few_keys.cuh"
#include "cuda/full_metric.cuh"
#include "cuda/running.cuh"
#include "cuda/softmax_short.cuh"
#include "cuda/softmax_wgmma.cuh"
#include "cuda/split_keys.cuh"
#include "cuda/weights_mma.cuh"

#include <cmath>
#include <optional>
#include <variant>

namespace foci::cuda {
namespace {

Stream stream_of(const Run& how) { return static_cast<Stream>(how.stream); }

Shape shape_of(Arena& arena, const Problem& p) {
  const metric::Sizes& z = p.size;
  Shape shape{.sequences = int(p.sequences),
              .H = int(z.H),
              .G = int(z.G),
              .N = int(z.N),
              .M = int(z.M),
              .D = int(z.D),
              .E = int(z.E),
              .longest_n = int(p.longest_n),
              .longest_m = int(p.longest_m),
              .causal = p.how.causal};
  if (p.packed()) {
    shape.q_offsets = arena.take<int>(p.sequences + 1).data();
    shape.k_offsets = arena.take<int>(p.sequences + 1).data();
  }
  return shape;
}

void send_offsets(const Shape& shape, const Problem& p, Stream stream) {
  if (!p.packed()) return;
  std::vector<int> q, k;
  for (std::int64_t s = 0; s <= p.sequences; ++s) {
    q.push_back(int(metric::offset(p.from.q_offsets, s)));
    k.push_back(int(metric::offset(p.from.k_offsets, s)));
  }
  copy_in(const_cast<int*>(shape.q_offsets), q.data(), q.size() * sizeof(int), stream);
  copy_in(const_cast<int*>(shape.k_offsets), k.data(), k.size() * sizeof(int), stream);
}

Weigh weigh_of(const Softmax&) { return {.kind = Kind::softmax}; }
Weigh weigh_of(const Relu2& w) { return {.kind = Kind::relu2, .rescale = w.rescale}; }
Weigh weigh_of(const Identity& w) { return {.kind = Kind::identity, .rescale = w.rescale}; }
Weigh weigh_of(const Linear&) { return {}; }  // chunked
Weigh weigh_of(const Decay& w) {
  return {.kind = w.content ? Kind::decay_content : Kind::decay,
          .log2_rate = float(std::log2(w.rate))};
}
Weigh weigh_of(const Problem& p) {
  return std::visit([](const auto& w) { return weigh_of(w); }, p.how.weighting);
}

Rows rows_of(const Outputs& to, const Run& how) {
  return {.o = Field(to.o),
          .lse = Field(to.lse),
          .concentration = Field(to.concentration),
          .effective_keys = Field(to.effective_keys),
          .entropy = Field(to.entropy),
          .largest = Field(to.largest),
          .largest_at = Field(to.largest_at),
          .rough_lse = how.lse_for_backward};
}

/// Whether tensor cores may serve a problem: softmax over 16 bits, m beside queries at most.
bool may_go_by_mma(const Problem& p) {
  return std::holds_alternative<Softmax>(p.how.weighting) && !p.full &&
         p.from.q.dtype != DType::f32;
}

/// Softmax on tensor cores, by those of Hopper where they serve it: o and lse of what is not too
/// large for queries rounded to 16 bits, the rest after them.
void softmax_by_mma(const Shape& shape, const Folded& folded, const Rows& to, int* room,
                    Stream stream) {
  Folded rest = folded;
  if (softmax_wgmma_serves(shape, folded, to, room)) {
    softmax_wgmma_forward(shape, folded, to, room, stream);
    if (!folded.m.data) return;
    rest.by_mma = softmax_wgmma_left(room);
  }
  softmax_mma_forward(shape, rest, to, stream);
}

/// Which pass serves a problem over lines that are folded.
void run_rows(const Problem& p, const Shape& shape, const Folded& folded, const Rows& to, int* room,
              Stream stream) {
  const Weigh weigh = weigh_of(p);
  const bool plain = weigh.kind == Kind::softmax && folded.q.dtype == folded.k.dtype;
  if (few_keys_serve(p)) {
    few_keys_forward(shape, folded, weigh, to, stream);
  } else if (plain && softmax_mma_serves(shape, folded, to.o)) {
    softmax_by_mma(shape, folded, to, room, stream);
  } else if (weights_mma_serves(shape, folded, weigh, to)) {
    weights_mma_forward(shape, folded, weigh, to, stream);
  } else {
    tile_forward(shape, folded, weigh, to, stream);
  }
}

/// Full metrics carry nothing.
FullMetric forward_metric(FullMetric*, Arena& arena, const Problem& p, const Shape& shape,
                          const Carried&) {
  return {arena, p, shape, FullMetric::Pass::forward};
}
DiagonalMetric forward_metric(DiagonalMetric*, Arena& arena, const Problem& p, const Shape& shape,
                              const Carried& carried) {
  return {arena, p, shape, DiagonalMetric::Pass::forward, few_keys_serve(p), carried};
}

/// Whether they may weigh by scores or their squares: on the way back nothing else is in between.
bool may_weigh_by_mma(const Problem& p) {
  const bool weighs = std::holds_alternative<Relu2>(p.how.weighting) ||
                      std::holds_alternative<Identity>(p.how.weighting);
  return weighs && p.metric<Dot>() && p.from.q.dtype != DType::f32;
}

/// Whether a full metric may be products on tensor cores: all that is asked for has 16 bits, or
/// goes to the way back.
bool may_multiply(const FullMetric& metric, const Shape& shape, const Outputs& to,
                  const Rows& rows) {
  return metric.offers_products() && !to.metric && !rows.want_all_bits() &&
         softmax_mma_serves(shape, metric.products(), rows.o);
}
bool may_multiply(const FullMetric& metric, const Shape& shape, const Saved& known,
                  const SoftmaxMmaScratch& scratch) {
  if (metric.product_chunks() > 0 && !scratch.dq()) return false;  // one order is not there
  return metric.offers_products() && softmax_mma_serves(shape, metric.products(), known);
}

template <class M>
class Forward {
 public:
  Forward(Arena& arena, const Problem& p, const Carried& carried = {})
      : p_(p),
        shape_(shape_of(arena, p)),
        metric_(forward_metric(static_cast<M*>(nullptr), arena, p, shape_, carried)) {
    if (chunked_serves(p)) chunked_.emplace(arena, p, shape_, ChunkedPass::Pass::forward);
    if (SplitKeys::pays(p, shape_)) split_.emplace(arena, p, shape_);
    if (carried.rows) running_.emplace(p, shape_, carried.rows);
    if (may_go_by_mma(p) || p.full) room_ = arena.take<int>(softmax_wgmma_room(shape_)).data();
  }

  void run(const Outputs& to, const Run& how) {
    const Stream stream = stream_of(how);
    Rows rows = rows_of(to, how);
    send_offsets(shape_, p_, stream);
    if constexpr (std::is_same_v<M, FullMetric>) {
      if (may_multiply(metric_, shape_, to, rows)) {
        metric_.allow_products();
        if (metric_.offers_narrow() &&
            softmax_wgmma_serves(shape_, metric_.narrow_products(), rows, room_))
          metric_.allow_narrow();
      }
    }
    if (!split_ && runs_short(to, rows, stream)) return;
    metric_.estimate(to, stream);
    if (!split_ && runs_by_mma(rows, stream)) return;
    for (int wave = 0; wave < metric_.waves(); ++wave) {
      const Folded folded = metric_.fold(wave, stream);
      if (running_) {
        running_->forward(folded.q, folded.scale, rows.o, last_keys(p_), stream);
        if (!chunks::wants_tally(rows)) continue;
        rows.o = {};
      }
      if (chunked_) {
        chunked_->forward(folded, rows, stream);
      } else if (split_ && split_->serves(folded, rows)) {
        split_->forward(folded, rows, stream);
      } else {
        run_rows(p_, shape_, folded, rows, room_, stream);
      }
    }
  }

 private:
  /// The estimate and the whole pass, of short sequences on tensor cores.
  bool runs_short(const Outputs& to, const Rows& rows, Stream stream) {
    if constexpr (!std::is_same_v<M, DiagonalMetric>) {
      return false;
    } else {
      if (!may_go_by_mma(p_) || !metric_.stays_in_range() || !softmax_short_pays(shape_))
        return false;
      const TokenMean* mean = metric_.within_pass();
      const Folded folded = metric_.beside();
      if (!softmax_short_serves(shape_, folded, rows, mean)) return false;
      mean ? metric_.leave_estimate(to) : metric_.estimate(to, stream);
      softmax_short_forward(shape_, folded, rows, mean, stream);
      return true;
    }
  }

  /// The whole pass on tensor cores, where they serve it; of full metrics the heads that they
  /// serve.
  bool runs_by_mma(const Rows& to, Stream stream) {
    if constexpr (std::is_same_v<M, FullMetric>) {
      if (!metric_.multiplies()) return false;
      if (metric_.narrows())
        softmax_wgmma_forward(shape_, metric_.narrow_products(), to, room_, stream);
      softmax_mma_forward(shape_, metric_.products(), to, stream);
      return false;
    } else {
      if (!goes_by_mma(to)) return false;
      softmax_by_mma(shape_, metric_.beside(), to, room_, stream);
      return true;
    }
  }
  /// Diagonal metrics: whether tensor cores serve the whole pass.
  bool goes_by_mma(const Rows& to) const {
    if (!may_go_by_mma(p_) || !metric_.stays_in_range()) return false;
    const Folded folded = metric_.beside();
    // Statistics of few keys show the order in which parts of queries are added up.
    if (folded.m.data && shape_.longest_m <= 256 && to.want_all_bits()) return false;
    return softmax_mma_serves(shape_, folded, to.o);
  }

  const Problem& p_;
  Shape shape_;
  M metric_;
  std::optional<ChunkedPass> chunked_;
  std::optional<SplitKeys> split_;
  std::optional<RunningSums> running_;  // of a decoder
  int* room_ = nullptr;                 // of softmax_wgmma
};

template <class M>
class Backward {
 public:
  Backward(Arena& arena, const Problem& p, Order order)
      : p_(p), shape_(shape_of(arena, p)), metric_(arena, p, shape_, M::Pass::backward) {
    if (chunked_serves(p)) {
      chunked_.emplace(arena, p, shape_, ChunkedPass::Pass::backward);
      return;
    }
    const metric::Sizes& z = p.size;
    if (few_keys_serve(p)) {
      notes_ = arena.take<double>(z.B, z.H, z.N, 2).data();
      return;
    }
    o_ = arena.take<float>(z.B, z.H, z.N, z.E).data();
    by_ = arena.take<float>(z.B, z.H, z.N).data();
    delta_ = arena.take<float>(z.B, z.H, z.N).data();
    share_ = arena.take<float>(z.B, z.H, z.N).data();
    if (may_weigh_by_mma(p)) weights_.emplace(arena, shape_, order);
    bool by_mma = may_go_by_mma(p);
    int chunks = 0;
    if constexpr (std::is_same_v<M, FullMetric>)
      by_mma = metric_.may_multiply(), chunks = metric_.product_chunks();
    if (by_mma) by_mma_.emplace(arena, shape_, order, p.metric<Dot>() ? 0 : 2, chunks);
  }

  void run(const Gradients& to, const Outputs& saved, const Run& how) {
    const Stream stream = stream_of(how);
    send_offsets(shape_, p_, stream);
    if constexpr (std::is_same_v<M, FullMetric>) {
      multiply(to, saved, stream);
    } else {
      if (runs_short(to, saved, stream)) return;
      metric_.estimate({}, stream);
      if (runs_by_mma(to, saved, stream) || weighs_by_mma(to, stream)) return;
    }
    const bool few = few_keys_serve(p_);
    const Saved known = chunked_ || few ? Saved{} : known_of(to, saved, stream);
    const Sinks sinks = metric_.sinks(to);
    for (int wave = 0; wave < metric_.waves(); ++wave) {
      const Folded folded = metric_.fold(wave, stream);
      if (chunked_) {
        chunked_->backward(folded, Field(to.d_o), sinks, stream);
      } else if (few) {
        few_keys_backward(shape_, folded, weigh_of(p_), Field(to.d_o), sinks, notes_, stream);
      } else {
        tile_backward(shape_, folded, weigh_of(p_), known, sinks, stream);
      }
      metric_.gather(wave, to, stream);
    }
    metric_.finish(to, stream);
  }

 private:
  Saved narrow(const Gradients& to, const Outputs& saved) const {
    return {.d_o = Field(to.d_o),
            .o = Field(saved.o),
            .lse = Field(saved.lse),
            .delta = delta_,
            .share = share_};
  }

  /// Estimates a full metric, and goes back on tensor cores in the heads where it is products.
  void multiply(const Gradients& to, const Outputs& saved, Stream stream) {
    const Saved known = narrow(to, saved);
    if (by_mma_ && saved.o && saved.lse && !to.dmetric &&
        may_multiply(metric_, shape_, known, *by_mma_)) {
      metric_.allow_products();
      if (metric_.offers_narrow() &&
          softmax_mma_takes_narrow(shape_, metric_.narrow_products(), known, *by_mma_))
        metric_.allow_narrow();
    }
    metric_.estimate({}, stream);
    if (!metric_.multiplies()) return;
    const Folded products = metric_.products();
    const bool narrows = metric_.narrows();
    softmax_mma_backward(shape_, narrows ? metric_.narrow_products() : products, known,
                         metric_.product_sinks(to), *by_mma_, stream, Field(p_.from.k),
                         narrows ? &products : nullptr);
  }

  /// The estimate and the whole way back, of short sequences on tensor cores.
  bool runs_short(const Gradients& to, const Outputs& saved, Stream stream) {
    if (!by_mma_ || !saved.lse || !softmax_short_pays(shape_)) return false;
    if (!metric_.stays_in_range() || metric_.wants_all_bits(to)) return false;
    const TokenMean* mean = metric_.within_pass();
    const Folded folded = metric_.beside();
    const Saved known = narrow(to, saved);
    if (!softmax_short_serves(shape_, folded, known, mean)) return false;
    if (!mean) metric_.estimate({}, stream);
    softmax_short_backward(shape_, folded, known, metric_.sinks_beside(to), mean, stream);
    metric_.finish(to, stream, true);
    return true;
  }

  /// The whole way back on tensor cores, where they serve it.
  bool runs_by_mma(const Gradients& to, const Outputs& saved, Stream stream) {
    if constexpr (!std::is_same_v<M, DiagonalMetric>) {
      return false;
    } else {
      if (!by_mma_ || !saved.o || !saved.lse) return false;
      if (!metric_.stays_in_range() || metric_.wants_all_bits(to)) return false;
      const Folded folded = metric_.beside();
      const Saved known = narrow(to, saved);
      if (!softmax_mma_serves(shape_, folded, known)) return false;
      softmax_mma_backward(shape_, folded, known, metric_.sinks_beside(to), *by_mma_, stream);
      metric_.finish(to, stream, true);
      return true;
    }
  }

  /// The same for relu2 and identity.
  bool weighs_by_mma(const Gradients& to, Stream stream) {
    const Field d_o(to.d_o);
    const Weigh weigh = weigh_of(p_);
    if (!weights_) return false;
    const Folded folded = metric_.fold(0, stream);
    if (!weights_mma_serves(shape_, folded, weigh, d_o)) return false;
    weights_mma_backward(shape_, folded, weigh, d_o, metric_.sinks(to), *weights_, stream);
    metric_.gather(0, to, stream);
    metric_.finish(to, stream);
    return true;
  }

  /// o and lse, or what rows were divided by: those of the forward pass, or computed again.
  Saved known_of(const Gradients& to, const Outputs& saved, Stream stream) {
    const metric::Sizes& z = p_.size;
    Saved known{.d_o = Field(to.d_o), .delta = delta_, .share = share_};
    const bool softmax = std::holds_alternative<Softmax>(p_.how.weighting);
    const bool whole = saved.o && saved.o.dtype == DType::f32;  // 16 bits of o would show in ds
    if (softmax && whole && saved.lse) {
      known.o = Field(saved.o);
      known.lse = Field(saved.lse);
      return known;
    }
    const Field rows = Field::of(by_, {z.B, z.H, z.N});
    known.o = Field::of(o_, {z.B, z.H, z.N, z.E});
    Rows again{.o = known.o};
    if (softmax) {
      again.lse = known.lse = rows;
    } else {
      known.by = again.by = by_;
    }
    for (int wave = 0; wave < metric_.waves(); ++wave)
      tile_forward(shape_, metric_.fold(wave, stream), weigh_of(p_), again, stream);
    return known;
  }

  const Problem& p_;
  Shape shape_;
  M metric_;
  std::optional<ChunkedPass> chunked_;
  std::optional<SoftmaxMmaScratch> by_mma_;
  std::optional<WeightsMmaScratch> weights_;
  float *o_ = nullptr, *by_ = nullptr, *delta_ = nullptr, *share_ = nullptr;  // (B,H,N,E), (B,H,N)
  double* notes_ = nullptr;  // (B,H,N,2) of few keys
};

/// Calls f with a null pointer of the metric's class.
template <class F>
void with_metric(const Problem& p, F&& f) {
  p.full ? f(static_cast<FullMetric*>(nullptr)) : f(static_cast<DiagonalMetric*>(nullptr));
}

}  // namespace

std::string refusal(const Problem& p) {
  if (p.from.q.dtype == DType::f64)
    return "backend cuda computes in f32 and takes no f64; the nearest that can is backend ref";
  if (p.size.D > 256 || p.size.E > 256) {
    return "backend cuda takes heads of at most 256 numbers, got D = " + std::to_string(p.size.D) +
           " and E = " + std::to_string(p.size.E) + "; the nearest that can is backend cpu";
  }
  return {};
}

std::size_t workspace(const Problem& p) {
  Arena forward, backward;
  with_metric(p, [&]<class M>(M*) {
    Forward<M>(forward, p);
    Backward<M>(backward, p, Order::any);
  });
  return std::max(forward.used(), backward.used()) + Arena::alignment;
}

void forward(const Outputs& to, const Problem& p, const Run& how) {
  Arena arena(how.memory);
  with_metric(p, [&]<class M>(M*) { Forward<M>(arena, p).run(to, how); });
}

std::size_t carried_workspace(const Problem& p, const Carried& carried) {
  Arena arena;
  with_metric(p, [&]<class M>(M*) { Forward<M>(arena, p, carried); });
  return arena.used() + Arena::alignment;
}

void carried_forward(const Outputs& to, const Problem& p, const Run& how, const Carried& carried) {
  Arena arena(how.memory);
  with_metric(p, [&]<class M>(M*) { Forward<M>(arena, p, carried).run(to, how); });
}

void backward(const Gradients& to, const Outputs& saved, const Problem& p, const Run& how) {
  Arena arena(how.memory);
  const Order order = how.deterministic ? Order::repeatable : Order::any;
  with_metric(p, [&]<class M>(M*) { Backward<M>(arena, p, order).run(to, saved, how); });
}

}  // namespace foci::cuda
