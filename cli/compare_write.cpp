// SPDX-License-Identifier: Apache-2.0
// Results as files, and as a table on a terminal.
#include "cli/compare_results.hpp"

#include "cli/suggest.hpp"
#include "cli/terminal.hpp"

#include <foci/error.hpp>
#include <foci/report.hpp>

#include <fmt/core.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

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

/// All Records of the runs, a line each.
std::string records_text(const Comparison& comparison) {
  std::string text;
  for (const ComparedRun& run : comparison.runs) {
    for (const Record& record : run.found.records) text += to_json(record) + "\n";
  }
  return text;
}

}  // namespace

void write_whole(const std::string& path, const std::string& text) {
  const std::string other = path + ".part";
  std::ofstream file(other, std::ios::trunc | std::ios::binary);
  file << text << std::flush;
  std::error_code fault(errno, std::generic_category());
  if (file) fs::rename(other, path, fault);
  if (!file || fault)
    throw FileError(fmt::format("{}: cannot be written: {}", shown(path), fault.message()));
}

std::string results_csv(const Json& results) {
  std::string text = "measure,mechanism,seed,value,unit,n,group\n";
  for (const Json& measure : results.at("measures")) {
    for (const auto& [mechanism, values] : measure.at("values").items()) {
      for (std::size_t s = 0; s < values.size(); ++s) {
        if (!values[s].is_number()) continue;
        text += fmt::format("{},{},{},{},{},{},{}\n", field(measure.at("name").get<std::string>()),
                            field(mechanism), results.at("seeds")[s].dump(), values[s].dump(),
                            field(measure.at("unit").get<std::string>()), measure.at("n").dump(),
                            measure.at("group").get<std::string>());
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
  std::vector<std::string> head = {"measure"};
  for (const Json& mechanism : results.at("mechanisms"))
    head.push_back(mechanism.at("name").get<std::string>());
  Table table(head);
  for (const Json& measure : results.at("measures")) {
    const std::string unit = measure.at("unit");
    std::vector<std::string> row = {fmt::format("{}{}", measure.at("title").get<std::string>(),
                                                unit == "share" ? ", %"
                                                : unit.empty()  ? ""
                                                                : ", " + unit)};
    for (std::size_t i = 1; i < head.size(); ++i) row.push_back(cell(measure, head[i]));
    table.add(row);
  }
  table.print();
  fmt::print("\n{}\n",
             painted(results.at("verdict").at("headline").get<std::string>(), Paint::bold));
  for (const Json& sentence : results.at("verdict").at("sentences"))
    fmt::print("{}\n", sentence.get<std::string>());
  for (const Json& flag : results.at("flags")) {
    fmt::print("doubt: {}: {}; {}\n", flag.at("name").get<std::string>(),
               flag.at("means").get<std::string>(), flag.at("do").get<std::string>());
  }
}

}  // namespace foci::cli
