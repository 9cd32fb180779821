// SPDX-License-Identifier: Apache-2.0
// The pages of training. The defaults of a run are the ones that stand here: run_words.cpp reads
// them.
#include "cli/corruption_words.hpp"
#include "cli/misuse.hpp"
#include "cli/pages.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace foci::cli {
namespace {

constexpr std::string_view data_group = "The data";
constexpr std::string_view model_group = "The model";
constexpr std::string_view change_group = "What happens to an image";
constexpr std::string_view optimizer_group = "The optimiser";
constexpr std::string_view run_group = "The run";

/// The mechanism of a model's layers. Left out are what a model has no tensor for, and --causal:
/// text always is, and elsewhere the class token stands first and would see nothing but itself.
Flags layer_flags() {
  static const std::set<std::string_view> without = {"given", "layer", "allow-leak", "causal"};
  Flags flags = together({metric_flags(), weighting_flags()});
  const std::string_view metric_group = flags[0].group;
  flags.erase(std::remove_if(flags.begin(), flags.end(),
                             [](const Flag& flag) { return without.count(flag.name) > 0; }),
              flags.end());
  for (Flag& flag : flags) {
    if (flag.name == "metric") {
      flag.values = "dot|layer-change|flat|jacobian|key-covariance|random|learned|learned-full";
    }
    if (flag.name == "scope") flag.values = "sequence|prefix|running";
  }
  const Flags more = {
      {"metric-layers", "LAYERS", "0:", metric_group,
       "layers that have the metric, first:last+1, counted from 0; the others have dot"},
      {"init", "identity|estimate|random", "identity", metric_group,
       "where a learned metric begins"},
      {"running-momentum", "NUMBER", "0.99", metric_group, "of --scope running"}};
  flags.insert(flags.begin() + 1, more.begin(), more.end());
  return flags;
}

Flags data_flags() {
  return {
      {"data", "FILE", "required", data_group,
       "a folder, for text a file too, or the name of a set in data/"},
      {"split", "train|valid|test", "test", data_group, "what the model is evaluated on"},
      {"tokenizer", "words|pairs|pieces|bytes", "words", data_group,
       "what a token is: a word of the training text, one of GPT-2's byte pairs, of llama2.c's "
       "pieces, a byte; of text with --weights: theirs"},
      {"pairs", "FILE", "", data_group,
       "the folder of --tokenizer pairs, with encoder.json and vocab.bpe"},
      {"pieces", "FILE", "", data_group,
       "the file of --tokenizer pieces, llama2.c's tokenizer.bin"},
  };
}

Flags model_flags() {
  return {
      {"model", "KEY", "the task's smallest", model_group, "one that `foci models` lists"},
      {"weights", "FILE", "", model_group,
       "begin with the weights of a plain model, whatever the metric: as timm has them; of text "
       "GPT-2's or llama2.c's, whose shape and tokenizer hold where no flag says otherwise"},
      {"image", "COUNT", "0", model_group,
       "pixels a side; 0: the model's, for vit_micro the data's"},
      {"patch", "COUNT", "0", model_group, "pixels a side of a patch; 0: the model's"},
      {"dim", "COUNT", "0", model_group, "size of a token; 0: the model's"},
      {"depth", "COUNT", "0", model_group, "layers; 0: the model's"},
      {"heads", "COUNT", "0", model_group, "heads a layer; 0: the model's"},
      {"mlp-ratio", "NUMBER", "0", model_group,
       "hidden size of the perceptron over dim; 0: the model's"},
      {"drop-path", "NUMBER", "0", model_group,
       "probability that the last layer is left out; it grows from 0 at the first"},
      {"dropout", "NUMBER", "0", model_group, "of the embedding and of what each branch adds"},
      {"head-dropout", "NUMBER", "0", model_group, "of what the head of a language model reads"},
      {"context", "COUNT", "0", model_group, "tokens of a window of text; 0: the model's"},
      {"length", "COUNT", "0", model_group,
       "tokens or steps of a sequence, what is longer is cut; 0: the data's and the model's"},
      {"positions", "learned|rotary", "learned", model_group, "how tokens know where they stand"},
      {"kv-heads", "COUNT", "0", model_group, "heads of keys and values; 0: as many as --heads"},
  };
}

Flags change_flags() {
  return {
      {"augment", "none|shift|deit", "shift", change_group,
       "shift moves and mirrors; deit crops, mirrors, RandAugment, erases"},
      {"shift", "COUNT", "2", change_group, "pixels an image is moved by at most"},
      {"flip", "NUMBER", "0.5", change_group, "probability of a mirror image"},
      {"area", "NUMBER", "0.08", change_group, "deit: the least share of an image in a crop"},
      {"magnitude", "NUMBER", "9", change_group, "deit: of RandAugment, 0 to 10; 0: without it"},
      {"jitter", "NUMBER", "0", change_group, "deit: of brightness, contrast and saturation"},
      {"erasing", "NUMBER", "0.25", change_group, "deit: probability of a box of noise"},
      {"mixup", "NUMBER", "0", change_group, "alpha of mixup; 0: without it"},
      {"cutmix", "NUMBER", "0", change_group, "alpha of cutmix; 0: without it"},
      {"label-smoothing", "NUMBER", "0.1", change_group, "share of a label that all classes get"},
      {"repeats", "COUNT", "1", change_group,
       "so often an image is in a batch, changed anew each time; an epoch takes as many fewer"},
      {"crop-share", "NUMBER", "1", change_group, "evaluated is the middle of an image, this much"},
      {"least-size", "NUMBER", "0.5", change_group, "segments: image and mask become so large ..."},
      {"most-size", "NUMBER", "2", change_group, "... up to so large before a window is cut"},
      {"shorter", "COUNT", "0", change_group,
       "segments: first the shorter side becomes so many pixels; 0: it stays"},
  };
}

Flags optimizer_flags() {
  return {
      {"optimizer", "adamw|sgd", "adamw", optimizer_group, "sgd has Nesterov's momentum"},
      {"learning-rate", "NUMBER", "0.001", optimizer_group, "after the warm-up"},
      {"last-rate", "NUMBER", "1e-5", optimizer_group, "where cosine and poly end"},
      {"warmup", "COUNT", "0", optimizer_group, "steps from --first-rate up to --learning-rate"},
      {"first-rate", "NUMBER", "1e-6", optimizer_group, "where the warm-up begins"},
      {"schedule", "cosine|poly|constant", "cosine", optimizer_group, "the rate's way down"},
      {"power", "NUMBER", "0.9", optimizer_group, "of --schedule poly"},
      {"weight-decay", "NUMBER", "0.05", optimizer_group,
       "of matrices; biases, norms, positions and metrics have none"},
      {"beta1", "NUMBER", "0.9", optimizer_group, "adamw"},
      {"beta2", "NUMBER", "0.999", optimizer_group, "adamw"},
      {"epsilon", "NUMBER", "1e-8", optimizer_group, "adamw"},
      {"momentum", "NUMBER", "0.9", optimizer_group, "sgd"},
      {"clip", "NUMBER", "0", optimizer_group, "length that gradients are cut to; 0: not"},
      {"ema", "NUMBER", "0", optimizer_group, "decay of the weights' average; 0: none"},
  };
}

Flags run_flags() {
  return {
      {"run", "FILE", "required", run_group, "the folder that the run is written into"},
      {"preset", "FILE", "", run_group,
       "a JSON file of flags, or the name of one in presets/; flags given here win"},
      {"resume", "", "", run_group,
       "go on from the last checkpoint, with the run's own flags; from the start where there is "
       "none"},
      {"epochs", "COUNT", "10", run_group, "times that the training set is gone through"},
      {"steps", "COUNT", "0", run_group, "steps in all, in place of epochs"},
      {"batch", "COUNT", "128 images, 32 windows of text or sequences, 8 of segments", run_group,
       "samples a batch"},
      {"accumulate", "COUNT", "1", run_group, "batches a step"},
      {"precision", "f32|bf16", "f32", run_group, "of products and attention; weights stay f32"},
      {"evaluate-every", "COUNT", "0", run_group, "steps; 0: at the end of every epoch"},
      {"save-every", "COUNT", "0", run_group, "steps; 0: at the end of every epoch"},
      {"stride", "COUNT", "0", run_group,
       "evaluated windows begin every so many tokens or pixels; 0: side by side, half a window"},
      {"sample", "COUNT", "64", run_group,
       "tokens of text that the model makes where it is evaluated; 0: none"},
      {"judge-count", "COUNT", "0", run_group,
       "images that the run is evaluated on, evenly over the split; 0: all of them"},
      {"keep", "COUNT", "2", run_group, "checkpoints that stay"},
      {"workers", "COUNT", "1", run_group, "threads that make batches ahead"},
      {"patience", "NUMBER", "40", run_group,
       "of several processes: seconds without progress after which one is given up; ten times that "
       "before the first step"},
  };
}

using Tasks = std::set<std::string_view>;

/// Where numbers may lie: between two, each with it or without; nothing above is infinity.
struct Range {
  char from = '[';
  double least = 0, most = 1;
  char to = ']';

