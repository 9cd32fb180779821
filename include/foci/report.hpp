// SPDX-License-Identifier: Apache-2.0
// The page of a comparison: one HTML file that needs no network, made of results.json alone.
// What is measured and judged is in those results; nothing is computed anew here. No torch.
#pragma once

#include <foci/export.h>

#include <string>
#include <string_view>

namespace foci::report {

/// Where a page is opened: as a file, or served by `foci serve`, where it renews itself and its
/// explorer has a library to ask.
enum class Place { file, server };

/// The page of `results`, the text of a results.json. Whatever comes from there is escaped. Throws
/// InvalidArgument when it is not JSON of a schema that this version reads.
FOCI_API std::string page(std::string_view results, Place place = Place::file);

/// Reads results.json and writes the page, the old file or the whole new one. Throws FileError.
FOCI_API void write_page(const std::string& results_path, const std::string& page_path);

/// What must be sent beside a served page: its Content-Security-Policy.
FOCI_API std::string policy(Place place);

/// The version of the library that draws the figures; empty where the build found none: figures are
/// then tables.
FOCI_API std::string_view charts();

}  // namespace foci::report
