// SPDX-License-Identifier: Apache-2.0
// What config.json of Hugging Face's GPT-2 tells beyond the tensors. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foci::models {

struct Gpt2Config {
  std::int64_t heads = 0;  ///< 0: it does not say
  double norm_eps = 1e-5;
  std::string activation = "gelu_new";  ///< or gelu_pytorch_tanh, which is the same, or gelu
};

/// `name` stands for the path in messages. Throws FileError.
Gpt2Config parse_gpt2_config(std::string_view text, const std::string& name);

}  // namespace foci::models
