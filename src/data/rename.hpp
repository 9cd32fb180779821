// SPDX-License-Identifier: Apache-2.0
// A file of llama2.c as a checkpoint with the names of foci's language model.
#pragma once

#include <foci/convert.hpp>

namespace foci::data {

/// embed, blocks.N.{norm1, attn.qkv, attn.proj, norm2, mlp.gate, mlp.fc1, mlp.fc2}, norm and, where
/// it is not the embedding, head; the metadata say the sizes. Throws FileError.
Checkpoint read_llama2c_checkpoint(const std::string& path);

}  // namespace foci::data
