// SPDX-License-Identifier: Apache-2.0
// foci generate: a language model with its tokenizer, and the text as it comes.
#include "cli/terminal.hpp"
#include "cli/torch/run.hpp"
#include "cli/torch/speaker.hpp"

#include <foci/error.hpp>
#include <foci/language.hpp>
#include <foci/run.hpp>

#include <torch/cuda.h>

#include <fmt/core.h>

#include <chrono>
#include <cstdio>

namespace foci::cli {
int run_torch(const Generate& verb) {
  train::use_threads(verb.common.threads);
  if (verb.cuda && !torch::cuda::is_available())
    throw Unsupported("torch finds no CUDA device here; the nearest is --device cpu");
  Speaker speaker = open_speaker({verb.model, verb.tokenizer, {}}, verb.common);
  if (verb.cuda) speaker.model->to(at::kCUDA);
  data::Tokens tokens = speaker.encode(verb.prompt);
  const data::Tokens prompt = tokens;
  std::size_t shown = 0;
  const auto show = [&] {
    if (verb.common.json) return;
    const std::string text = speaker.decode(tokens);
    std::fwrite(text.data() + shown, 1, text.size() - shown, stdout);
    std::fflush(stdout);
    shown = text.size();
  };
  show();
  const auto begin = std::chrono::steady_clock::now();
  const models::Sampling how{.tokens = verb.tokens,
                             .temperature = verb.temperature,
                             .top_p = verb.top_p,
                             .seed = verb.common.seed};
  const std::int64_t made = models::generate(speaker.model, prompt, how, [&](std::int32_t token) {
    if (speaker.ends(token)) return false;
    if (token >= speaker.pieces) return true;  // an embedding that no text has
    tokens.push_back(token);
    show();
    return true;
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (verb.common.json) {
    print_json({{"text", speaker.decode(tokens)},
                {"prompt_tokens", prompt.size()},
                {"tokens", made},
                {"seconds", seconds},
                {"tokens_per_second", double(made) / seconds},
                {"seed", verb.common.seed}});
    return 0;
  }
  fmt::print("\n");
  if (!verb.common.quiet)
    fmt::print(stderr, "{} tokens, {:.1f} a second\n", made, double(made) / seconds);
  return 0;
}

}  // namespace foci::cli