  bool holds(double x) const {
    return (from == '[' ? x >= least : x > least) && (to == ']' ? x <= most : x < most);
  }
  std::string text() const {
    if (std::isfinite(most)) return fmt::format("lie in {}{:g}, {:g}{}", from, least, most, to);
    return from == '[' ? fmt::format("be {:g} or more", least)
                       : fmt::format("be above {:g}", least);
  }
};

struct Ranged {
  Range range;
  std::vector<std::string_view> flags;
};

const std::vector<Ranged>& ranges() {
  constexpr double endless = std::numeric_limits<double>::infinity();
  static const std::vector<Ranged> all = {
      {{'[', 0, 1, ')'},
       {"ema", "beta1", "beta2", "momentum", "running-momentum", "label-smoothing", "drop-path",
        "dropout", "head-dropout"}},
      {{'[', 0, 1, ']'}, {"flip", "erasing"}},
      {{'(', 0, 1, ']'}, {"area", "crop-share"}},
      {{'[', 0, 10, ']'}, {"magnitude"}},
      {{'[', 0, endless, ')'},
       {"learning-rate", "last-rate", "first-rate", "weight-decay", "power", "clip", "mixup",
        "cutmix", "jitter", "mlp-ratio"}},
      {{'[', 1, endless, ')'}, {"repeats"}},
      {{'(', 0, endless, ')'}, {"epsilon", "least-size", "most-size"}},
  };
  return all;
}

/// The tasks of flags that not all have.
const std::map<std::string_view, Tasks>& owners() {
  static const std::map<std::string_view, Tasks> all = [] {
    std::map<std::string_view, Tasks> tasks;
    for (const Flag& flag : change_flags()) tasks[flag.name] = {"images"};
    for (const char* flag : {"least-size", "most-size", "shorter"}) tasks[flag] = {"segments"};
    for (const char* flag : {"image", "patch", "flip", "workers", "judge-count"})
      tasks[flag] = {"images", "segments"};
    for (const char* flag : {"pairs", "pieces", "head-dropout", "context", "positions", "kv-heads",
                             "sample", "rate", "content"})
      tasks[flag] = {"text"};
    for (const char* flag : {"tokenizer", "dropout"}) tasks[flag] = {"text", "sequences"};
    tasks["length"] = {"sequences"};
    tasks["stride"] = {"text", "segments"};
    tasks["drop-path"] = {"images", "sequences", "segments"};
    return tasks;
  }();
  return all;
}

}  // namespace

