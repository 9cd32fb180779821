// SPDX-License-Identifier: Apache-2.0
// Estimates in double. A sum over the ranks before is taken out of what everyone tells everyone: a
// few numbers a head.
#include "dist/estimate.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace foci::dist {
namespace {

constexpr int most_raises = 6;

at::Tensor in_all(Group& group, const at::Tensor& x) { return of_everyone(group, x).sum(0); }

/// Of the ranks before this one.
at::Tensor in_those_before(Group& group, const at::Tensor& x) {
  return of_everyone(group, x).slice(0, 0, group.rank()).sum(0);
}

at::Tensor where_counted(const at::Tensor& keep, const at::Tensor& x) {
  return at::where(keep.gt(0), x, at::zeros_like(x));
}

/// m over its largest or mean entry; 1 where that is 0 or nothing is counted.
at::Tensor normalised(const at::Tensor& m, Normalize how, const at::Tensor& count) {
  at::Tensor by = at::ones_like(m.select(-1, 0)).unsqueeze(-1);
  if (how == Normalize::max) by = m.amax({-1}, true);
  if (how == Normalize::mean) by = m.mean(at::IntArrayRef{-1}, true);
  const at::Tensor none = by.eq(0).logical_or(count.eq(0));
  return at::where(none, at::ones_like(m), m / at::where(none, at::ones_like(by), by));
}

/// The mean of `x` (B,X,n,D) over the tokens that `keep` (B,1 or X,n,1) counts: all of them, or for
/// each token those up to it.
at::Tensor mean_over(Group& group, const at::Tensor& x, const at::Tensor& keep, Normalize how,
                     bool prefix) {
  const at::Tensor kept = where_counted(keep, x);
  const at::Tensor own = kept.sum(2, true), own_count = keep.sum(2, true);
  at::Tensor sum, count;
  if (prefix) {
    sum = in_those_before(group, own) + kept.cumsum(2);
    count = in_those_before(group, own_count) + keep.cumsum(2);
  } else {
    sum = in_all(group, own);
    count = in_all(group, own_count);
  }
  return normalised(sum / count.clamp_min(1), how, count);
}

/// n, sum (G,D), products (G,D,D) of keys, each with the batch before it.
struct Moments {
  at::Tensor n, sum, products;
  Moments operator+(const Moments& o) const {
    return {n + o.n, sum + o.sum, products + o.products};
  }
};

/// P = ((n S + n0 I)/(n + n0) + ridge I)^-1 and the mean: n (X,1,1,1), sum (X,G,1,D), products
/// (X,G,D,D), all over x.
at::Tensor inverse_covariance(const Moments& of, double ridge, double prior) {
  const at::Tensor n = of.n, mean = of.sum / n.clamp_min(1);
  const at::Tensor scatter = of.products - n * at::matmul(mean.transpose(2, 3), mean);
  const at::Tensor eye = at::eye(scatter.size(-1), scatter.options()).expand_as(scatter);
  const at::Tensor all = (n + prior).clamp_min(1e-300), some = n.gt(0);
  const at::Tensor weight = at::where(some, n / all / (n - 1).clamp_min(1), at::zeros_like(n));
  const at::Tensor own = at::where(some, prior / all, at::ones_like(n));
  const at::Tensor sigma = weight * scatter + own * eye;
  at::Tensor raised = at::full({sigma.size(0), sigma.size(1), 1, 1}, ridge, sigma.options());
  for (int raises = 0; raises <= most_raises; ++raises) {
    const at::Tensor failed =
        std::get<1>(at::linalg_cholesky_ex(sigma.detach() + raised * eye)).ne(0);
    if (!failed.any().item<bool>()) return at::linalg_inv(sigma + raised * eye);
    raised = at::where(failed.unsqueeze(-1).unsqueeze(-1), raised * 10, raised);
  }
  throw NumericalError(
      "the keys' covariance cannot be factored, not with a larger ridge either: raise ridge");
}

}  // namespace

at::Tensor counted(const Tokens& tokens) {
  const at::Tensor& k = tokens.k;
  if (!tokens.key_mask.defined())
    return at::ones({k.size(0), 1, k.size(2), 1}, k.options().dtype(at::kDouble));
  return tokens.key_mask.unsqueeze(1).unsqueeze(3).to(at::kDouble);
}

at::Tensor change_estimate(Group& group, const Tokens& tokens, Normalize how, bool prefix) {
  const at::Tensor change = (tokens.v.to(at::kDouble) - tokens.v_prev.to(at::kDouble)).abs();
  return mean_over(group, change, counted(tokens), how, prefix);
}

