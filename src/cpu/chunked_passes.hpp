// SPDX-License-Identifier: Apache-2.0
// The entry points of linear, decay and identity, and what their passes ask of one another.
#pragma once

#include "cpu/chunked.hpp"

namespace foci::cpu {

/// Whether a call goes chunk by chunk: linear; decay without content; identity (by length or not at
/// all) and decay with content under a metric whose scores are plain products.
bool chunked_serves(const Metric& metric, const Weighting& weighting);
std::size_t chunked_workspace(const Problem& p, int threads);
void chunked_forward(const Outputs& to, const Problem& p, std::span<std::byte> memory,
                     Executor* threads);
void chunked_backward(const Gradients& to, const Problem& p, std::span<std::byte> memory,
                      Executor* threads);

/// All but decay without content.
void chunk_forward(const Outputs& to, const Problem& p, std::span<std::byte> memory,
                   Executor* threads);
std::size_t chunk_backward_workspace(const Problem& p, int threads);
void chunk_backward(const Gradients& to, const Problem& p, std::span<std::byte> memory,
                    Executor* threads);

bool wants_tally(const Outputs& to);
/// One row's statistics; it sees n keys, the largest weight at the key that stands at largest_at.
void write_tally(const Outputs& to, const metric::Index& at, const Tally& of, std::int64_t n,
                 std::int64_t largest_at);
/// Statistics of rows whose queries are loaded and whose divisors are in room.by.
void tally_rows(ChunkWork& work, const Outputs& to, const RowBlock& rows, const float* peak);

// What surrounds the walk back.
/// Rows that see nothing and keys that are masked; clears dm.
void begin_gradients(ChunkWork& work, const Gradients& to);
/// A part's dm for head r, where rows share their m; else nullptr.
double* shared_dm(KeyHead& head, std::int64_t part, std::int64_t r);
/// dk, dv and dbias of a chunk; room.dk is that of phi(k).
void write_keys(ChunkWork& work, const Gradients& to, const Chunk& chunk);
/// dm, and through the estimate; `joins`: adds to what another sequence wrote.
void finish_metric(ChunkWork& work, const Gradients& to, bool joins);
/// dq, dk and dv where they were gathered.
void write_gathered(const ChunkWork& work, const Gradients& to);

}  // namespace foci::cpu
