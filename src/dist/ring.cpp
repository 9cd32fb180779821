// SPDX-License-Identifier: Apache-2.0
// One block of keys after the other, the sums of the softmax merged by their logarithms; on the way
// back gradients of keys and values go round with them. Weights exist a tile of queries at a time.
#include "dist/ring.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <limits>

namespace foci::dist {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr std::int64_t tile_rows = 128;
constexpr double no_weight = -std::numeric_limits<double>::infinity();

/// What goes round: k (B,G,n,D), v (B,G,n,E), bias (B,G,n) of the rank `owner`.
struct Block {
  int owner = 0;
  at::Tensor k, v, bias;
};

/// Several tensors as one that travels.
class Parcel {
 public:
  explicit Parcel(const std::vector<at::Tensor>& all) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& x : all) flat.push_back(x.reshape(-1));
    packed_ = at::cat(flat);
  }
  const at::Tensor& packed() const { return packed_; }
  static std::vector<at::Tensor> open(const at::Tensor& packed, const std::vector<at::Tensor>& like,
                                      std::int64_t length) {
    std::vector<at::Tensor> all;
    std::int64_t at = 0;
    for (const at::Tensor& x : like) {
      std::vector<std::int64_t> sizes = x.sizes().vec();
      sizes[2] = length;
      std::int64_t count = 1;
      for (const std::int64_t size : sizes) count *= size;
      all.push_back(packed.slice(0, at, at + count).view(sizes));
      at += count;
    }
    return all;
  }

 private:
  at::Tensor packed_;
};

std::int64_t count_of(const std::vector<at::Tensor>& like, std::int64_t length) {
  std::int64_t all = 0;
  for (const at::Tensor& x : like) all += x.size(2) == 0 ? 0 : x.numel() / x.size(2) * length;
  return all;
}

/// How many tokens each rank has.
std::vector<std::int64_t> lengths_of(Group& group, std::int64_t own) {
  std::vector<double> all(std::size_t(group.size()), 0.0);
  all[std::size_t(group.rank())] = double(own);
  const std::vector<double> sums = group.sum(all);
  return {sums.begin(), sums.end()};
}

int owner_before(const Group& group, int owner) {
  return (owner + group.size() - 1) % group.size();
}

/// A tile: some queries of some batch entries, and the keys that they are held against.
struct Tile {
  std::int64_t batch = 0, batches = 0, first = 0, end = 0;
  std::int64_t index = -1;  // of Chunks
};

std::vector<Tile> tiles_of(const Scores& scores) {
  std::vector<Tile> tiles;
  const auto add = [&](Tile tile) {
    for (std::int64_t at = tile.first; at < tile.end; at += tile_rows) {
      Tile part = tile;
      part.first = at;
      part.end = std::min(at + tile_rows, tile.end);
      tiles.push_back(part);
    }
  };
  if (!scores.chunks.P.defined()) add({0, scores.q.size(0), 0, scores.q.size(2), -1});
  for (const Chunk& chunk : scores.chunks.list)
    add({chunk.batch, 1, chunk.first, chunk.end, chunk.index});
  return tiles;
}

/// Rows of a tile with the heads of a key head side by side: (b,H,n,X) -> (b,G,R*t,X).
at::Tensor rows_of(const at::Tensor& x, const Tile& tile, std::int64_t G) {
  const at::Tensor part =
      x.slice(0, tile.batch, tile.batch + tile.batches).slice(2, tile.first, tile.end);
  return part.reshape({tile.batches, G, -1, x.size(3)});
}

/// The tile of `to` as (b,H,t,X), to be added to.
at::Tensor place_of(const at::Tensor& to, const Tile& tile) {
  return to.slice(0, tile.batch, tile.batch + tile.batches).slice(2, tile.first, tile.end);
}

/// The keys as the tile's queries see them, and their biases.
struct Seen {
  at::Tensor k, v, bias;  // (b,G,m,D), (b,G,m,E), (b,G,1,m)
  at::Tensor kP;          // (b,G,m,D) k P, of chunks
};

Seen seen_by(const Tile& tile, const Scores& scores, const Block& block) {
  const auto part = [&](const at::Tensor& x) {
    return x.slice(0, tile.batch, tile.batch + tile.batches);
  };
  Seen seen{part(block.k), part(block.v), part(block.bias).unsqueeze(2), {}};
  if (tile.index < 0) return seen;
  seen.k = seen.k - scores.chunks.centre[tile.index].unsqueeze(0);
  seen.kP = at::matmul(seen.k, scores.chunks.P[tile.index].unsqueeze(0));
  seen.bias = seen.bias - (0.5 * scores.chunks.c) * (seen.kP * seen.k).sum(3).unsqueeze(2);
  return seen;
}