std::vector<std::string> tasks_with(std::string_view flag) {
  const auto found = owners().find(flag);
  if (found == owners().end()) return choices(find_verb("train")->word);
  return {found->second.begin(), found->second.end()};
}

bool belongs(std::string_view flag, std::string_view task) {
  const auto found = owners().find(flag);
  return found == owners().end() || found->second.count(task) > 0;
}

std::string_view standard_of(const Flag& flag, std::string_view task) {
  static const std::map<std::pair<std::string_view, std::string_view>, std::string_view> own = {
      {{"images", "model"}, "vit_micro"},
      {{"images", "batch"}, "128"},
      {{"text", "model"}, "language_micro"},
      {{"text", "batch"}, "32"},
      {{"sequences", "model"}, ""},
      {{"sequences", "batch"}, "32"},
      {{"segments", "model"}, "segmenter_micro"},
      {{"segments", "batch"}, "8"},
  };
  const auto found = own.find({task, flag.name});
  return found == own.end() ? flag.standard : found->second;
}

void check_range(std::string_view flag, const std::string& text) {
  for (const auto& [range, flags] : ranges()) {
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) continue;
    if (!range.holds(to_number(text)))
      throw Misuse(fmt::format("--{} {}: it must {}", flag, shown(text), range.text()));
  }
}

