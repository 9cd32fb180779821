// SPDX-License-Identifier: Apache-2.0
// Taking a token into the cache.
#include "cpu/decode_cache.hpp"

#include "cpu/decode_row.hpp"

namespace foci::cpu {

namespace {

Line line_of(DType type) {
  return type == DType::bf16 ? Line::bf16 : type == DType::f16 ? Line::f16 : Line::f32;
}

}  // namespace

DecodeCache DecodeCache::take(Arena& arena, const Problem& p, DType type, const Remembered& what,
                              const Kernels& isa) {
  const std::int64_t capacity = p.longest_m;
  const Line line = isa.decode->keeps_narrow ? line_of(type) : Line::f32;
  DecodeCache cache;
  cache.what = what;
  cache.key_line = what.whitened ? Line::f32 : line;
  cache.value_line = line;
  cache.R = p.heads_per_key();
  cache.D = p.size.D;
  cache.E = p.size.E;
  cache.value_step = padded(p.size.E, isa.decode->lanes);
  cache.panel = isa.panel;
  cache.step = padded(capacity, isa.panel);
  const auto room = [&](bool needed, std::int64_t count) { return needed ? count : 0; };
  cache.keys =
      arena.take<std::byte>(room(what.keys, cache.step), cache.D, bytes_of(cache.key_line));
  cache.values =
      arena.take<std::byte>(room(what.values, capacity), cache.value_step, bytes_of(line));
  cache.bias = arena.take<float>(room(what.keys, cache.R), cache.step);
  cache.at = arena.take<std::int64_t>(capacity);
  cache.key_lines = arena.take<float>(room(what.key_lines, capacity), cache.D);
  cache.value_lines = arena.take<float>(room(what.value_lines, capacity), cache.E);
  return cache;
}

void DecodeCache::append(const NextToken& token, const DecodeKernels& isa) {
  const Inputs& from = token.of.from;
  const metric::Index line{token.b, token.g, token.i};
  const std::int64_t j = n++;
  at[j] = token.t;
  // Elements `apart` in the cache, as they are or as floats.
  const auto keep = [&](std::span<std::byte> to, std::int64_t first, std::int64_t apart,
                        const View& tensor) {
    const std::int64_t step = tensor.strides[3], count = tensor.shape[3];
    metric::with_floating(tensor.dtype, [&]<class S>(S*) {
      const S* x = metric::address<S>(tensor, line);
      const auto copy = [&]<class C>(C* cache) {
        for (std::int64_t d = 0; d < count; ++d)
          cache[first + d * apart] = metric::convert<C>(x[d * step]);
      };
      value_line == Line::f32 ? copy(reinterpret_cast<float*>(to.data()))
                              : copy(reinterpret_cast<S*>(to.data()));
    });
  };
  if (what.keys && !what.whitened) keep(keys, j / panel * panel * D + j % panel, panel, from.k);
  if (what.values) keep(values, j * value_step, 1, from.v);
  if (what.key_lines) load_line(key_lines.data() + (j * D), from.k, line, D, isa);
  if (what.value_lines) load_line(&value_lines[j * E], from.v, line, E, isa);
  if (!what.keys) return;
  const View& own = from.key_bias;
  biased = biased || own;
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int64_t head = own && own.shape[1] == token.of.size.H ? token.g * R + r : token.g;
    bias[r * step + j] = own ? metric::load_one<float>(own, {token.b, head, token.i}) : 0.0f;
  }
}

void load_line(float* to, const View& from, const metric::Index& at, std::int64_t count,
               const DecodeKernels& isa) {
  const bool together = from.strides[from.rank - 1] == 1;
  const std::int64_t whole = together ? count / isa.lanes * isa.lanes : 0;
  metric::with_floating(from.dtype, [&]<class S>(S*) {
    const S* line = metric::address<S>(from, at);
    if constexpr (!std::is_same_v<S, double>) isa.widen(to, line, line_of(from.dtype), whole);
    const std::int64_t begin = std::is_same_v<S, double> ? 0 : whole;
    for (std::int64_t d = begin; d < count; ++d)
      to[d] = metric::convert<float>(line[d * from.strides[from.rank - 1]]);
  });
}

}  // namespace foci::cpu
