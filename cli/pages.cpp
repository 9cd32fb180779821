// SPDX-License-Identifier: Apache-2.0
// The tables themselves: each verb with its purpose, its examples and its flags. The words a flag
// belongs to (--ridge to key-covariance) are not here: mechanism.cpp reads them off the structs.
#include "cli/pages.hpp"

namespace foci::cli {
namespace {

constexpr std::string_view metric_group = "The metric: how near a query and a key are";
constexpr std::string_view weighting_group = "The weighting: how scores become weights";
constexpr std::string_view beside_group = "Timed beside it";

}  // namespace

Flags metric_flags() {
  return {
      {"metric", "dot|layer-change|flat|jacobian|key-covariance|random|given", "dot", metric_group,
       "what a score is made of; `foci info` lists what goes with what"},
      {"form", "product|distance", "product", metric_group,
       "product: c sum m q k; distance: -c/2 sum m (q-k)^2"},
      {"normalize", "max|mean|none", "max", metric_group, "what a diagonal estimate is divided by"},
      {"reduce", "mean|median", "mean", metric_group, "how the change is gathered over tokens"},
      {"scope", "sequence|prefix", "prefix with --causal, else sequence", metric_group,
       "the tokens an estimate may see: all, or those up to the query"},
      {"allow-leak", "", "", metric_group,
       "let a causal call use a sequence-wide estimate, future tokens included"},
      {"ridge", "NUMBER", "1e-6", metric_group, "added to the diagonal of the keys' covariance"},
      {"prior", "NUMBER", "0, under prefix scope D", metric_group,
       "pseudo-observations of the identity in the covariance"},
      {"period", "COUNT", "64", metric_group, "prefix scope: keys between two covariances"},
      {"floor", "NUMBER", "0.1", metric_group, "the metric is drawn from [floor, 1] with --seed"},
      {"layer", "COUNT", "0", metric_group, "the layer the metric is drawn for"},
      {"given", "diagonal|full", "diagonal", metric_group,
       "what the tensor `metric` holds: m (.., D) or P (.., D, D)"},
      {"metric-grad", "detached|through", "through for key-covariance, else detached", metric_group,
       "whether the gradient follows the estimate"},
  };
}

Flags weighting_flags() {
  return {
      {"weighting", "softmax|relu2|identity|linear|decay", "softmax", weighting_group,
       "exp, relu squared, the score itself, feature maps, or age alone"},
      {"feature", "elu1|relu|exp", "elu1", weighting_group, "phi in phi(q).phi(k)"},
      {"rate", "NUMBER", "0.9", weighting_group, "weight kept per step back, in (0, 1]"},
      {"content", "", "", weighting_group, "multiply the decayed weight by the score (retention)"},
      {"rescale", "length|l1|l2|none", "length", weighting_group,
       "what a row of weights is divided by"},
      {"scale", "NUMBER|auto", "1/sqrt(D); 1 for linear and full metrics", weighting_group,
       "c in the score; auto matches dot's concentration (full metrics)"},
      {"causal", "", "", weighting_group, "query i stands at i + M - N and sees keys up to there"},
  };
}

namespace {

Flags running_flags(std::string_view dtype_standard) {
  return {
      {"backend", "ref|cpu|cuda", "the best in this build", running_group,
       "who computes; one asked for by name never falls back"},
      {"dtype", "f64|f32|bf16|f16", dtype_standard, running_group,
       "number type the tensors are converted to first"},
  };
}

Flags shape_flags(std::string_view standard) {
  return {
      {"shape", "SHAPE", standard, tensor_group, "B,H,N,D: batch, query heads, queries, head size"},
      {"kv-heads", "COUNT", "H", tensor_group, "key heads G; H must be a multiple of it"},
      {"keys", "COUNT", "N", tensor_group, "number of keys M"},
      {"values", "COUNT", "D", tensor_group, "value size E"},
  };
}

}  // namespace

Flags common_flags() {
  return {
      {"threads", "COUNT", "0, one per core", running_group,
       "threads; the result is the same to the bit"},
      {"device", "cpu|cuda", "cpu", running_group, "where to run"},
      {"seed", "COUNT", "0", running_group, "seed of made tensors and of --metric random"},
      {"json", "", "", output_group, "one JSON object on standard output and nothing else"},
      {"quiet", "", "", output_group, "no progress line and no words around the result"},
      {"help", "", "", output_group, "this page"},
  };
}

Flags together(std::initializer_list<Flags> parts) {
  Flags all;
  for (const Flags& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

namespace {

constexpr Flag from_metadata = {
    "flags-from-metadata", "", "", tensor_group,
    "take the flags from the file's __metadata__.options; flags given here win"};

VerbPage info_page() {
  return {"info",
          "Shows what this build can do: backends, devices, and which metric goes with which "
          "weighting.",
          {{"what is there", "foci info"},
           {"the same for a program", "foci info --json"},
           {"the table for a README", "foci info --markdown"}},
          together({{{"markdown", "", "", output_group, "print the support table as Markdown"}},
                    common_flags()}),
          {},
          {},
          {}};
}

VerbPage attend_page() {
  return {
      "attend",
      "Computes attention, and its gradients, from one safetensors file into another.",
      {{"elliptical attention; the file holds q, k, v and v_prev",
        "foci attend --in layer5.safetensors --out o.safetensors --metric layer-change"},
       {"a causal model with the keys' covariance as geometry",
        "foci attend --in in.safetensors --out out.safetensors --metric key-covariance --causal"},
       {"repeat a file that says in its metadata how it was made",
        "foci attend --in tests/golden/flat.safetensors --out out.safetensors "
        "--flags-from-metadata"}},
      together({{{"in", "FILE", "required", tensor_group,
                  "safetensors file with q, k, v [v_prev key_mask key_bias metric q_offsets "
                  "k_offsets do]"},
                 {"out", "FILE", "required", tensor_group,
                  "file to write, whole or not at all; the same as --in replaces the inputs"},
                 from_metadata},
                metric_flags(),
                weighting_flags(),
                running_flags("that of q"),
                common_flags()}),
      {},
      {},
      {"Reads q (B,H,N,D), k (B,G,M,D), v and v_prev (B,G,M,E), key_mask (B,M) true = keep, "
       "key_bias "
       "(B,H,M) or (B,G,M). `metric` is read only with --metric given, v_prev only by metrics that "
       "use it.",
       "Writes o, concentration, effective_keys, largest, largest_at; lse with softmax; entropy "
       "with "
       "softmax, linear and decay without content; metric unless dot; status with key-covariance. "
       "When "
       "the file holds `do`, the gradient of o, also dq, dk, dv [dv_prev dmetric dkey_bias]."}};
}

VerbPage check_page() {
  return {
      "check",
      "Runs the same tensors through a backend and through ref in f64, and says whether they "
      "agree.",
      {{"made tensors, float32", "foci check --metric layer-change --dtype f32"},
       {"a file with answers in it",
        "foci check --in tests/golden/jacobian.safetensors --flags-from-metadata --dtype f64"},
       {"an awkward shape: grouped heads, more keys than queries",
        "foci check --shape 2,6,33,16 --kv-heads 2 --keys 70 --metric key-covariance --causal"}},
      together(
          {{{"in", "FILE", "made tensors", tensor_group, "safetensors file as for `foci attend`"},
            from_metadata},
           shape_flags("2,4,37,16"),
           metric_flags(),
           weighting_flags(),
           running_flags("f32, or that of q in the file"),
           common_flags()}),
      {},
      {},
      {"An output passes when max|ours - ref64| <= 2 max|naive - ref64| + eps max|ref64|, naive "
       "being ref "
       "in the same number type. Gradients of ref in f64 are also held against central differences "
       "of "
       "the forward pass (with a made `do` when the file has none), and answers found in the file "
       "(o, dq, ...) against ref in f64, to 1e-10 "
       "of the "
       "largest value."}};
}

Flags bench_flags() {
  return {
      {"all", "", "", running_group,
       "every mechanism on the same made tensors, in one table: error, time, memory, "
       "concentration"},
      {"pass", "forward|backward|both", "forward", running_group, "what is timed"},
      {"stats", "", "", running_group, "compute the row statistics too"},
      {"key-bias", "", "", running_group, "add a made bias per key to the scores"},
      {"turns", "COUNT", "9", running_group,
       "turns that each contestant gets; the best of all its runs counts"},
      {"versus", "FLAGS", "", beside_group,
       "another of ours with these flags changed, as name=value with spaces between them: "
       "'metric=dot stats=false', 'threads=1', 'shape=1,8,4096,64'"},
      {"peers", "all|none|sgemm|naive|torch|torch-sdpa|torch-eager|LIST", "all", beside_group,
       "who else; several with commas; all takes those it finds"},
  };
}

VerbPage bench_page() {
  return {"bench",
          "Times one mechanism after checking its result, beside another of ours and beside peers "
          "in the same run.",
          {{"forward pass", "foci bench --shape 1,8,256,64 --metric layer-change"},
           {"every mechanism side by side, for a program",
            "foci bench --all --shape 1,2,128,32 --causal --json"},
           {"what the metric costs", "foci bench --metric layer-change --versus metric=dot"},
           {"how near to the machine's own matrix multiplication",
            "foci bench --shape 1,8,1024,64 --threads 1 --peers sgemm"}},
          together({shape_flags("1,4,256,64"), bench_flags(), metric_flags(), weighting_flags(),
                    running_flags("f32"), common_flags()}),
          {},
          {},
          {"seconds is the best of all runs, spread the median's distance from it; the contestants "
           "take turns, and a turn is one run or as many as fit into 20 ms. peak_bytes counts the "
           "tensors and the workspace of a call (it allocates nothing else), peak_rss_bytes the "
           "most memory the whole process had resident during the first run of ours. FLOPs: "
           "forward 2 B H N M (D + E), backward 2.5 times that, half of it when causal.",
           "Peers, all with as many threads as ours: sgemm is OpenBLAS multiplying two 2048 x 2048 "
           "matrices, of_sgemm our rate as a share of its; naive is softmax dot attention with the "
           "whole N x M matrix in memory; torch-sdpa and torch-eager are torch's fused attention "
           "and the same written out, run by the first python with torch ($FOCI_PYTHON, python3, "
           "/usr/bin/python3). The attention of peers is softmax dot attention, whatever the "
           "metric."}};
}

VerbPage data_page() {
  return {
      "data",
      "Lists, fetches, shows and makes data sets.",
      {{"what is known, and where it comes from", "foci data list"},
       {"Fashion-MNIST into data/fashion-mnist", "foci data get fashion-mnist"},
       {"classes, counts and sizes, and 24 samples as a picture",
        "foci data show data/fashion-mnist --sheet sheet.png"},
       {"images when nothing is there", "foci data make images --out data/made --seed 1"}},
      together({{{"out", "FILE", "data/NAME", tensor_group, "folder that get and make fill"},
                 {"split", "train|valid|test", "all there are", tensor_group, "what show shows"},
                 {"count", "COUNT", "24 shown; make knows", tensor_group,
                  "samples to show, or to make for training"},
                 {"sheet", "FILE", "", tensor_group, "PNG file that show writes samples into"},
                 {"check", "", "", tensor_group, "show reads every sample once"}},
                common_flags()}),
      "list|get|show|make",
      "what to do; list when it is left out",
      {"The second word is a set's name for get, what to make for make (images, streets with a "
       "mask each, listops, pathfinder), and a folder for show. get checks every file against its "
       "SHA-256 before it is put in place."},
      "[NAME|FOLDER]"};
}

VerbPage convert_page() {
  return {
      "convert",
      "Writes a checkpoint of torch, llama2.c or safetensors as safetensors; none of its code "
      "runs.",
      {{"a pretrained model's weights", "foci convert deit_tiny.pth deit_tiny.safetensors"},
       {"the averaged weights of a training, without the classifier",
        "foci convert last.pth.tar body.safetensors --take model_ema --drop head."}},
      {{"take", "KEY", "model, state_dict and the like", tensor_group,
        "the dictionary in the file that holds the weights"},
       {"drop", "KEY", "", tensor_group, "leave out tensors whose names begin so"},
       {"map", "hf-vit", "", tensor_group,
        "other names: those of Hugging Face's ViT become timm's, q, k and v one tensor"},
       {"keep-names", "", "", tensor_group,
        "keep module., model. and _orig_mod. where every name begins with it"},
       {"json", "", "", output_group, "one JSON object on standard output and nothing else"},
       {"quiet", "", "", output_group, "one line, without what was taken and left"},
       {"help", "", "", output_group, "this page"}},
      "IN",
      "the checkpoint: .pt or .pth of torch, .bin of llama2.c, or .safetensors",
      {"Of a .pt nothing but tensors, numbers, texts and their containers is read; a file that "
       "names anything else is refused with that name. Tensors keep their type, become contiguous, "
       "and a scalar gets the shape (1). See docs/convert.md."},
      "OUT"};
}

VerbPage serve_page() {
  return {"serve",
          "Shows the page of a comparison in the browser, live while it runs, with an explorer.",
          {{"on this machine, at an address that it prints", "foci serve compare"},
           {"where a bookmark finds it again", "foci serve compare --port 8642"},
           {"to others, who need the token it prints", "foci serve compare --host 0.0.0.0"}},
          {{"host", "KEY", "127.0.0.1", running_group,
            "address to listen on; any but this machine's own asks for a token"},
           {"port", "COUNT", "0, any that is free", running_group, "port to listen on"},
           {"token", "", "", running_group, "ask for a token on this machine too"},
           {"patience", "COUNT", "10", running_group,
            "seconds that a request may take to arrive, and its answer to leave"},
           {"json", "", "", output_group, "one JSON object with the address, then nothing more"},
           {"quiet", "", "", output_group, "the address and nothing else"},
           {"help", "", "", output_group, "this page"}},
          "FOLDER",
          "where foci compare writes results.json; it may still be empty",
          {"It serves the page, results.json, the figures it names, and the explorer, which asks "
           "this very library. It reads nothing else, follows no links and writes nothing. Ctrl-C "
           "or SIGTERM ends it."}};
}

VerbPage completion_page() {
  return {"completion",
          "Prints a script that teaches your shell to complete foci's verbs, flags and values.",
          {{"bash, in this shell", "source <(foci completion bash)"},
           {"zsh, for good", "foci completion zsh > ~/.zfunc/_foci"},
           {"fish, for good", "foci completion fish > ~/.config/fish/completions/foci.fish"}},
          {{"help", "", "", output_group, "this page"}},
          "bash|zsh|fish",
          "the shell",
          {}};
}

VerbPage help_page() {
  return {"help",
          "Shows the page of a verb.",
          {{"all verbs", "foci help"}, {"one of them", "foci help attend"}},
          {{"help", "", "", output_group, "this page"}},
          "VERB",
          "the verb; without it, the list of verbs",
          {}};
}

VerbPage manual_page() {
  return {"manual",
          "Prints the manual page in roff.",
          {{"read it", "foci manual > foci.1 && man ./foci.1"}},
          {{"help", "", "", output_group, "this page"}},
          {},
          {},
          {}};
}

}  // namespace

const std::vector<VerbPage>& verb_pages() {
  static const std::vector<VerbPage> pages = {
      info_page(),    attend_page(),  check_page(),   bench_page(),    compare_page(),
      theory_page(),  data_page(),    models_page(),  generate_page(), train_page(),
      eval_page(),    attack_page(),  measure_page(), report_page(),   reproduce_page(),
      convert_page(), corrupt_page(), launch_page(),  serve_page(),    completion_page(),
      help_page(),    manual_page()};
  return pages;
}

}  // namespace foci::cli
