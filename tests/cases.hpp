// SPDX-License-Identifier: Apache-2.0
// The one table of shapes that tests and benchmarks share, and tensors made for them from a seed.
#pragma once

#include <foci/call.hpp>

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace foci::cases {

enum class Masked { nothing, tail, head, holes, everything };

struct Case {
  const char* name;
  std::int64_t B, H, G, N, M, D, E;
  Masked masked = Masked::nothing;
};

/// Awkward on purpose: one query, one over a tile, more queries than keys, wide values, nothing to
/// see.
inline const std::vector<Case>& shapes() {
  static const std::vector<Case> table = {
      {"small", 2, 4, 2, 9, 9, 4, 4},
      {"one_token", 1, 2, 2, 1, 1, 8, 8},
      {"one_query", 1, 4, 1, 1, 33, 8, 8},
      {"more_queries", 1, 2, 2, 12, 5, 4, 4},
      {"more_keys", 2, 2, 1, 5, 17, 4, 4},
      {"over_a_tile", 1, 2, 2, 65, 65, 8, 8},
      {"wide_values", 1, 2, 2, 7, 7, 4, 11},
      {"narrow", 1, 2, 2, 6, 6, 1, 1},
      {"padded", 3, 2, 2, 13, 13, 4, 4, Masked::tail},
      {"left_padded", 2, 2, 1, 13, 13, 4, 4, Masked::head},
      {"holes", 2, 4, 2, 15, 15, 4, 4, Masked::holes},
      {"nothing_to_see", 2, 2, 2, 5, 6, 4, 4, Masked::everything},
      {"no_keys", 1, 2, 2, 3, 0, 4, 4},
      {"vit", 1, 3, 3, 197, 197, 16, 16},
  };
  return table;
}

inline const Case& shape(const std::string& name) {
  for (const Case& c : shapes()) {
    if (name == c.name) return c;
  }
  throw std::out_of_range(name);
}

/// Random tensors of a case, in `dtype`, and room for every output and gradient.
class Made {
 public:
  Case c;
  DType dtype;

  explicit Made(const Case& of, std::uint64_t seed = 1, DType type = DType::f64, double size = 1)
      : c(of), dtype(type), random_(seed) {
    normal("q", {c.B, c.H, c.N, c.D}, size);
    normal("k", {c.B, c.G, c.M, c.D}, size);
    normal("v", {c.B, c.G, c.M, c.E}, size);
    normal("v_prev", {c.B, c.G, c.M, c.E}, size);
    normal("d_o", {c.B, c.H, c.N, c.E}, 1);
    if (c.masked != Masked::nothing) mask();
  }

  const Tensor& normal(const std::string& name, const Shape& shape, double size) {
    Tensor wide(DType::f64, shape);
    std::normal_distribution<double> draw;
    for (std::int64_t i = 0; i < wide.view().count(); ++i)
      wide.data<double>()[i] = size * double(float(draw(random_)));
    return tensors_[name] = Tensor::copy(wide, dtype);
  }

  const Tensor& put(const std::string& name, Tensor tensor) {
    return tensors_[name] = std::move(tensor);
  }
  const Tensor& operator[](const std::string& name) const { return tensors_.at(name); }

  /// A tensor to be written to, filled with NaN so that what is left out shows.
  View fresh(const std::string& name, const Shape& shape, DType type) {
    Tensor tensor(type, shape);
    for (std::int64_t i = 0; i < tensor.view().count(); ++i) {
      if (type == DType::f64) tensor.data<double>()[i] = std::nan("");
      if (type == DType::f32) tensor.data<float>()[i] = std::nanf("");
      if (type == DType::bf16) tensor.data<Bf16>()[i] = Bf16(std::nan(""));
      if (type == DType::f16) tensor.data<F16>()[i] = F16(std::nan(""));
      if (type == DType::i64) tensor.data<std::int64_t>()[i] = -77;
    }
    return tensors_[name] = std::move(tensor);
  }

  View find(const std::string& name) const {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? View{} : at->second.view();
  }

  Inputs inputs() const {
    return {.q = find("q"),
            .k = find("k"),
            .v = find("v"),
            .v_prev = find("v_prev"),
            .key_mask = find("key_mask"),
            .key_bias = find("key_bias"),
            .metric = find("metric")};
  }

 private:
  void mask() {
    Tensor keep(DType::boolean, {c.B, c.M});
    for (std::int64_t b = 0; b < c.B; ++b) {
      for (std::int64_t j = 0; j < c.M; ++j) {
        bool kept = true;
        if (c.masked == Masked::tail) kept = j < c.M - 2 - 3 * b;
        if (c.masked == Masked::head) kept = j >= 3 + 4 * b;
        if (c.masked == Masked::holes) kept = (j + 3 - b) % 4 != 0;
        if (c.masked == Masked::everything) kept = b != 0;
        keep.data<std::uint8_t>()[b * c.M + j] = kept;
      }
    }
    tensors_["key_mask"] = std::move(keep);
  }

  std::mt19937_64 random_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace foci::cases
