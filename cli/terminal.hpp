// SPDX-License-Identifier: Apache-2.0
// What is printed: a table, a line of progress, JSON, numbers for people. Colour and moving lines
// only on a terminal and never with NO_COLOR.
#pragma once

#include "cli/mechanism.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace foci::cli {

enum class Paint { bold, good, bad, faint };
/// `text` in colour when standard output is a terminal that wants it.
std::string painted(const std::string& text, Paint paint);

/// One object or array and a newline on standard output; NaN is null, broken UTF-8 is replaced.
void print_json(const Json& value);

std::string seconds_text(double seconds);   ///< "1.23 ms"
std::string bytes_text(std::size_t bytes);  ///< "1.2 MiB"
std::string number_text(double number);     ///< three significant digits

/// Columns as wide as their widest cell; the first is flush left, the others flush right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Whether standard error is a terminal on which a line can be written over.
bool can_move();
/// Columns of the terminal; a longer line would wrap and could not be renewed.
std::size_t terminal_columns();

/// "3 min 20 s left"
std::string time_left(double seconds);

/// Whether a verb may show that it is still alive.
enum class Show { nothing, progress };

/// On a terminal a line on standard error that renews itself, with rate and time left, and is gone
/// in the end; elsewhere a plain line every few seconds.
class Progress {
 public:
  Progress(std::string what, std::string unit, Show show);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void at(std::int64_t done, std::int64_t total);
  /// What is being done now, after the count.
  void now(const std::string& what) { now_ = what; }

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_, unit_, now_;
  Show show_;
  bool moving_ = false;   // the line renews itself
  bool printed_ = false;  // there is a line to clear
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
};

}  // namespace foci::cli