/// s (b,G,R*t,m), what a causal query does not see -inf.
at::Tensor scores_of(const Tile& tile, const Scores& scores, const Seen& seen, bool same_owner) {
  const std::int64_t G = seen.k.size(1), t = tile.end - tile.first, m = seen.k.size(2);
  const at::Tensor q = rows_of(scores.q, tile, G);
  at::Tensor s = at::matmul(q, seen.k.transpose(2, 3)) + seen.bias;
  if (!scores.causal || !same_owner) return s;
  const at::Tensor rows = at::arange(tile.first, tile.end, s.options().dtype(at::kLong));
  const at::Tensor later =
      at::arange(m, s.options().dtype(at::kLong)).unsqueeze(0).gt(rows.unsqueeze(1));  // (t,m)
  return s.view({s.size(0), G, -1, t, m}).masked_fill(later, no_weight).flatten(2, 3);
}

bool sees_none(const Scores& scores, const Group& group, const Block& block) {
  return scores.causal && block.owner > group.rank();
}

/// exp(s - lse), 0 for a row that sees nothing.
at::Tensor weights_of(const at::Tensor& s, const at::Tensor& lse) {
  const at::Tensor none = lse.eq(no_weight);
  return (s - lse.masked_fill(none, 0)).exp_().masked_fill_(none, 0);
}

/// The blocks of all ranks, our own first; while one is worked on the next is on its way.
void go_round(Group& group, const Block& own, const std::function<void(const Block&)>& work) {
  const std::vector<at::Tensor> like{own.k, own.v, own.bias};
  const auto lengths = lengths_of(group, own.k.size(2));
  Block block = own;
  block.owner = group.rank();
  at::Tensor here = Parcel(like).packed();
  for (int turn = 0; turn < group.size(); ++turn) {
    const bool more = turn + 1 < group.size();
    const int next = owner_before(group, block.owner);
    at::Tensor coming;
    Group::Pending pending;
    if (more) {
      coming = at::empty({count_of(like, lengths[std::size_t(next)])}, here.options());
      pending = group.pass_on(here, coming);
    }
    work(block);
    if (!more) break;
    pending.wait();
    here = coming;
    const auto all = Parcel::open(here, like, lengths[std::size_t(next)]);
    block = {next, all[0], all[1], all[2]};
  }
}

Attended forward(Group& group, const Scores& scores, const at::Tensor& v) {
  const std::int64_t B = scores.q.size(0), H = scores.q.size(1), n = scores.q.size(2);
  const std::int64_t G = scores.k.size(1);
  Attended out{at::zeros({B, H, n, v.size(3)}, v.options()),
               at::full({B, H, n, 1}, no_weight, v.options())};
  const std::vector<Tile> tiles = tiles_of(scores);
  go_round(group, {0, scores.k, v, scores.bias}, [&](const Block& block) {
    if (sees_none(scores, group, block) || block.k.size(2) == 0) return;
    for (const Tile& tile : tiles) {
      const Seen seen = seen_by(tile, scores, block);
      const at::Tensor s = scores_of(tile, scores, seen, block.owner == group.rank());
      const at::Tensor before = rows_of(out.lse, tile, G), here = s.logsumexp({3}, true);
      const at::Tensor after = at::logaddexp(before, here);
      const at::Tensor o = weights_of(before, after) * rows_of(out.o, tile, G) +
                           at::matmul(weights_of(s, after), seen.v);
      place_of(out.o, tile).copy_(o.view_as(place_of(out.o, tile)));
      place_of(out.lse, tile).copy_(after.view_as(place_of(out.lse, tile)));
      group.alive();
    }
  });
  return out;
}

/// Gradients of what stays here, and of the block that is here now.
struct Back {
  at::Tensor dq, dP;
  at::Tensor dk, dv, dbias;
};