at::Tensor jacobian_estimate(Group& group, const Tokens& tokens, Normalize how, double c,
                             bool causal, bool prefix) {
  const at::NoGradGuard without;
  const at::Tensor keep = counted(tokens);
  const at::Tensor bias =
      at::zeros_like(keep.select(3, 0)).masked_fill(keep.select(3, 0).eq(0), -INFINITY);
  const at::Tensor k = tokens.k.detach().to(at::kDouble) - first_key(group, tokens);
  const at::Tensor v = where_counted(keep, tokens.v.detach().to(at::kDouble));
  const Scores scores{c * tokens.q.detach().to(at::kDouble),
                      where_counted(keep, k),
                      bias.expand({-1, k.size(1), -1}).contiguous(),
                      {},
                      causal};
  const at::Tensor both = at::cat({scores.k, v}, 3).contiguous();
  const Attended seen = ring_attend(group, scores, both);
  const std::int64_t D = k.size(3);
  const at::Tensor kappa = seen.o.slice(3, 0, D), omega = seen.o.slice(3, D);
  const at::Tensor J =
      c * (ring_products(group, scores, v, seen.lse) - kappa.unsqueeze(4) * omega.unsqueeze(3));
  const at::Tensor sees = seen.lse.ne(-INFINITY).unsqueeze(3).to(at::kDouble) * keep;  // (B,H,n,1)
  return mean_over(group, J.abs().sum(4), sees, how, prefix);
}

at::Tensor first_key(Group& group, const Tokens& tokens) {
  const at::NoGradGuard without;
  const at::Tensor keep = counted(tokens), k = tokens.k.to(at::kDouble);
  const at::Tensor is_first = keep * keep.cumsum(2).eq(1).to(at::kDouble);
  const at::Tensor own = (where_counted(is_first, k)).sum(2, true);
  const at::Tensor before = in_those_before(group, keep.sum(2, true));
  return in_all(group, where_counted(before.eq(0).to(at::kDouble), own));
}

at::Tensor mean_key(Group& group, const Tokens& tokens) {
  const at::NoGradGuard without;
  const at::Tensor keep = counted(tokens);
  const at::Tensor sum = where_counted(keep, tokens.k.to(at::kDouble)).sum(2, true);
  return in_all(group, sum) / in_all(group, keep.sum(2, true)).clamp_min(1);
}

Geometry covariance_geometry(Group& group, const Tokens& tokens, const KeyCovariance& how) {
  Geometry geometry;
  geometry.shift = mean_key(group, tokens);
  geometry.centre = at::zeros_like(geometry.shift);
  const at::Tensor keep = counted(tokens);
  const at::Tensor x = where_counted(keep, tokens.k.to(at::kDouble) - geometry.shift);
  const Moments all{in_all(group, keep.sum(2, true)), in_all(group, x.sum(2, true)),
                    in_all(group, at::matmul(x.transpose(2, 3), x))};
  geometry.P = inverse_covariance(all, how.ridge, how.prior.value_or(0));
  return geometry;
}

namespace {

/// Own tokens of one batch entry, cut where a chunk begins: `bounds` of token numbers, chunk
/// `first` + i from bounds[i] on.
struct Cut {
  std::int64_t first = 0;
  std::vector<std::int64_t> bounds;
};

Cut cut_of(const at::Tensor& chunk) {  // (n) i64, growing
  const auto* at = chunk.data_ptr<std::int64_t>();
  const std::int64_t n = chunk.size(0);
  Cut cut;
  cut.first = n > 0 ? at[0] : 0;
  cut.bounds.push_back(0);
  for (std::int64_t i = 1; i < n; ++i) {
    for (std::int64_t step = at[i - 1]; step < at[i]; ++step) cut.bounds.push_back(i);
  }
  cut.bounds.push_back(n);
  return cut;
}

/// Summed over the first dimension with weights (K,B).
Moments weighted(const Moments& of, const at::Tensor& by) {
  const at::Tensor w = by.view({by.size(0), by.size(1), 1, 1, 1});
  return {(of.n * w).sum(0), (of.sum * w).sum(0), (of.products * w).sum(0)};
}

/// Of x (G,m,D).
Moments moments_of(const at::Tensor& x, const at::Tensor& keep) {
  return {keep.sum().view({1, 1, 1}), x.sum(1, true), at::matmul(x.transpose(1, 2), x)};
}

/// What a rank's own keys add up to: for each batch entry in chunks, in all, and in the last chunk
/// that a key of its lies in, because a later rank may begin in the same.
struct OwnMoments {
  std::vector<Cut> cuts;
  std::vector<std::vector<Moments>> parts;
  std::vector<Moments> totals, lasts;
  std::vector<double> last_chunks;  // -1: no key
};

OwnMoments own_moments(const at::Tensor& x, const at::Tensor& keep, const at::Tensor& chunk) {
  OwnMoments own;
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    const Cut cut = cut_of(chunk[b].contiguous());
    Moments total = moments_of(x[b].slice(1, 0, 0), keep[b].slice(1, 0, 0)), last = total;
    std::vector<Moments> parts;
    double last_chunk = -1;
    for (std::size_t i = 0; i + 1 < cut.bounds.size(); ++i) {
      const at::Tensor kept = keep[b].slice(1, cut.bounds[i], cut.bounds[i + 1]);
      parts.push_back(moments_of(x[b].slice(1, cut.bounds[i], cut.bounds[i + 1]), kept));
      total = total + parts.back();
      if (kept.sum().item<double>() == 0) continue;
      last = parts.back();
      last_chunk = double(cut.first) + double(i);
    }
    own.cuts.push_back(cut);
    own.parts.push_back(parts);
    own.totals.push_back(total);
    own.lasts.push_back(last);
    own.last_chunks.push_back(last_chunk);
  }
  return own;
}

