// SPDX-License-Identifier: Apache-2.0
// The table and the JSON of foci bench.
#include "cli/bench_report.hpp"

#include "cli/machine.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace foci::cli {
namespace {

std::string pass_name(Pass pass) {
  return pass == Pass::forward ? "forward" : pass == Pass::backward ? "backward" : "both";
}

double gflops(double flops, const Times& times) { return flops / times.best() / 1e9; }

Json shape_of(const Sizes& s) { return {s.B, s.H, s.N, s.D}; }

/// Our rate as a share of the machine's own; null without sgemm.
Json of_sgemm(const BenchReport& report) {
  for (const auto& [peer, times] : report.peers) {
    if (peer.name != "sgemm") continue;
    return gflops(report.ours.flops(), report.times) / gflops(peer.flops, times);
  }
  return nullptr;
}

Json json_of_peers(const BenchReport& report) {
  Json peers = Json::object();
  for (const auto& [peer, times] : report.peers) {
    Json& to = peers[peer.name];
    to = {{"seconds", times.best()},
          {"spread", times.spread()},
          {"repetitions", times.seconds.size()},
          {"gflops", gflops(peer.flops, times)},
          {"what", peer.what},
          {"difference", nullptr}};
    if (peer.difference) to["difference"] = *peer.difference;
  }
  return peers;
}

Json json_of_versus(const BenchReport& report) {
  if (report.versus == nullptr) return nullptr;
  const Subject& other = *report.versus;
  return {{"flags", report.verb.versus->text},
          {"seconds", report.versus_times.best()},
          {"spread", report.versus_times.spread()},
          {"repetitions", report.versus_times.seconds.size()},
          {"gflops", gflops(other.flops(), report.versus_times)},
          {"ratio", report.times.best() / report.versus_times.best()},
          {"peak_bytes", other.call().bytes()},
          {"error", other.worst().error},
          {"naive_error", other.worst().naive_error}};
}

Json json_of_tensors(const Subject& ours) {
  Json tensors = Json::object();
  for (const Finding& f : ours.findings()) {
    tensors[f.name] = {
        {"error", f.error}, {"naive_error", f.naive_error}, {"tolerance", f.tolerance}};
  }
  return tensors;
}

/// "1.02 times the time" for ours versus ours, "0.93 of its rate" for sgemm, "3.1 times as fast".
std::string beside(const BenchReport& report, const Peer& peer, const Times& times) {
  const double rate = gflops(report.ours.flops(), report.times) / gflops(peer.flops, times);
  return peer.name == "sgemm" ? fmt::format("{:.3f} of its rate", rate)
                              : fmt::format("{:.2f} times as fast", rate);
}

void print_heading(const BenchReport& report) {
  const Timed& timed = report.verb.ours;
  const Sizes& s = timed.sizes;
  const int threads = report.ours.threads().threads();
  fmt::print("{}{}\n{} {} {}, {} pass{}, {} heads on {}, {} queries, {} keys, {} thread{}\n",
             described(timed.mechanism.how, s.D), timed.key_bias ? ", key_bias" : "",
             backend_name(timed.mechanism.how, report.ours.dtype()), name_of(report.ours.dtype()),
             machine_text(), pass_name(timed.pass), timed.pass == Pass::both ? "es" : "", s.B * s.H,
             s.B * s.G, s.N, s.M, threads, threads == 1 ? "" : "s");
}

void print_table(const BenchReport& report) {
  Table table({"", "best", "spread", "GFLOP/s", "memory", "ours beside it"});
  const auto add = [&](const std::string& name, const Times& times, double flops,
                       const std::string& memory, const std::string& note) {
    table.add({name, seconds_text(times.best()), seconds_text(times.spread()),
               number_text(gflops(flops, times)), memory, note});
  };
  add(backend_name(report.verb.ours.mechanism.how, report.ours.dtype()), report.times,
      report.ours.flops(), bytes_text(report.ours.call().bytes()), "");
  if (report.versus != nullptr) {
    add("versus " + report.verb.versus->text, report.versus_times, report.versus->flops(),
        bytes_text(report.versus->call().bytes()),
        fmt::format("{:.3f} times the time", report.times.best() / report.versus_times.best()));
  }
  for (const auto& [peer, times] : report.peers) {
    add(peer.name, times, peer.flops, "", beside(report, peer, times));
  }
  table.print();
}

}  // namespace

Json json_of(const BenchReport& report, const Json& flags) {
  const Timed& timed = report.verb.ours;
  const Sizes& s = timed.sizes;
  const Options& how = timed.mechanism.how;
  Json absent = Json::object(), rss = nullptr;
  for (const auto& [name, why] : report.absent) absent[name] = why;
  if (report.ours.peak_rss()) rss = *report.ours.peak_rss();
  return {{"shape", shape_of(s)},
          {"kv_heads", s.G},
          {"keys", s.M},
          {"values", s.E},
          {"metric", metric_name(how.metric)},
          {"weighting", weighting_name(how.weighting)},
          {"options", resolved(how, s.D)},
          {"backend", backend_name(how, report.ours.dtype())},
          {"dtype", std::string(name_of(report.ours.dtype()))},
          {"pass", pass_name(timed.pass)},
          {"causal", how.causal},
          {"stats", timed.stats},
          {"key_bias", timed.key_bias},
          {"threads", report.ours.threads().threads()},
          {"turns", report.verb.turns},
          {"seconds", report.times.best()},
          {"spread", report.times.spread()},
          {"repetitions", report.times.seconds.size()},
          {"gflops", gflops(report.ours.flops(), report.times)},
          {"of_sgemm", of_sgemm(report)},
          {"peak_bytes", report.ours.call().bytes()},
          {"peak_rss_bytes", rss},
          {"error", report.ours.worst().error},
          {"naive_error", report.ours.worst().naive_error},
          {"checked_shape", shape_of(report.ours.checked())},
          {"tensors", json_of_tensors(report.ours)},
          {"versus", json_of_versus(report)},
          {"peers", json_of_peers(report)},
          {"absent_peers", absent},
          {"machine", machine_text()},
          {"commit", commit_text()},
          {"flags", flags}};
}

void print_report(const BenchReport& report) {
  const bool quiet = report.verb.common.quiet;
  if (!quiet) print_heading(report);
  print_table(report);
  if (quiet) return;
  const Subject& ours = report.ours;
  const Sizes& c = ours.checked();
  fmt::print("checked against ref f64 on shape {},{},{},{}: {} off by {:.3g} (naive {:.3g})\n", c.B,
             c.H, c.N, c.D, ours.worst().name, ours.worst().error, ours.worst().naive_error);
  for (const auto& [peer, times] : report.peers) {
    const std::string far =
        peer.difference ? fmt::format("; differs from ours by {:.3g} at most", *peer.difference)
                        : "";
    fmt::print("{}: {}{}\n", peer.name, peer.what, far);
  }
  for (const auto& [name, why] : report.absent) fmt::print("{} is not timed: {}\n", name, why);
}

}  // namespace foci::cli
