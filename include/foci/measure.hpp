// SPDX-License-Identifier: Apache-2.0
// Does attention concentrate, does the representation collapse, what does it look at: numbers of
// any model under an nn::Watch, a batch at a time, for any length, in memory that grows with the
// tokens. docs/measure.md has every formula, and what is given where there is nothing to divide by.
#pragma once

#include <foci/export.h>
#include <foci/models.hpp>
#include <foci/watch.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace foci::measure {

// ---- weights, and what is read off them -------------------------------------------------------

/// Some rows of a call; -1: all of them.
struct Part {
  std::int64_t sample = -1, head = -1;
  std::int64_t first = 0, count = -1;  ///< queries
};
/// The weights a_ij of any metric and weighting, (samples, heads, rows, M), from the metric that
/// the call used. Throws InvalidArgument for rows that are not there, Unsupported above 2 GiB and
/// for packed sequences.
FOCI_API at::Tensor weights(const nn::Seen& call, const Part& part = {});

/// The weights of every layer of one pass, (B,H,N,M) each, in their order. Throws Unsupported where
/// they would have more than 2 GiB together: a picture needs few samples.
FOCI_API std::vector<at::Tensor> maps(const std::function<void()>& pass);

/// Abnar and Zuidema: the product, lowest first, of (mean over heads + I) / 2 with rows that sum to
/// 1; maps (H,N,N) or (B,H,N,N), every one of them square. (N,N) or (B,N,N).
FOCI_API at::Tensor rollout(const std::vector<at::Tensor>& maps);

/// Mean over pairs of heads of |vec(a_h) - vec(a_g)|, of a (H,N,M); 0 for one head.
FOCI_API double head_distance(const at::Tensor& a);

/// 1/2 sum_ij a_ij |x_i - x_j|^2 of tokens (N,D) and weights (N,N).
FOCI_API double dirichlet(const at::Tensor& x, const at::Tensor& a);

// ---- tokens -------------------------------------------------------------------------------------

/// How alike a sample's tokens are, (B) f64 each.
struct Likeness {
  at::Tensor cosine;              ///< mean over pairs
  at::Tensor high_low;            ///< |X - mean| / |mean| in Frobenius' norm
  at::Tensor residual;            ///< sqrt(|X - mean|_1 |X - mean|_inf) by the same of X
  at::Tensor dirichlet;           ///< |X - mean|_F^2 / n
  at::Tensor dirichlet_relative;  ///< by |X|_F^2
};
/// Of tokens (B,N,D); those that the mask (B,N) leaves out do not count.
FOCI_API Likeness likeness(const at::Tensor& x, const at::Tensor& mask = {});

/// A number with its standard error, which is 0 where it was computed exactly.
struct Estimate {
  double value = 0, error = 0;
};
/// In how many directions tokens lie.
struct Spectrum {
  Estimate effective_rank;          ///< exp of the entropy of sigma / sum sigma
  Estimate effective_rank_squares;  ///< the same of sigma^2
  Estimate stable_rank;             ///< |X|_F^2 / |X|_2^2
  Estimate participation;           ///< (sum sigma^2)^2 / sum sigma^4
};
struct SpectrumOptions {
  std::int64_t exact = 2048;  ///< the shorter side up to which eigenvalues of X'X or XX' are taken
  int probes = 24, steps = 48;  ///< beyond: random vectors, and Lanczos steps from each
  std::uint64_t seed = 0;
};
/// Of one sample (N,D).
FOCI_API Spectrum spectrum(const at::Tensor& x, const SpectrumOptions& how = {});

// ---- a metric's health ----------------------------------------------------------------------

/// Over the heads and samples of one layer; of m, or of the eigenvalues of a full P.
struct Health {
  double least = 0, most = 0, mean = 0;
  double variation = 0;   ///< standard deviation by mean, of a head
  double anisotropy = 1;  ///< largest by mean
  double condition = 1;   ///< largest by smallest; at most 1e12
  double entropy = 1;     ///< of m / sum m, by ln D: 1 for a circle
  double at_floor = 0;    ///< share of coordinates below 1 % of their head's largest
  double drift = 0;       ///< |m - m below|_F / |m below|_F, of means over samples; 0: none below
  at::Tensor typical;     ///< m (G,D) or P (G,D,D), the mean over samples
};
/// Of a metric as nn::Statistics has it. Under prefix that of the last query, or chunk.
FOCI_API Health health(const at::Tensor& metric, Extent extent = Extent::diagonal);
/// |to - from|_F / |from|_F; 0 where shapes differ or there is nothing to divide by.
FOCI_API double drift(const at::Tensor& from, const at::Tensor& to);

