// SPDX-License-Identifier: Apache-2.0
// The pages of the verbs that need torch.
#include "cli/pages.hpp"

namespace foci::cli {

namespace {
constexpr std::string_view text_group = "The text";
}

VerbPage models_page() {
  return {"models",
          "Lists the models that have names, with their size and cost; one of them in full.",
          {{"all of them", "foci models"},
           {"one, for a program", "foci models deit_small_patch16_224 --json"}},
          common_flags(),
          "[NAME]",
          "a model; without it, the list",
          {"multiply-adds are those of one sample forward, attention's included. Any metric goes "
           "into any model."}};
}

VerbPage generate_page() {
  return {"generate",
          "Continues a text with a language model, printing it as it comes.",
          {{"the likeliest story", "foci generate stories260K.bin"},
           {"another one", "foci generate stories260K.bin --temperature 1 --top-p 0.9 --seed 3"},
           {"GPT-2 from Hugging Face's files", "foci generate gpt2 --prompt Once --tokens 40"},
           {"what was trained here", "foci generate runs/c --prompt Once --temperature 0.8"}},
          together({{{"prompt", "TEXT", "empty", text_group, "the text to go on from"},
                     {"tokens", "COUNT", "256", text_group,
                      "new tokens at most; never more than the model's context holds"},
                     {"temperature", "NUMBER", "0", text_group,
                      "scores are divided by it before one is drawn; 0 takes the likeliest"},
                     {"top-p", "NUMBER", "1", text_group,
                      "draw among the likeliest tokens that have this probability together"},
                     {"tokenizer", "FILE", "beside the model", text_group,
                      "llama2.c's tokenizer.bin, or a folder with GPT-2's files"}},
                    common_flags()}),
          "MODEL",
          "llama2.c's .bin, a folder with GPT-2's model.safetensors, or a run of foci train text",
          {"Beside a .bin its tokenizer is tokenizer.bin or tokN.bin, N the vocabulary; a folder "
           "holds encoder.json and vocab.bpe, or vocab.json and merges.txt. --seed draws another "
           "text when the temperature is above 0."}};
}

}  // namespace foci::cli
