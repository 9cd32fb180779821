// SPDX-License-Identifier: Apache-2.0
// Everything a user can get wrong on the command line or in a file, with the words the answer must
// hold.
#pragma once

#include "cli/command.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace cli_test {

/// Where the result would go: a path of the test's own, or one among the words.
enum class Out { usual, given };

struct Bad {
  std::string name;
  Words words;
  int status = 2;
  std::string says;
  Out out = Out::usual;
};

inline std::string name_of_case(const testing::TestParamInfo<Bad>& info) { return info.param.name; }
inline void PrintTo(const Bad& bad, std::ostream* to) { *to << bad.name; }

inline Words attend_plain(const Words& more) {
  static const std::string plain = save("plain.safetensors", plain_tensors());
  return Words{"attend", "--in", plain} + more;
}

inline Words attend_with(const std::string& name, const std::string& key, foci::Tensor tensor,
                         const Words& more = {}) {
  Tensors tensors = plain_tensors();
  if (tensor) {
    tensors[key] = std::move(tensor);
  } else {
    tensors.erase(key);
  }
  return Words{"attend", "--in", save(name + ".safetensors", tensors)} + more;
}

/// Words that are no verb, no flag, no value.
inline std::vector<Bad> bad_words() {
  return {
      {"no_verb", {}, 2, "no verb given"},
      {"unknown_verb", {"atend"}, 2, "no verb 'atend'; did you mean attend?"},
      {"unknown_verb_for_help", {"help", "bnech"}, 2, "did you mean bench?"},
      {"flag_before_verb", {"--json", "info"}, 2, "--json does not follow a verb"},
      {"unknown_flag", attend_plain({"--metrc", "dot"}), 2,
       "has no flag --metrc; did you mean --metric?"},
      {"unknown_flag_with_value", attend_plain({"--weigting=dot"}), 2, "did you mean --weighting?"},
      {"unknown_metric", attend_plain({"--metric", "layer-chang"}), 2,
       "did you mean layer-change?"},
      {"far_metric", attend_plain({"--metric", "euclid"}), 2, "--metric does not know 'euclid'"},
      {"unknown_weighting", attend_plain({"--weighting", "sofmax"}), 2, "did you mean softmax?"},
      {"unknown_dtype", attend_plain({"--dtype", "fp16"}), 2,
       "--dtype does not know 'fp16'; did you mean f16?"},
      {"unknown_device", attend_plain({"--device", "cude"}), 2, "did you mean cuda?"},
      {"stray_word", attend_plain({"more"}), 2, "attend does not know what to do with 'more'"},
      {"line_break_in_a_word", attend_plain({"--metric", "a\nb"}), 2, "'a\\x0ab'"},
      {"no_value_at_the_end", {"attend", "--in"}, 2, "--in needs a value after it", Out::given},
      {"flag_as_value",
       {"attend", "--in", "--out", "x"},
       2,
       "--in needs a value; got the flag --out",
       Out::given},
      {"switch_with_value", attend_plain({"--causal=maybe"}), 2,
       "--causal is a switch and takes no value"},
      {"empty_file_name", {"attend", "--in", ""}, 2, "--in is empty"},
      {"no_in", {"attend"}, 2, "attend needs --in FILE"},
      {"no_out", attend_plain({}), 2, "attend needs --out FILE", Out::given},
      {"no_shell", {"completion"}, 2, "completion needs a shell"},
      {"unknown_shell", {"completion", "zhs"}, 2, "did you mean zsh?"},
      {"window", attend_plain({"--window", "4"}), 2, "foci has no sliding window"},
      {"sliding_window", attend_plain({"--sliding-window=4"}), 2, "foci has no sliding window"},
      {"alibi", attend_plain({"--alibi"}), 2, "foci has no ALiBi"},
      {"softcap", attend_plain({"--softcap", "30"}), 2, "foci has no soft cap"},
      {"sinks", attend_plain({"--sinks"}), 2, "foci has no attention sinks"},
      {"dropout", attend_plain({"--dropout", "0.1"}), 2, "foci has no dropout"},
  };
}

