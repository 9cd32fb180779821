// SPDX-License-Identifier: Apache-2.0
// Fills the template. Data goes into the page twice: as JSON in a block that is never run, and as
// text for readers without scripts. The policy names the scripts by their hash, so that nothing
// else runs even if something slipped through.
#include <foci/report.hpp>

#include "data/bytes.hpp"
#include "report/parts.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>

namespace foci::report {
namespace {

using Json = nlohmann::json;
using Values = std::map<std::string, std::string, std::less<>>;

constexpr int schema = 1;

/// Text as it may stand between tags and inside quotes.
std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

/// JSON that cannot end the block it stands in. Outside of strings it has none of these.
std::string in_block(std::string_view json) {
  std::string safe;
  safe.reserve(json.size() + 64);
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      safe += fmt::format("\\u{:04x}", unsigned(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string base64_of_hex(std::string_view hex) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto value = [](char c) { return std::uint32_t(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::string text;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : hex) {
    bits = bits << 4 | value(c);
    count += 4;
    if (count < 6) continue;
    count -= 6;
    text += digits[bits >> count & 63];
  }
  if (count > 0) text += digits[bits << (6 - count) & 63];
  while (text.size() % 4 != 0) text += '=';
  return text;
}

std::string by_hash(std::string_view hex) {
  return fmt::format(" 'sha256-{}'", base64_of_hex(hex));
}

std::string text_in(const Json& results, const char* name) {
  const auto found = results.find(name);
  return found != results.end() && found->is_string() ? found->get<std::string>() : "";
}

Json checked(std::string_view text) {
  Json results = Json::parse(text, nullptr, false);
  if (results.is_discarded() || !results.is_object()) {
    throw InvalidArgument("results are no JSON object; they need what foci compare writes");
  }
  const auto found = results.find("schema");
  if (found == results.end() || !found->is_number_integer()) {
    throw InvalidArgument(fmt::format("results without a schema; they need schema {}", schema));
  }
  if (*found != schema) {
    throw InvalidArgument(
        fmt::format("results of schema {}; this version reads {}", found->dump(), schema));
  }
  return results;
}

/// The template with every {{name}} replaced, in one pass: what is put in is not looked at again.
std::string filled(std::string_view form, const Values& values) {
  std::string text;
  for (;;) {
    const std::size_t open = form.find("{{");
    text += form.substr(0, open);
    if (open == std::string_view::npos) return text;
    const std::size_t close = form.find("}}", open);
    text += values.find(form.substr(open + 2, close - open - 2))->second;
    form.remove_prefix(close + 2);
  }
}

}  // namespace

std::string policy(Place place) {
  std::string scripts = by_hash(parts::script_sha256);
  if (!parts::charts.empty()) scripts += by_hash(parts::charts_sha256);
  return fmt::format(
      "default-src 'none'; script-src{}; style-src{}; img-src data:; connect-src {}; "
      "base-uri 'none'; form-action 'none'",
      scripts, by_hash(parts::style_sha256), place == Place::server ? "'self'" : "'none'");
}

std::string_view charts() {
  constexpr std::string_view before = "Chart.js v";
  const std::size_t begin = parts::charts.find(before);
  if (begin == std::string_view::npos) return parts::charts.empty() ? "" : "unknown";
  const std::string_view rest = parts::charts.substr(begin + before.size());
  return rest.substr(0, rest.find_first_not_of("0123456789."));
}

std::string page(std::string_view text, Place place) {
  const Json results = checked(text);
  const std::string title = text_in(results, "title");
  const auto verdict = results.find("verdict");
  return filled(
      parts::page,
      {{"title", escaped(title.empty() ? "A comparison of attention" : title)},
       {"headline", verdict != results.end() && verdict->is_object()
                        ? escaped(text_in(*verdict, "headline"))
                        : ""},
       {"place", place == Place::server ? "server" : "file"},
       {"policy", policy(place)},
       {"style", std::string(parts::style)},
       {"charts", parts::charts.empty() ? "" : fmt::format("<script>{}</script>\n", parts::charts)},
       {"results", in_block(text)},
       {"script", std::string(parts::script)}});
}

void write_page(const std::string& results_path, const std::string& page_path) {
  const data::Bytes bytes = data::read_file(results_path);
  std::string text;
  try {
    text = page(data::text_of(bytes), Place::file);
  } catch (const InvalidArgument& fault) {
    throw FileError(fmt::format("{}: {}", results_path, fault.what()));
  }
  data::write_file(page_path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace foci::report