/// `d_o` and `delta` = sum d_o o (B,H,n,1).
void add_tile(Back& back, const Tile& tile, const Scores& scores, const Block& block, bool same,
              const at::Tensor& lse, const at::Tensor& d_o, const at::Tensor& delta) {
  const std::int64_t G = block.k.size(1);
  const Seen seen = seen_by(tile, scores, block);
  const at::Tensor p = weights_of(scores_of(tile, scores, seen, same), rows_of(lse, tile, G));
  const at::Tensor go = rows_of(d_o, tile, G);
  const at::Tensor ds = p * (at::matmul(go, seen.v.transpose(2, 3)) - rows_of(delta, tile, G));
  const at::Tensor dq = at::matmul(ds, seen.k), dbias = ds.sum(2);  // (b,G,m)
  at::Tensor dk = at::matmul(ds.transpose(2, 3), rows_of(scores.q, tile, G));
  if (tile.index >= 0) {
    const at::Tensor weighted = dbias.unsqueeze(3);
    dk = dk - scores.chunks.c * weighted * seen.kP;
    back.dP[tile.index].sub_(0.5 * scores.chunks.c *
                             at::matmul(seen.k.transpose(2, 3), weighted * seen.k).squeeze(0));
  }
  const auto part = [&](const at::Tensor& x) {
    return x.slice(0, tile.batch, tile.batch + tile.batches);
  };
  place_of(back.dq, tile).add_(dq.view_as(place_of(back.dq, tile)));
  part(back.dk).add_(dk);
  part(back.dv).add_(at::matmul(p.transpose(2, 3), go));
  part(back.dbias).add_(dbias);
}

/// Gradients go one step further than their block: after a whole round they are at home.
Back backward(Group& group, const Scores& scores, const at::Tensor& v, const Attended& out,
              const at::Tensor& d_o) {
  const at::Tensor delta = (d_o * out.o).sum(3, true);
  const std::vector<Tile> tiles = tiles_of(scores);
  const auto lengths = lengths_of(group, scores.k.size(2));
  const std::vector<at::Tensor> like{scores.k, v, scores.bias, scores.k, v, scores.bias};
  Back back{at::zeros_like(scores.q), {}, {}, {}, {}};
  if (scores.chunks.P.defined()) back.dP = at::zeros_like(scores.chunks.P);
  Block block{group.rank(), scores.k, v, scores.bias};
  back.dk = at::zeros_like(scores.k);
  back.dv = at::zeros_like(v);
  back.dbias = at::zeros_like(scores.bias);
  for (int turn = 0; turn < group.size(); ++turn) {
    if (!sees_none(scores, group, block) && block.k.size(2) > 0) {
      for (const Tile& tile : tiles) {
        add_tile(back, tile, scores, block, block.owner == group.rank(), out.lse, d_o, delta);
        group.alive();
      }
    }
    if (group.size() == 1) break;
    const at::Tensor here =
        Parcel({block.k, block.v, block.bias, back.dk, back.dv, back.dbias}).packed();
    const int next = owner_before(group, block.owner);
    const std::int64_t length = lengths[std::size_t(next)];
    const at::Tensor coming = at::empty({count_of(like, length)}, here.options());
    group.pass_on(here, coming).wait();
    const auto all = Parcel::open(coming, like, length);
    block = {next, all[0], all[1], all[2]};
    back.dk = all[3];
    back.dv = all[4];
    back.dbias = all[5];
  }
  return back;
}

/// Chunks as tensors, which autograd keeps.
at::Tensor table_of(const std::vector<Chunk>& list) {
  at::Tensor table = at::empty({std::int64_t(list.size()), 4}, at::kLong);
  auto* to = table.data_ptr<std::int64_t>();
  for (const Chunk& chunk : list) {
    for (const std::int64_t number : {chunk.batch, chunk.first, chunk.end, chunk.index})
      *to++ = number;
  }
  return table;
}

std::vector<Chunk> list_of(const at::Tensor& table) {
  std::vector<Chunk> list;
  const auto* from = table.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < table.size(0); ++i, from += 4)
    list.push_back({from[0], from[1], from[2], from[3]});
  return list;
}

