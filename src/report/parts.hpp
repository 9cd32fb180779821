// SPDX-License-Identifier: Apache-2.0
// The parts of the page as they were when the library was built: cmake/page_parts.cmake writes
// their bytes and their SHA-256 (in hexadecimal) into a source.
#pragma once

#include <string_view>

namespace foci::report::parts {

extern const std::string_view page;    ///< page.html with {{places}} to fill
extern const std::string_view style;   ///< page.css
extern const std::string_view script;  ///< page/*.js as one script
extern const std::string_view charts;  ///< Chart.js; empty where there was none
extern const std::string_view style_sha256, script_sha256, charts_sha256;

}  // namespace foci::report::parts
