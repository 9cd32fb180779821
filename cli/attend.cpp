// SPDX-License-Identifier: Apache-2.0
// foci attend: tensors from one safetensors file, attention and its gradients into another.
#include "cli/metadata.hpp"
#include "cli/remarks.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"
#include "cli/write.hpp"

#include <foci/attention.hpp>
#include <foci/executor.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <chrono>
#include <cmath>

namespace foci::cli {
namespace {

struct Done {
  Sizes sizes;
  Options how;
  DType dtype = DType::f32;
  int threads = 1;
  double seconds = 0;
  std::map<std::string, Tensor> tensors;
};

/// Over the rows that see a key and are finite, NaN when there are none.
double mean_of(const Done& done, const char* name) {
  const auto values = done.tensors.at(name).values(), seen = done.tensors.at("largest_at").values();
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || seen[i] < 0) continue;
    sum += values[i];
    ++count;
  }
  return count == 0 ? std::nan("") : sum / double(count);
}

void on_progress(void* progress, std::int64_t done, std::int64_t count) {
  static_cast<Progress*>(progress)->at(done, count);
}

void compute(Done& done, const Problem& problem, const Common& common) {
  Executor threads(common.threads);
  Progress progress("attend", "heads",
                    common.json || common.quiet ? Show::nothing : Show::progress);
  threads.on_progress(on_progress, &progress);
  const auto begin = std::chrono::steady_clock::now();
  done.tensors = answers(problem, done.how, threads);
  done.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  done.threads = threads.threads();
  done.sizes = problem.sizes();
}

/// Tensors under names that others use for ours: they are not read, and that should not go unseen.
void remark_on_names(Remarks& remarks, const Safetensors& file) {
  static const std::map<std::string, std::string> ours = {{"mask", "key_mask"},
                                                          {"attention_mask", "key_mask"},
                                                          {"attn_mask", "key_mask"},
                                                          {"bias", "key_bias"},
                                                          {"attention_bias", "key_bias"},
                                                          {"attn_bias", "key_bias"},
                                                          {"v_last", "v_prev"},
                                                          {"prev_v", "v_prev"},
                                                          {"grad", "do"},
                                                          {"key_padding_mask", "key_mask"}};
  for (const auto& [theirs, name] : ours) {
    if (!file.contains(theirs) || file.contains(name)) continue;
    remarks.add({"unread-tensor", fmt::format("the file holds `{}`, which is not read", theirs),
                 fmt::format("call it `{}` if that is what it is", name)});
  }
}

Json options_json(const Done& done) {
  Json options = resolved(done.how, done.sizes.D);
  options["backend"] = backend_name(done.how, done.dtype);
  options["dtype"] = std::string(name_of(done.dtype));
  return options;
}

Json tensors_json(const Done& done) {
  Json shapes;
  for (const auto& [name, tensor] : done.tensors) {
    const auto sizes = tensor.view().sizes();
    shapes[name] = std::vector<std::int64_t>(sizes.begin(), sizes.end());
  }
  return shapes;
}

void print_result(const Attend& verb, const Done& done, const Remarks& remarks) {
  const Sizes& s = done.sizes;
  if (verb.common.json) {
    print_json({{"in", verb.in},
                {"out", verb.out},
                {"shape", {s.B, s.H, s.N, s.D}},
                {"kv_heads", s.G},
                {"keys", s.M},
                {"values", s.E},
                {"options", options_json(done)},
                {"threads", done.threads},
                {"seconds", done.seconds},
                {"concentration", mean_of(done, "concentration")},
                {"effective_keys", mean_of(done, "effective_keys")},
                {"tensors", tensors_json(done)},
                {"flags", remarks.json()}});
    return;
  }
  remarks.print();
  if (verb.common.quiet) return;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : done.tensors) names.push_back(name);
  fmt::print("{} {}\n", painted("mechanism", Paint::bold), described(done.how, s.D));
  fmt::print("{} {} batch, {} heads on {}, {} queries, {} keys, head size {}, value size {}\n",
             painted("shape    ", Paint::bold), s.B, s.H, s.G, s.N, s.M, s.D, s.E);
  fmt::print(
      "{} concentration {:.4f}, effective keys {:.2f} of {} (means over rows that see a key)\n",
      painted("rows     ", Paint::bold), mean_of(done, "concentration"),
      mean_of(done, "effective_keys"), s.M);
  fmt::print("{} {} on {} {}, {} thread{}\n", painted("time     ", Paint::bold),
             seconds_text(done.seconds), backend_name(done.how, done.dtype), name_of(done.dtype),
             done.threads, done.threads == 1 ? "" : "s");
  fmt::print("{} {} ({})\n", painted("wrote    ", Paint::bold), shown(verb.out), listed(names));
}

}  // namespace

int run(const Attend& verb) {
  Remarks remarks;
  check_writable(verb.out);
  Done done;
  {
    const Safetensors file(verb.in);
    const Mechanism mechanism = completed(verb.mechanism, file, verb.in);
    remark_on_names(remarks, file);
    done.how = mechanism.how;
    done.dtype = mechanism.dtype.value_or(dtype_of_q(file));
    compute(done, read_problem(file, verb.in, done.how, done.dtype), verb.common);
  }
  remarks.add_for(done.how);
  remarks.add_for_rows(done.tensors.at("o"));
  write_result(verb.out, done.tensors,
               {{"options", options_json(done).dump()}, {"foci", std::string(version())}});
  print_result(verb, done, remarks);
  return 0;
}

}  // namespace foci::cli