/// (K,B,...)
Moments told(Group& group, const std::vector<Moments>& all) {
  std::vector<at::Tensor> n, sum, products;
  for (const Moments& one : all) {
    n.push_back(one.n);
    sum.push_back(one.sum);
    products.push_back(one.products);
  }
  const auto of = [&](const std::vector<at::Tensor>& x) {
    return of_everyone(group, at::stack(x).contiguous());
  };
  return {of(n), of(sum), of(products)};
}

/// The keys of earlier ranks: those below this rank's first chunk, and those in it (B,...).
struct Earlier {
  Moments below, shared;
};

Earlier earlier_moments(Group& group, const OwnMoments& own) {
  const Moments totals = told(group, own.totals), lasts = told(group, own.lasts);
  const at::Tensor last_chunks = of_everyone(group, at::tensor(own.last_chunks, at::kDouble));
  // Of every rank, with weights of 0 or 1: backward then asks the same of all of them.
  const at::Tensor before = at::zeros_like(last_chunks);
  before.slice(0, 0, group.rank()).fill_(1);
  std::vector<double> firsts;
  for (const Cut& cut : own.cuts) firsts.push_back(double(cut.first));
  const at::Tensor same = last_chunks.eq(at::tensor(firsts, at::kDouble).unsqueeze(0));
  const Moments shared = weighted(lasts, before * same.to(at::kDouble));
  const Moments all = weighted(totals, before);
  return {{all.n - shared.n, all.sum - shared.sum, all.products - shared.products}, shared};
}

}  // namespace

Geometry prefix_geometry(Group& group, const Tokens& tokens, const KeyCovariance& how) {
  Geometry geometry;
  geometry.shift = first_key(group, tokens);
  const at::Tensor keep = counted(tokens);
  const at::Tensor x = where_counted(keep, tokens.k.to(at::kDouble) - geometry.shift);
  const at::Tensor before = in_those_before(group, keep.sum(2, true));
  const at::Tensor place = (before + keep.cumsum(2) - keep).squeeze(3).squeeze(1);  // (B,n)
  const at::Tensor chunk = place.div(double(how.period), "floor").to(at::kCPU, at::kLong);
  const OwnMoments own = own_moments(x, keep, chunk);
  const Earlier earlier = earlier_moments(group, own);
  const std::int64_t G = x.size(1), D = x.size(3);
  std::vector<at::Tensor> n, sum, products;
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    const auto of_entry = [&](const Moments& m) {
      return Moments{m.n[b], m.sum[b], m.products[b]};
    };
    const Cut& cut = own.cuts[std::size_t(b)];
    Moments seen = of_entry(earlier.below);
    for (std::size_t i = 0; i + 1 < cut.bounds.size(); ++i) {
      if (i > 0) seen = seen + own.parts[std::size_t(b)][i - 1];
      if (i == 1) seen = seen + of_entry(earlier.shared);
      geometry.chunks.push_back({b, cut.bounds[i], cut.bounds[i + 1], std::int64_t(n.size())});
      n.push_back(seen.n);
      sum.push_back(seen.sum.expand({G, 1, D}));
      products.push_back(seen.products.expand({G, D, D}));
    }
  }
  const Moments all{at::stack(n), at::stack(sum), at::stack(products)};
  geometry.P = inverse_covariance(all, how.ridge, how.prior.value_or(double(D)));
  geometry.centre = (all.sum / all.n.clamp_min(1)).detach();
  return geometry;
}

}  // namespace foci::dist