/// Options out of range.
inline std::vector<Bad> bad_options() {
  const Words covariance = {"--metric", "key-covariance"};
  const auto attend = [](const Words& words) { return attend_plain(words); };
  return {
      {"not_a_number", attend(covariance + Words{"--ridge", "tiny"}), 2,
       "--ridge 'tiny' is not a finite number"},
      {"not_finite", attend(covariance + Words{"--ridge", "inf"}), 2,
       "--ridge 'inf' is not a finite number"},
      {"not_a_scale", attend({"--scale", "large"}), 2, "is not a finite number and not auto"},
      {"not_a_count", attend({"--seed", "-3"}), 2, "--seed '-3' is not a whole number"},
      {"too_many_threads", attend({"--threads", "100000"}), 2,
       "--threads 100000 is more than 4096"},
      {"ridge_below_zero", attend(covariance + Words{"--ridge", "-1"}), 2,
       "ridge is -1; it must be"},
      {"prior_below_zero", attend(covariance + Words{"--prior", "-1"}), 2,
       "prior is -1; it must be"},
      {"period_zero", attend(covariance + Words{"--causal", "--period", "0"}), 2,
       "period is 0; it must be"},
      {"period_without_prefix", attend(covariance + Words{"--period", "8"}), 2,
       "--period belongs to --scope prefix"},
      {"floor_above_one", attend({"--metric", "random", "--floor", "2"}), 2,
       "floor is 2; it must lie in [0, 1]"},
      {"rate_zero", attend({"--weighting", "decay", "--causal", "--rate", "0"}), 2,
       "rate is 0; it must lie in (0, 1]"},
      {"decay_not_causal", attend({"--weighting", "decay"}), 2, "causal only"},
      {"scale_zero", attend({"--scale", "0"}), 2, "scale is 0; it must be"},
  };
}

/// Options that do not go together, or with this build.
inline std::vector<Bad> bad_pairs() {
  const Words covariance = {"--metric", "key-covariance"};
  const auto attend = [](const Words& words) { return attend_plain(words); };
  return {
      {"auto_for_dot", attend({"--scale", "auto"}), 2, "scale auto belongs to a full metric"},
      {"auto_causal", attend(covariance + Words{"--scale", "auto", "--causal"}), 2,
       "would leak the future"},
      {"auto_for_identity",
       attend(covariance + Words{"--scale", "auto", "--weighting", "identity"}), 2,
       "scale auto matches softmax"},
      {"full_with_relu2", attend(covariance + Words{"--weighting", "relu2"}), 2,
       "does not go with weighting relu2"},
      {"full_with_linear", attend(covariance + Words{"--weighting", "linear"}), 2,
       "does not go with weighting linear"},
      {"distance_with_relu2", attend({"--form", "distance", "--weighting", "relu2"}), 2,
       "form distance does not go"},
      {"sequence_and_causal",
       attend({"--metric", "layer-change", "--scope", "sequence", "--causal"}), 2,
       "would let the estimate see future tokens"},
      {"median_and_prefix", attend({"--metric", "layer-change", "--reduce", "median", "--causal"}),
       2, "reduce median cannot run along a prefix"},
      {"ridge_with_dot", attend({"--ridge", "1"}), 2,
       "--ridge belongs to --metric key-covariance; the metric is dot"},
      {"rate_with_softmax", attend({"--rate", "0.5"}), 2,
       "--rate belongs to --weighting decay; the weighting is softmax"},
      {"form_with_covariance", attend(covariance + Words{"--form", "distance"}), 2,
       "--form belongs to --metric dot"},
      {"form_with_full", attend({"--metric", "given", "--given", "full", "--form", "distance"}), 2,
       "--form belongs to diagonal metrics"},
      {"cuda_device", attend({"--device", "cuda"}), 2, "--device cuda is not in this build"},
      {"cpu_backend", attend({"--backend", "cpu", "--dtype", "f64"}), 2,
       "backend cpu computes in f32 and takes no f64"},
      {"cuda_backend", {"check", "--backend", "cuda"}, 2, "backend cuda is not in this build"},
  };
}

