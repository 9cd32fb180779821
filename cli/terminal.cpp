// SPDX-License-Identifier: Apache-2.0
// What is printed and how; knows nothing of attention.
#include "cli/terminal.hpp"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace foci::cli {
namespace {

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && (no_colour == nullptr || *no_colour == '\0') &&
         terminal != nullptr && std::string(terminal) != "dumb";
}

/// Characters, not bytes.
std::size_t width_of(const std::string& text) {
  return std::size_t(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

/// As many spaces as `text` lacks.
std::string room(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, width_of(text)), ' ');
}

}  // namespace

std::string time_left(double seconds) {
  const auto whole = std::int64_t(std::min(seconds, 359999.0));
  if (whole < 60) return fmt::format("{} s left", whole);
  if (whole < 3600) return fmt::format("{} min {} s left", whole / 60, whole % 60);
  return fmt::format("{} h {} min left", whole / 3600, whole / 60 % 60);
}

bool can_move() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && terminal != nullptr && std::string(terminal) != "dumb";
}

std::size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

std::string painted(const std::string& text, Paint paint) {
  if (!wants_colour()) return text;
  constexpr const char* codes[] = {"1", "32", "31", "2"};
  return fmt::format("\x1b[{}m{}\x1b[0m", codes[int(paint)], text);
}

void print_json(const Json& value) {
  const std::string text = value.dump(2, ' ', false, Json::error_handler_t::replace);
  fmt::print("{}\n", text);
}

std::string seconds_text(double seconds) {
  if (!(seconds < 1)) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} us", seconds * 1e6);
}

std::string bytes_text(std::size_t bytes) {
  if (bytes >= (std::size_t{1} << 30)) return fmt::format("{:.1f} GiB", double(bytes) / 0x1p30);
  if (bytes >= (std::size_t{1} << 20)) return fmt::format("{:.1f} MiB", double(bytes) / 0x1p20);
  return fmt::format("{:.1f} KiB", double(bytes) / 0x1p10);
}

std::string number_text(double number) { return fmt::format("{:.3g}", number); }

void Table::print() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space = room(row[i], widths[i]);
      line += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", &row == &rows_.front() ? painted(line, Paint::bold) : line);
  }
}

Progress::Progress(std::string what, std::string unit, Show show)
    : what_(std::move(what)), unit_(std::move(unit)), show_(show), moving_(can_move()) {}

Progress::~Progress() {
  if (printed_ && moving_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::at(std::int64_t done, std::int64_t total) {
  if (show_ == Show::nothing || done >= total) return;
  const auto time = Clock::now();
  const std::chrono::duration<double> since = time - last_, all = time - begin_;
  if (since.count() < (moving_ ? 0.2 : 5.0)) return;
  last_ = time;
  std::string line = fmt::format("{}: {} of {} {}", what_, done, total, unit_);
  if (done > 0) {
    const double rate = double(done) / all.count();
    line += fmt::format(", {:.3g}/s, {}", rate, time_left(double(total - done) / rate));
  }
  if (!now_.empty()) line += fmt::format(" ({})", now_);
  if (moving_) line = line.substr(0, terminal_columns() - 1);
  fmt::print(stderr, "{}{}{}", moving_ ? "\r\x1b[K" : "", line, moving_ ? "" : "\n");
  std::fflush(stderr);
  printed_ = true;
}

}  // namespace foci::cli
