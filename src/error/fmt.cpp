// SPDX-License-Identifier: Apache-2.0
// fmt, compiled once. Everybody else includes <fmt/core.h>, where its functions are declared only,
// and finds them here: its other headers cost a source several seconds.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace {

// They are inline, so what nobody names here would not be here.
[[gnu::used]] std::string (*const format)(fmt::string_view, fmt::format_args) = fmt::vformat;
[[gnu::used]] void (*const print)(fmt::string_view, fmt::format_args) = fmt::vprint;
[[gnu::used]] void (*const print_to)(std::FILE*, fmt::string_view, fmt::format_args) = fmt::vprint;

}  // namespace