// ---- a model over data --------------------------------------------------------------------------

/// A mean over samples and its standard error, in which is that of each number where it was
/// estimated. n = 0: was not measured.
struct Value {
  double mean = 0, error = 0;
  std::int64_t n = 0;
};

/// Where a layer's tokens stand: `leading` ones that stand nowhere, then a grid row by row, then
/// others that stand nowhere. height 0: all in a line.
struct Grid {
  std::int64_t leading = 0, height = 0, width = 0;
};
FOCI_API std::vector<Grid> grids_of(const models::VitOptions& options);
FOCI_API std::vector<Grid> grids_of(const models::SegmenterOptions& options);

struct Options {
  /// Samples, the first ones, whose weights are formed block by block and whose spectra are taken;
  /// the others cost little more than the pass itself. -1: all.
  std::int64_t closely = 16;
  std::int64_t top = 10;         ///< keys of the top-k mass
  std::vector<Grid> grids = {};  ///< a layer; the last one is for those above too
  bool queries = false;          ///< Layer::by_query
  /// Of a closely measured sample and layer, that are formed; where it has more, those of queries
  /// spread evenly stand for all.
  std::int64_t weights = std::int64_t(1) << 30;
  /// Tokens up to which rollout is followed: it needs N^2 numbers.
  std::int64_t rollout = 2048;
  SpectrumOptions spectrum = {};
};

/// Over the rows that see a key.
struct Rows {
  Value concentration, effective_keys, entropy, largest;
  Value distance;  ///< sum_j |a_ij| |i - j| / sum_j |a_ij|, in places of the grid or the line
  Value top;       ///< share of sum_j |a_ij| that the largest k have
};

struct Tokens {
  Value cosine, high_low, residual, dirichlet, dirichlet_relative;
  Value effective_rank, effective_rank_squares, stable_rank, participation;
};

struct Layer {
  std::int64_t heads = 0, queries = 0, keys = 0;  ///< the most that a sample had
  std::string mechanism = {};                     ///< its settings as text
  Rows rows;                                      ///< of all heads
  std::vector<Rows> by_head;
  Value head_distance;  ///< as above
  Value rollout_keys;   ///< 1 / sum_j r_ij^2, the mean over rows of the rollout up to here
  Value key_change;     ///< mean |k - k below| by mean |k below|
  std::optional<Health> metric;
  /// Standard errors over samples; NaN for least, most and drift, which are no means.
  std::optional<Health> metric_error;
  std::int64_t metric_samples = 0;  ///< that its metric is of
  Tokens tokens;                    ///< as they come out of the block
  std::int64_t looked = 0;  ///< queries whose weights were formed, of a closely measured sample
  at::Tensor by_query;      ///< (6,H,N), in the order of Rows; NaN where no row has the number
};

struct Report {
  std::int64_t samples = 0;
  Tokens embedded;  ///< as they go into the first block
  std::vector<Layer> layers;
};

/// Measures passes, one after another.
///   measure::Meter meter({.grids = measure::grids_of(vit->options())});
///   meter.add([&] { vit->forward(images); });
///   measure::Report report = meter.report();
class FOCI_API Meter {
 public:
  explicit Meter(const Options& options = {});
  ~Meter();
  Meter(Meter&&) noexcept;
  Meter& operator=(Meter&&) noexcept;
  /// Every call of attention in `pass`, which runs without gradients, is a layer. Throws
  /// InvalidArgument where a pass has other layers than the first one had.
  void add(const std::function<void()>& pass);
  Report report() const;

 private:
  struct Sums;
  std::unique_ptr<Sums> sums_;
};

/// images (N,C,S,S) through any model, `batch` at once: a models::Vit, or what
/// train::open_classifier gives. Grids are the caller's to say.
FOCI_API Report images(const std::function<at::Tensor(const at::Tensor&)>& model,
                       const at::Tensor& images, const Options& options, std::int64_t batch = 50);

}  // namespace foci::measure