struct Ring : torch::autograd::Function<Ring> {
  static variable_list forward(AutogradContext* context, const Variable& q, const Variable& k,
                               const Variable& bias, const Variable& P, const Variable& v,
                               const Variable& centre, const Variable& table, double c, bool causal,
                               std::int64_t group) {
    const Scores scores = scores_of_saved({q, k, bias, P, v, centre, table}, c, causal);
    const Attended out = dist::forward(group_of(group), scores, v);
    context->save_for_backward({q, k, bias, P, v, centre, table, out.o, out.lse});
    context->saved_data["c"] = c;
    context->saved_data["causal"] = causal;
    context->saved_data["group"] = group;
    context->mark_non_differentiable({out.lse});
    return {out.o, out.lse};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Scores scores = scores_of_saved(saved, context->saved_data["c"].toDouble(),
                                          context->saved_data["causal"].toBool());
    const Back back = dist::backward(group_of(context->saved_data["group"].toInt()), scores,
                                     saved[4], {saved[7], saved[8]}, gradients[0].contiguous());
    const Variable dP = back.dP.defined() ? back.dP : at::zeros_like(saved[3]);
    return {back.dq,    back.dk,    back.dbias, dP,         back.dv,
            Variable(), Variable(), Variable(), Variable(), Variable()};
  }

  static Group& group_of(std::int64_t address) {
    return *reinterpret_cast<Group*>(std::intptr_t(address));
  }

  static Scores scores_of_saved(const variable_list& saved, double c, bool causal) {
    Scores scores{saved[0], saved[1], saved[2], {}, causal};
    if (saved[3].dim() == 4) scores.chunks = {list_of(saved[6]), saved[3], saved[5], c};
    return scores;
  }
};

struct Everyone : torch::autograd::Function<Everyone> {
  static Variable forward(AutogradContext* context, const Variable& x, std::int64_t group) {
    context->saved_data["group"] = group;
    Group& ranks = *reinterpret_cast<Group*>(std::intptr_t(group));
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.insert(sizes.begin(), ranks.size());
    const at::Tensor all = at::zeros(sizes, x.options());
    all[ranks.rank()].copy_(x);
    ranks.sum(all);
    return all;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    Group& ranks = *reinterpret_cast<Group*>(std::intptr_t(context->saved_data["group"].toInt()));
    const at::Tensor all = gradients[0].contiguous().clone();
    ranks.sum(all);
    return {all[ranks.rank()], Variable()};
  }
};

}  // namespace

Attended ring_attend(Group& group, const Scores& scores, const at::Tensor& v) {
  const Chunks& chunks = scores.chunks;
  const at::Tensor nothing = at::zeros({}, v.options());
  const auto out =
      Ring::apply(scores.q, scores.k, scores.bias, chunks.P.defined() ? chunks.P : nothing, v,
                  chunks.P.defined() ? chunks.centre : nothing, table_of(chunks.list), chunks.c,
                  scores.causal, std::int64_t(reinterpret_cast<std::intptr_t>(&group)));
  return {out[0], out[1].squeeze(3)};
}

at::Tensor ring_products(Group& group, const Scores& scores, const at::Tensor& v,
                         const at::Tensor& lse) {
  const at::NoGradGuard without;
  const std::int64_t B = scores.q.size(0), H = scores.q.size(1), n = scores.q.size(2);
  const std::int64_t G = scores.k.size(1), D = scores.k.size(3), E = v.size(3);
  const at::Tensor all = at::zeros({B, H, n, D * E}, v.options());
  const at::Tensor row_lse = lse.unsqueeze(3);
  const std::vector<Tile> tiles = tiles_of(scores);
  constexpr std::int64_t keys_at_once = 64;
  go_round(group, {0, scores.k, v, scores.bias}, [&](const Block& block) {
    if (sees_none(scores, group, block)) return;
    for (const Tile& tile : tiles) {
      const Seen seen = seen_by(tile, scores, block);
      const at::Tensor a = weights_of(scores_of(tile, scores, seen, block.owner == group.rank()),
                                      rows_of(row_lse, tile, G));
      for (std::int64_t at = 0; at < a.size(3); at += keys_at_once) {
        const at::Tensor k = seen.k.slice(2, at, at + keys_at_once).unsqueeze(4);
        const at::Tensor products =
            (k * seen.v.slice(2, at, at + keys_at_once).unsqueeze(3)).flatten(3);  // (b,G,m,DE)
        const at::Tensor sum = at::matmul(a.slice(3, at, at + keys_at_once), products);
        place_of(all, tile).add_(sum.view_as(place_of(all, tile)));
      }
      group.alive();
    }
  });
  return all.view({B, H, n, D, E});
}

at::Tensor of_everyone(Group& group, const at::Tensor& x) {
  return Everyone::apply(x, std::int64_t(reinterpret_cast<std::intptr_t>(&group)));
}

}  // namespace foci::dist
