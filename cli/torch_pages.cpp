// SPDX-License-Identifier: Apache-2.0
// The pages of the verbs that need torch.
#include "cli/pages.hpp"

namespace foci::cli {

namespace {

constexpr std::string_view text_group = "The text";
constexpr std::string_view attack_group = "The attack";
constexpr std::string_view subject_group = "What is attacked";
constexpr std::string_view measured_group = "What is measured";

Flags attack_flags() {
  return {
      {"suite", "standard|plus|rand|adaptive", "standard", attack_group,
       "AutoAttack's, or adaptive: standard with the metric's gradient detached and through, and "
       "from a plain model"},
      {"attack", "KEY", "the suite's", attack_group,
       "these alone, with commas: noise, fgsm, pgd, mpgd, apgd-ce, apgd-dlr, apgd-t, fab, fab-t, "
       "square, spsa, cw"},
      {"norm", "linf|l2|l1", "linf", attack_group, "how a change is measured"},
      {"eps", "KEY", "8", attack_group,
       "the largest change, several with commas: under linf in 1/255, else a length in pixels "
       "that go from 0 to 1"},
      {"goal", "KEY", "any other class", attack_group,
       "the class it is to become: second, least or random, or its number; images of it already "
       "are not counted"},
      {"iterations", "COUNT", "0, each attack's own", attack_group, "steps with a gradient"},
      {"queries", "COUNT", "0, 5000", attack_group, "of square"},
      {"restarts", "COUNT", "0, each attack's own", attack_group, "of pgd, apgd, fab and square"},
      {"targets", "COUNT", "0, 9 or all others", attack_group,
       "classes that apgd-t and fab-t go for"},
      {"eot", "COUNT", "0, 1 and for rand 20", attack_group,
       "gradients of a random model that are averaged"},
      {"metric-grad", "detached|through", "the run's", attack_group,
       "whether gradients follow the metric's estimate"},
  };
}

Flags subject_flags() {
  return {
      {"data", "FILE", "the run's", subject_group, "another set"},
      {"split", "train|valid|test", "the run's", subject_group, "of the set"},
      {"count", "COUNT", "1000", subject_group, "images, evenly over the set; 0: all of them"},
      {"ema", "", "", subject_group, "the average of the weights"},
      {"plain", "FILE", "the same weights with metric dot", subject_group,
       "adaptive: a run whose gradients are tried too"},
      {"batch", "COUNT", "250", running_group, "images at once"},
      {"check", "COUNT", "100", running_group,
       "images that small experiments look for reasons to doubt with; 0: none, and only reasons "
       "that cost nothing are given"},
      {"sheet", "COUNT", "8", output_group, "images on the contact sheet"},
      {"out", "FILE", "RUN/attack", output_group,
       "the folder of the results; one that holds the same attack goes on"},
  };
}

}  // namespace

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
          "llama2.c's .bin or what foci convert made of it, a folder with GPT-2's "
          "model.safetensors, or a run of foci train text",
          {"Beside llama2.c's model its tokenizer is tokenizer.bin or tokN.bin, N the vocabulary; "
           "GPT-2's folder holds encoder.json and vocab.bpe, or vocab.json and merges.txt. --seed "
           "draws another text when the temperature is above 0."}};
}

VerbPage attack_page() {
  return {"attack",
          "Attacks a trained classifier of images and says how much of it withstands.",
          {{"AutoAttack at 8/255", "foci attack runs/a"},
           {"a curve, through the metric and around it",
            "foci attack runs/a --suite adaptive --eps 1,2,4,8 --plain runs/dot"},
           {"two attacks in l2, for a program",
            "foci attack runs/a --attack apgd-ce,square --norm l2 --eps 0.5 --json"}},
          together({attack_flags(), subject_flags(), common_flags()}),
          "RUN",
          "the folder of a run of foci train images",
          {"Pixels lie in [0,1] and the model normalises them itself. Attacks come one after "
           "another, each on the images that are still right; what a smaller eps fooled counts for "
           "a larger one. Every image is looked at again before it counts: range, length, and that "
           "it is taken for something else.",
           "In the folder: records go to the run's records.jsonl; curve.json and curve.svg, "
           "accuracy by eps; samples.json, what became of each image; adversarial.safetensors; "
           "sheet.png, clean, adversarial and 16 times the difference. journal/ holds what every "
           "batch found, so that a kill at any moment costs one batch.",
           "A number that deserves doubt carries a flag with what it means and what to do."}};
}

