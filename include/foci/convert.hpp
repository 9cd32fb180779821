// SPDX-License-Identifier: Apache-2.0
// Checkpoints of other programs as named tensors: torch's .pt and .pth, read without running any of
// the code they may hold, llama2.c's .bin, and safetensors. Writing them is write_safetensors()'s.
#pragma once

#include <foci/export.h>
#include <foci/tensor.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace foci::data {

/// Views stay valid as long as `memory` lives; they may be strided and share memory.
struct Checkpoint {
  std::string format;                   ///< "torch", "torch before 1.6", "llama2.c", "safetensors"
  std::string taken;                    ///< where in the file the weights lay; empty: at the top
  std::vector<std::string> left;        ///< what lay beside them
  std::map<std::string, View> tensors;  ///< scalars have shape (1)
  std::map<std::string, std::string> metadata;
  std::shared_ptr<const void> memory;
};

/// `take` names the dictionary of weights; without it that is the top one if it holds tensors, else
/// "model", "state_dict" and the like, else the only one there is. Throws FileError.
FOCI_API Checkpoint read_checkpoint(const std::string& path, const std::string& take = {});

/// Takes away "module.", "model." and "_orig_mod.", which wrappers put before every name. Returns
/// what was taken.
FOCI_API std::string strip_wrappers(Checkpoint& checkpoint);

/// Hugging Face's names of a ViT become timm's, its queries, keys and values one tensor. Throws
/// FileError for any other name.
FOCI_API void rename_hf_vit(Checkpoint& checkpoint);

/// Without the tensors whose names begin so; returns how many went.
FOCI_API std::int64_t drop(Checkpoint& checkpoint, const std::string& prefix);

}  // namespace foci::data