VerbPage train_page() {
  return {
      "train",
      "Trains a model, of any metric, so that a kill at any moment loses nothing that was saved.",
      {{"Fashion-MNIST with the preset's numbers, elliptical from the second layer on",
        "foci train images --preset fashion-mnist --run runs/a --metric layer-change "
        "--metric-layers 1:"},
       {"go on where it was stopped or killed", "foci train images --run runs/a --resume"},
       {"a language model over the words of WikiText-2",
        "foci train text --preset wikitext-2 --run runs/c --metric layer-change"},
       {"the class of a time series",
        "foci train sequences --preset uea --data data/uea/BasicMotions --run runs/d"}},
      together({data_flags(), run_flags(), model_flags(), layer_flags(), optimizer_flags(),
                change_flags(), common_flags()}),
      "images|text|sequences|segments",
      "what is learned: classes of images, the next token of a text, classes of sequences, classes "
      "of pixels",
      {"The run's folder holds config.json (every flag as it was resolved, and what the data is), "
       "env.json, metrics.jsonl (a line a step), events.out.tfevents.foci for TensorBoard, and "
       "checkpoints/step-N with model, ema and training as safetensors, the last --keep of them. "
       "--resume reads config.json; of the flags beside it only --threads, --workers, --device, "
       "--keep and --save-every may say something else.",
       "SIGTERM and Ctrl-C save and end with status 0. After any end --resume continues the curve "
       "of losses bit for bit, on a processor and with as many threads. A loss that is not finite "
       "ends the run with status 1, names the step and the first layer that is not, and leaves "
       "the last checkpoint; a corrupt file ends it likewise, and the last whole step is saved."}};
}

VerbPage eval_page() {
  return {
      "eval",
      "Evaluates the last checkpoint of a run on a whole split.",
      {{"top-1 and top-5, or the scores of the task", "foci eval runs/a"},
       {"the average of the weights, for a program", "foci eval runs/a --ema --json"}},
      together({{{"data", "FILE", "the run's", data_group, "another set"},
                 {"split", "train|valid|test", "the run's", data_group, "of the set"},
                 {"ema", "", "", data_group, "the average of the weights"},
                 {"count", "COUNT", "0", data_group,
                  "images alone: so many, evenly over the split; 0: all of them"},
                 {"right", "FILE", "", data_group,
                  "images alone: a JSON file of which were classified correctly, a digit each"},
                 {"stride", "COUNT", "the run's", run_group,
                  "evaluated windows begin every so many tokens or pixels"},
                 {"batch", "COUNT", "the run's", run_group, "images a batch"},
                 {"workers", "COUNT", "1", run_group, "threads that make batches ahead"},
                 {"corrupt", "KEY", "", harm_group,
                  "evaluate on corrupted data, names with commas: of images those of foci corrupt, "
                  "of text swap, synonyms and bytes, of time series noise, spikes and missing"}},
                harm_flags(),
                {{"baseline", "FILE", "", harm_group,
                  "run whose errors under the same corruptions are the unit"},
                 {"rate", "NUMBER", "0.015", harm_group,
                  "share of a text's words, or bytes, that change"},
                 {"synonyms", "FILE", "", harm_group, "a word and its synonym a line"}},
                common_flags()}),
      "RUN",
      "the folder of a run",
      {"With --corrupt every score is a Record: error_NAME_SEVERITY and, where all five were "
       "taken, error_NAME; with all 15 corruptions of images mce_alexnet, and with --baseline "
       "mce_baseline and relative_mce_baseline, in percent. Of text perplexity_NAME has changed "
       "tokens among its targets, perplexity_NAME_untouched has not; changes-NAME.tsv in the "
       "run's folder lists the changes. --seed draws other noise."}};
}

}  // namespace foci::cli
