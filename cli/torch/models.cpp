// SPDX-License-Identifier: Apache-2.0
// foci models: the models that have names, with what they take and what they cost.
#include "cli/terminal.hpp"
#include "cli/torch/run.hpp"

#include <foci/models.hpp>

#include <fmt/core.h>

namespace foci::cli {
namespace {

using models::Listed;

std::string count_text(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} G", count * 1e-9);
  return count >= 1e6 ? fmt::format("{:.2f} M", count * 1e-6)
                      : fmt::format("{:.1f} k", count * 1e-3);
}

void add_vit(Json& to, const models::VitOptions& o) {
  to.update({{"image", o.image},
             {"patch", o.patch},
             {"channels", o.channels},
             {"classes", o.classes},
             {"dim", o.dim},
             {"depth", o.depth},
             {"heads", o.heads},
             {"mlp_ratio", o.mlp_ratio}});
}

void add_sequence(Json& to, const models::SequenceOptions& o) {
  if (o.vocabulary > 0) to["vocabulary"] = o.vocabulary;
  if (o.channels > 0) to["channels"] = o.channels;
  to.update({{"length", o.length},
             {"classes", o.classes},
             {"dim", o.dim},
             {"depth", o.depth},
             {"heads", o.heads},
             {"head_dim", o.head_dim > 0 ? o.head_dim : o.dim / o.heads},
             {"mlp_ratio", o.mlp_ratio},
             {"pooling", o.pooling == models::Pooling::cls ? "cls" : "mean"}});
}

void add_language(Json& to, const models::LanguageOptions& o) {
  const bool rotary = o.positions == models::Positions::rotary;
  to.update({{"vocabulary", o.vocabulary},
             {"context", o.context},
             {"dim", o.dim},
             {"depth", o.depth},
             {"heads", o.heads},
             {"kv_heads", o.kv_heads > 0 ? o.kv_heads : o.heads},
             {"hidden", o.hidden > 0 ? o.hidden : 4 * o.dim},
             {"positions", rotary ? "rotary" : "learned"}});
}

Json json_of(const Listed& model) {
  const models::Size size = models::size_of(model);
  Json json = {{"name", model.name},
               {"task", model.task},
               {"about", model.about},
               {"parameters", size.parameters},
               {"multiply_adds", size.multiply_adds}};
  if (model.language) {
    add_language(json, *model.language);
    return json;
  }
  if (model.sequence) {
    add_sequence(json, *model.sequence);
    return json;
  }
  add_vit(json, model.segmenter ? model.segmenter->encoder : model.vit);
  if (model.segmenter) {
    json["classes"] = model.segmenter->classes;
    json["decoder_depth"] = model.segmenter->decoder_depth;
    json["decoder_heads"] = model.segmenter->decoder_heads;
  }
  return json;
}

int show_one(const Listed& model, bool json) {
  const Json facts = json_of(model);
  if (json) {
    print_json(facts);
    return 0;
  }
  for (const auto& [name, value] : facts.items()) {
    fmt::print("{:<15}{}\n", name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return 0;
}

}  // namespace

int run_torch(const Models& verb) {
  if (!verb.name.empty()) return show_one(models::find(verb.name), verb.common.json);
  if (verb.common.json) {
    Json all = Json::array();
    for (const Listed& model : models::listed()) all.push_back(json_of(model));
    print_json({{"models", all}});
    return 0;
  }
  Table table({"model", "task", "parameters", "multiply-adds"});
  for (const Listed& model : models::listed()) {
    const models::Size size = models::size_of(model);
    table.add({std::string(model.name), std::string(model.task),
               count_text(double(size.parameters)), count_text(size.multiply_adds)});
  }
  table.print();
  return 0;
}

}  // namespace foci::cli