/// Shapes of made tensors.
inline std::vector<Bad> bad_shapes() {
  return {
      {"three_sizes", {"bench", "--shape", "1,2,3"}, 2, "--shape 1,2,3 has 3 sizes"},
      {"head_size_zero",
       {"bench", "--shape", "1,2,3,0"},
       2,
       "D is '0'; it needs a whole number, 1 or more"},
      {"heads_do_not_divide",
       {"bench", "--shape", "1,4,8,8", "--kv-heads", "3"},
       2,
       "does not divide the 4 query heads"},
      {"no_keys", {"check", "--keys", "0"}, 2, "--keys 0 is not a size"},
      {"beyond_memory", {"bench", "--shape", "100000,100,100000,1000"}, 2, "GiB; this machine has"},
      {"shape_and_file",
       {"check", "--in", "x", "--shape", "1,1,2,2"},
       2,
       "--shape is for made tensors"},
      {"metadata_of_nothing",
       {"check", "--flags-from-metadata"},
       2,
       "--flags-from-metadata needs --in FILE"},
  };
}

/// Tensors that do not fit together.
inline std::vector<Bad> bad_tensors() {
  foci::Tensor short_mask(foci::DType::boolean, {1, 8});
  foci::Tensor offsets(foci::DType::i64, {2});
  offsets.data<std::int64_t>()[1] = 9;
  foci::Tensor minus = numbers({1, 1, 1, 4});
  minus.data<float>()[2] = -1;
  foci::Tensor lopsided = numbers({1, 1, 4, 4});
  const Words given = {"--metric", "given"};
  return {
      {"other_head_size", attend_with("bad-k", "k", numbers({1, 1, 9, 5})), 2,
       "k has shape (1, 1, 9, 5); it must be"},
      {"other_key_count", attend_with("bad-v", "v", numbers({1, 1, 8, 4})), 2,
       "v has shape (1, 1, 8, 4); it must be"},
      {"flat_q", attend_with("bad-q", "q", numbers({9, 4})), 2,
       "q has shape (9, 4); it must be (B,H,N,D)"},
      {"head_size_is_zero", attend_with("zero-d", "q", numbers({1, 2, 9, 0})), 2,
       "the head size D must be at least 1"},
      {"heads", attend_with("bad-heads", "k", numbers({1, 3, 9, 4})), 2,
       "q has 2 heads and k has 3"},
      {"gradient_of_o", attend_with("bad-do", "do", numbers({1, 2, 9, 5})), 2,
       "do has shape (1, 2, 9, 5); it must be (B,H,N,E) = (1, 2, 9, 4)"},
      {"integer_gradient",
       attend_with("int-do", "do", foci::Tensor(foci::DType::i32, {1, 2, 9, 4})), 2,
       "do has type i32"},
      {"integers", attend_with("int-q", "q", foci::Tensor(foci::DType::i32, {1, 2, 9, 4})), 2,
       "q has type i32"},
      {"mask_of_the_wrong_length", attend_with("bad-mask", "key_mask", std::move(short_mask)), 2,
       "key_mask has shape (1, 8); it must be"},
      {"mask_of_the_wrong_type", attend_with("float-mask", "key_mask", numbers({1, 9})), 2,
       "it must be boolean"},
      {"bias", attend_with("bad-bias", "key_bias", numbers({1, 2, 8})), 2,
       "key_bias has shape (1, 2, 8)"},
      {"bias_with_linear",
       attend_with("linear-bias", "key_bias", numbers({1, 2, 9}), {"--weighting", "linear"}), 2,
       "has no scores to add a key_bias to"},
      {"no_v_prev", attend_with("no-prev", "v_prev", {}, {"--metric", "layer-change"}), 2,
       "v_prev is missing"},
      {"wide_values", attend_with("wide", "v", numbers({1, 1, 9, 6}), {"--metric", "layer-change"}),
       2, "needs E = D"},
      {"no_given_metric", attend_plain(given), 2, "metric given needs the tensor `metric`"},
      {"negative_metric", attend_with("minus", "metric", std::move(minus), given), 2,
       "must be finite and >= 0"},
      {"metric_shape", attend_with("m-shape", "metric", numbers({1, 1, 2, 4}), given), 2,
       "a given diagonal metric is (1|B, G|H, 1|N, D)"},
      {"lopsided_metric",
       attend_with("lopsided", "metric", std::move(lopsided), given + Words{"--given", "full"}), 2,
       "must be finite and symmetric"},
      {"one_offset", attend_with("one-offset", "q_offsets", std::move(offsets)), 2,
       "need both q_offsets and k_offsets"},
  };
}