VerbPage measure_page() {
  return {
      "measure",
      "Says whether attention concentrates, whether tokens collapse, and whether the metric is "
      "well, layer by layer.",
      {{"a run, its tables", "foci measure runs/a"},
       {"two runs side by side, and pictures of what one query looks at",
        "foci measure runs/a --beside runs/dot --pictures out --sample 7 --query 24"},
       {"others' weights under another metric",
        "foci measure stories260K.bin --text story.txt --metric layer-change"},
       {"the tensors of one call, for a program",
        "foci measure layer5.safetensors --metric key-covariance --json"}},
      together({{{"samples", "COUNT", "1000", measured_group,
                  "images, sequences or windows of a text, evenly over the set; 0: all of them"},
                 {"closely", "COUNT", "16", measured_group,
                  "samples whose weights are formed too, for distance, top-k mass, head "
                  "distance and rollout, and whose spectra are taken; 0: none"},
                 {"top", "COUNT", "10", measured_group, "keys of the top-k mass"},
                 {"what", "KEY", "all", measured_group,
                  "tables and Records, with commas: attention, tokens, metric"},
                 {"per", "layer|head|query", "layer", measured_group,
                  "rows of the table of attention; query: numbers for each query in "
                  "measure.json"},
                 {"beside", "KEY", "", measured_group, "more runs, with commas"},
                 {"checkpoints", "", "", measured_group,
                  "every checkpoint that the run kept, and how the metric moves between them"},
                 {"data", "FILE", "the run's", measured_group, "another set"},
                 {"split", "train|valid|test", "the run's", measured_group, "of the set"},
                 {"ema", "", "", measured_group, "the average of the weights"},
                 {"text", "FILE", "", measured_group, "what a language model's file goes over"},
                 {"tokenizer", "FILE", "beside the model", measured_group,
                  "llama2.c's tokenizer.bin, or a folder with GPT-2's files"},
                 {"pictures", "FILE", "", output_group,
                  "a folder for pictures of one sample: heat-maps, a segmenter's classes, the "
                  "ellipse, maps of tokens, layers by heads, and pictures.json with their numbers"},
                 {"sample", "COUNT", "0", output_group, "in the pictures"},
                 {"in-layer", "COUNT", "the top one", output_group, "in the pictures, from 0"},
                 {"head", "COUNT", "the mean of all", output_group, "in the pictures, from 0"},
                 {"query", "COUNT", "the class token or the last", output_group,
                  "in the pictures: a token's number, the class token's being 0; in a segmenter's "
                  "mask transformer patches come first"},
                 {"batch", "COUNT", "50", running_group, "samples at once"},
                 {"out", "FILE", "RUN/measure", output_group,
                  "the folder of measure.json; without a run it is not written otherwise"}},
                metric_flags(),
                weighting_flags(),
                common_flags()}),
      "SUBJECT",
      "the folder of a run, llama2.c's .bin, GPT-2's folder, or a safetensors file with q, k, v",
      {"Every number is a mean over samples with its standard error and their count. Row "
       "statistics and the likeness of tokens are of all samples, the rest of the first "
       "--closely ones. docs/measure.md has every formula, and what is given where there is "
       "nothing to divide by.",
       "Mechanism flags are for files: a run has its own. Of a run the Records go to its "
       "records.jsonl."}};
}

}  // namespace foci::cli
