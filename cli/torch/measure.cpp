// SPDX-License-Identifier: Apache-2.0
// foci measure: samples through a model, tables of what it did with them, and the Records of it.
#include "cli/machine.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/torch/measure_report.hpp"
#include "cli/torch/measure_samples.hpp"
#include "cli/torch/records.hpp"
#include "cli/torch/run.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

namespace foci::cli {
namespace {

/// Samples, evenly over what there is.
std::vector<std::int64_t> chosen(std::int64_t samples, std::int64_t size) {
  const std::int64_t taken = samples == 0 ? size : std::min(samples, size);
  std::vector<std::int64_t> which;
  for (std::int64_t i = 0; i < taken; ++i) which.push_back(i * size / taken);
  return which;
}

/// The ones that are looked at closely come first, and are spread over the set as well.
std::vector<std::int64_t> close_first(std::vector<std::int64_t> which, std::int64_t closely) {
  const auto size = std::int64_t(which.size());
  if (closely < 1 || closely >= size) return which;
  std::vector<std::int64_t> order, rest;
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const bool close = next < closely && i == next * size / closely;
    (close ? order : rest).push_back(which[std::size_t(i)]);
    next += close;
  }
  order.insert(order.end(), rest.begin(), rest.end());
  return order;
}

Found measured(const Measured& what, const MeasurePlan& plan, Progress& progress) {
  measure::Options options = plan.options;
  for (const train::Standing& at : what.passes.standing)
    options.grids.push_back({at.leading, at.height, at.width});
  measure::Meter meter(options);
  const auto which = close_first(chosen(plan.samples, what.passes.samples), plan.options.closely);
  if (which.empty()) throw FileError(fmt::format("{}: has no samples", shown(what.name)));
  progress.now(what.name);
  for (std::size_t i = 0; i < which.size(); i += std::size_t(plan.batch)) {
    const auto count = std::min(std::size_t(plan.batch), which.size() - i);
    meter.add([&] { what.passes.run(std::span(which).subspan(i, count)); });
    progress.at(std::int64_t(i + count), std::int64_t(which.size()));
  }
  return {&what, what.passes.samples, meter.report(), {}};
}

/// How far each layer's metric is from where it was one checkpoint before.
void add_drift(std::vector<Found>& found) {
  for (std::size_t i = 1; i < found.size(); ++i) {
    if (found[i].what->run != found[i - 1].what->run) continue;
    const auto& before = found[i - 1].report.layers;
    const auto& now = found[i].report.layers;
    for (std::size_t l = 0; l < now.size(); ++l) {
      const bool both = l < before.size() && before[l].metric && now[l].metric;
      found[i].drift.push_back(
          both ? measure::drift(before[l].metric->typical, now[l].metric->typical) : 0);
    }
  }
}

void write_text(const std::string& folder, const std::string& text) {
  std::error_code fault;
  std::filesystem::create_directories(folder, fault);
  const std::string path = folder + "/measure.json";
  if (fault)
    throw FileError(fmt::format("{}: cannot be written: {}", shown(path), fault.message()));
  write_whole(path, text);
}

/// Of a run: every number with its error and its own count.
std::vector<Record> kept_records(const Measure& verb, const Found& found, const MeasurePlan& plan) {
  const Measured& what = *found.what;
  if (what.run.empty()) return {};
  std::vector<NamedValue> values = values_of(found, plan);
  // A checkpoint that is not the last one says so.
  for (NamedValue& one : values) one.name += what.name.substr(what.run.size());
  train::Scores scores;
  for (const NamedValue& one : values) scores[one.name] = one.value.mean;
  const std::string machine = verb.common.cuda ? gpu_machine_text() : machine_text();
  Words words = verb.words;
  words.erase("beside");
  auto records =
      records_of({what.words, machine, command_text("measure " + what.run, words)}, scores);
  for (Record& record : records) {
    const auto own = std::find_if(values.begin(), values.end(),
                                  [&](const NamedValue& one) { return one.name == record.name; });
    record.unit = own->unit;
    record.n = own->value.n;
    if (own->value.n > 1 && std::isfinite(own->value.error)) record.spread = own->value.error;
    if (own->value.n < 10) {
      record.flags.push_back({"few-samples", fmt::format("measured over {} samples", own->value.n),
                              "raise --samples, or --closely where it is less"});
    }
  }
  keep_records(what.run, records);
  return records;
}

std::string title_of(const Found& found) {
  return fmt::format("{}: {} of {} {}", found.what->name, found.report.samples, found.of,
                     found.what->unit);
}

void print_found(const std::vector<Found>& found, const MeasurePlan& plan, const Common& common) {
  for (const Found& one : found) {
    if (!common.quiet) fmt::print("{}{}\n", &one == &found[0] ? "" : "\n", title_of(one));
    print_tables(one, plan);
  }
  if (found.size() < 2) return;
  fmt::print("\n");
  print_beside(found);
}

}  // namespace

int run_torch(const Measure& verb) {
  const MeasurePlan plan = measure_plan(verb.words, verb.common);
  const std::vector<Measured> subjects = open_measured(verb);
  const bool shows = !verb.common.json && !verb.common.quiet;
  std::vector<Found> found;
  {
    Progress progress("measure", subjects[0].unit, shows ? Show::progress : Show::nothing);
    for (const Measured& subject : subjects) found.push_back(measured(subject, plan, progress));
  }
  add_drift(found);
  std::vector<const measure::Report*> reports;
  for (const Found& one : found) reports.push_back(&one.report);
  const std::vector<std::string> pictures = pictures_of(verb, subjects, reports);
  Json measured = Json::array(), records = Json::array();
  for (const Found& one : found) {
    measured.push_back(json_of(one, plan));
    for (const Json& record : json_of(kept_records(verb, one, plan))) records.push_back(record);
  }
  const auto own = verb.words.find("out");
  const std::string folder = own != verb.words.end()   ? own->second
                             : subjects[0].run.empty() ? ""
                                                       : subjects[0].run + "/measure";
  if (!folder.empty()) write_text(folder, Json{{"measured", measured}}.dump(1) + "\n");
  if (verb.common.json) {
    if (plan.per == Per::query && !folder.empty()) {  // long, and in the file
      for (Json& one : measured) {
        for (Json& layer : one["layers"]) layer.erase("by_query");
      }
    }
    print_json({{"out", folder.empty() ? Json(nullptr) : Json(folder)},
                {"measured", measured},
                {"pictures", pictures},
                {"records", records}});
    return 0;
  }
  print_found(found, plan, verb.common);
  if (shows && !folder.empty()) fmt::print("\nin full in {}/measure.json\n", folder);
  if (shows) {
    for (const std::string& path : pictures) fmt::print("{}\n", path);
  }
  return 0;
}

}  // namespace foci::cli