inline std::string header(const std::string& json, std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json;
}

inline Words attend_bytes(const std::string& name, const std::string& bytes) {
  const std::string path = folder().file(name);
  write(path, bytes);
  return {"attend", "--in", path};
}

inline Words with_metadata(const std::string& name,
                           const std::map<std::string, std::string>& metadata) {
  return {"attend", "--in", save(name, plain_tensors(), metadata), "--flags-from-metadata"};
}

/// Files that are not there, not what they claim to be, or cannot be written.
inline std::vector<Bad> bad_files() {
  const std::string whole = read(save("whole.safetensors", plain_tensors()));
  const std::string outside =
      R"({"q":{"dtype":"F32","shape":[1,1,1,1],"data_offsets":[0,4000000000]}})";
  const auto out = [](const std::string& path) { return attend_plain({"--out", path}); };
  return {
      {"not_there", {"attend", "--in", folder().file("nowhere")}, 1, "cannot be opened"},
      {"a_folder", {"attend", "--in", "/"}, 1, "is a directory"},
      {"empty", attend_bytes("empty", ""), 1, "is empty"},
      {"truncated", attend_bytes("truncated", whole.substr(0, whole.size() - 5)), 1, "truncated"},
      {"only_a_header", attend_bytes("header", whole.substr(0, 40)), 1, "header"},
      {"a_header_of_petabytes", attend_bytes("petabytes", header("{}", 1ull << 52)), 1,
       "at most 100000000"},
      {"not_json", attend_bytes("not-json", header("nonsense", 8)), 1, "not-json"},
      {"data_outside", attend_bytes("outside", header(outside, outside.size())), 1, "outside"},
      {"no_q",
       {"attend", "--in", save("no-q.safetensors", {})},
       1,
       "has no tensor q; it needs q, k and v"},
      {"no_metadata", with_metadata("no-meta", {}), 1, "has no __metadata__.options"},
      {"metadata_is_no_json", with_metadata("meta-text", {{"options", "dot"}}), 1,
       "is not a JSON object"},
      {"metadata_with_a_stranger", with_metadata("meta-odd", {{"options", R"({"colour":1})"}}), 1,
       "has 'colour', which is no flag"},
      {"metadata_with_a_bad_value",
       with_metadata("meta-bad", {{"options", R"({"metric":"dott"})"}}), 1,
       "--metric does not know 'dott'"},
      {"folder_missing", out("/no/such/folder/out.safetensors"), 1,
       "there is no folder /no/such/folder", Out::given},
      {"out_is_a_folder", out("/tmp"), 1, "it is a directory", Out::given},
      {"out_is_a_device", out("/dev/null"), 1, "it is not a plain file", Out::given},
      {"out_refuses", out("/proc/out.safetensors"), 1, "/proc/out.safetensors: cannot be written",
       Out::given},
  };
}

}  // namespace cli_test
