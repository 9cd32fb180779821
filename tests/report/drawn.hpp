// SPDX-License-Identifier: Apache-2.0
// What holds for every picture: it is well-formed, has words for those who cannot see it, both
// schemes, numbers alone, and is the same again.
#pragma once

#include "report/well_formed.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>
#include <foci/pictures.hpp>

#include <limits>
#include <string>

namespace foci::report {

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

template <class Picture>
std::string drawn(const Picture& picture) {
  const std::string svg = draw(picture);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(svg, draw(picture));
  for (const char* part : {"<title>", "<desc>", "prefers-color-scheme:dark", "viewBox"})
    EXPECT_NE(svg.find(part), svg.npos) << part;
  for (const char* part : {"\"nan", "\"inf", "\"-inf", " nan", ">nan", ">inf"})
    EXPECT_EQ(svg.find(part), svg.npos) << part;
  return svg;
}

std::string refused(const auto& picture) {
  return thrown<InvalidArgument>([&] { draw(picture); });
}

}  // namespace foci::report
