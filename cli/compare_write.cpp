// SPDX-License-Identifier: Apache-2.0
// Results as files, and as a table on a terminal.
#include "cli/compare_results.hpp"

#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/write.hpp"

#include <foci/report.hpp>

#include <fmt/core.h>

namespace foci::cli {
namespace {

/// A field of CSV.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n") == text.npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string cell(const Json& measure, const std::string& mechanism) {
  const Json& mean = measure.at("mean").at(mechanism);
  if (!mean.is_number()) return "-";
  const bool share = measure.at("unit") == "share";
  const double value = mean.get<double>() * (share ? 100 : 1);
  std::string text =
      share || value < 100 ? fmt::format("{:.2f}", value) : fmt::format("{:.0f}", value);
  const Json& deviation = measure.at("deviation").at(mechanism);
  if (deviation.is_number()) {
    const double spread = deviation.get<double>() * (share ? 100 : 1);
    text +=
        share || value < 100 ? fmt::format(" ± {:.2f}", spread) : fmt::format(" ± {:.0f}", spread);
  }
  return text;
}

/// With the unit, unless the title ends with it.
std::string title_of(const Json& measure) {
  std::string title = measure.at("title");
  const std::string unit = measure.at("unit");
  if (unit.empty() || title.ends_with(" " + unit)) return title;
  return title + ", " + (unit == "share" ? "%" : unit);
}

/// How many samples a score is over; time and memory are over none.
std::string samples_of(const Json& measure) {
  const Json& group = measure.at("group");
  const auto n = measure.at("n").get<std::int64_t>();
  return n <= 0 || group == "speed" || group == "memory" ? "" : std::to_string(n);
}

/// Names of the doubts about one value.
std::string flags_at(const Json& measure, const std::string& mechanism, std::size_t seed) {
  const Json& flagged = measure.at("flagged");
  if (!flagged.contains(mechanism)) return "";
  return listed(flagged.at(mechanism).at(seed).get<std::vector<std::string>>(), "; ");
}

/// " (Clean accuracy; Under fog)", or how many where they are many.
std::string places_of(const Json& flag) {
  constexpr std::size_t most = 3;
  const auto titles = flag.value("measures", Json::array()).get<std::vector<std::string>>();
  if (titles.empty()) return "";
  return titles.size() > most ? fmt::format(" ({} measures)", titles.size())
                              : fmt::format(" ({})", listed(titles, "; "));
}

/// All Records of the runs, a line each.
std::string records_text(const Comparison& comparison) {
  std::string text;
  for (const ComparedRun& run : comparison.runs) {
    for (const Record& record : run.found.records) text += to_json(record) + "\n";
  }
  return text;
}

}  // namespace

std::string results_csv(const Json& results) {
  std::string text = "measure,mechanism,seed,value,unit,n,group,flags\n";
  for (const Json& measure : results.at("measures")) {
    for (const auto& [mechanism, values] : measure.at("values").items()) {
      for (std::size_t s = 0; s < values.size(); ++s) {
        if (!values[s].is_number()) continue;
        text += fmt::format(
            "{},{},{},{},{},{},{},{}\n", field(measure.at("name").get<std::string>()),
            field(mechanism), results.at("seeds")[s].dump(), values[s].dump(),
            field(measure.at("unit").get<std::string>()), measure.at("n").dump(),
            measure.at("group").get<std::string>(), field(flags_at(measure, mechanism, s)));
      }
    }
  }
  return text;
}

void write_results(const std::string& folder, const Comparison& comparison, Json& results) {
  results["figures"] = draw_figures(folder, results);
  const auto text = [](const Json& json) {
    return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  };
  write_whole(folder + "/results.json", text(results));
  write_whole(folder + "/results.csv", results_csv(results));
  write_whole(folder + "/records.jsonl", records_text(comparison));
  report::write_page(folder + "/results.json", folder + "/report.html");
}

void print_results(const Json& results) {
  std::vector<std::string> names;
  for (const Json& mechanism : results.at("mechanisms"))
    names.push_back(mechanism.at("name").get<std::string>());
  std::vector<std::string> head = {"measure", "n"};
  head.insert(head.end(), names.begin(), names.end());
  Table table(head);
  for (const Json& measure : results.at("measures")) {
    std::vector<std::string> row = {title_of(measure), samples_of(measure)};
    for (const std::string& name : names) row.push_back(cell(measure, name));
    table.add(row);
  }
  table.print();
  fmt::print("\n{}\n",
             painted(results.at("verdict").at("headline").get<std::string>(), Paint::bold));
  for (const Json& sentence : results.at("verdict").at("sentences"))
    fmt::print("{}\n", sentence.get<std::string>());
  const std::string why = results.value("demonstration_because", "");
  if (!why.empty()) fmt::print("A demonstration: {}.\n", why);
  for (const Json& flag : results.at("flags")) {
    fmt::print("doubt: {}{}: {}; {}\n", flag.at("name").get<std::string>(), places_of(flag),
               flag.at("means").get<std::string>(), flag.at("do").get<std::string>());
  }
}

}  // namespace foci::cli
