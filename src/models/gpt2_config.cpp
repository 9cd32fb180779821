// SPDX-License-Identifier: Apache-2.0
// GPT-2's config.json: the three entries that a model is made by, each checked; all others are
// those of a training and left alone.
#include "models/gpt2_config.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace foci::models {
namespace {

using Json = nlohmann::json;

/// The start of its text, in one line of ASCII.
std::string spelled(const Json& value) {
  constexpr std::size_t most = 40;
  if (value.is_structured()) return value.type_name();
  const std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return text.size() > most ? text.substr(0, most) + "..." : text;
}

/// Absent where the file does not say it.
const Json* find(const Json& config, const char* entry) {
  const auto found = config.find(entry);
  return found == config.end() || found->is_null() ? nullptr : &*found;
}

bool is_known(const Json& activation) {
  for (const char* known : {"gelu_new", "gelu_pytorch_tanh", "gelu"}) {
    if (activation == known) return true;
  }
  return false;
}

}  // namespace

Gpt2Config parse_gpt2_config(std::string_view text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw FileError(name + ": is no JSON object");
  const auto refuse = [&](const char* entry, const Json& value, const char* need) {
    throw FileError(fmt::format("{}: {} is {}; it must be {}", name, entry, spelled(value), need));
  };
  Gpt2Config config;
  if (const Json* heads = find(json, "n_head")) {
    constexpr std::int64_t most = 1 << 20;
    const bool whole = heads->is_number_integer();  // a float may be too large for one
    if (!whole || *heads < 1 || *heads > most)
      refuse("n_head", *heads, "a whole number, 1 or more");
    config.heads = heads->get<std::int64_t>();
  }
  if (const Json* eps = find(json, "layer_norm_epsilon")) {
    config.norm_eps = eps->is_number() ? eps->get<double>() : 0;
    if (!(config.norm_eps > 0 && config.norm_eps < 1))
      refuse("layer_norm_epsilon", *eps, "a number between 0 and 1");
  }
  if (const Json* activation = find(json, "activation_function")) {
    if (!is_known(*activation))
      refuse("activation_function", *activation, "gelu_new, gelu_pytorch_tanh or gelu");
    config.activation = activation->get<std::string>();
  }
  return config;
}

}  // namespace foci::models
