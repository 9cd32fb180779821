// SPDX-License-Identifier: Apache-2.0
// Data that a seed makes: the Long Range Arena's ListOps and Pathfinder, and images for when
// nothing is there. Each sample depends on the seed and its own number alone.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>
#include <foci/text.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foci::data {

/// Class and name of a made image: a disc, a square, a cross, stripes.
FOCI_API const std::vector<std::string>& made_image_classes();
/// 28 x 28, one channel: a bright shape at a random place and size over noise.
struct FOCI_API MadeImage {
  Image image;
  int label = 0;
};
FOCI_API MadeImage make_image(std::uint64_t seed, std::int64_t index);

/// Writes IDX files of `count` made images for training and a fifth of that for testing, and
/// classes.txt. The folder must exist.
FOCI_API void write_made_images(const std::string& folder, std::int64_t count, std::uint64_t seed);

/// 48 x 64 in colour, and the class of each pixel by CamVid's numbers: sky, buildings, poles, road,
/// pavement, trees and cars.
struct FOCI_API MadeStreet {
  Image image, mask;
};
FOCI_API MadeStreet make_street(std::uint64_t seed, std::int64_t index);
/// PNG files in CamVid's layout: `count` streets for training, a tenth of that for validation and a
/// fifth for testing. The folder must exist.
FOCI_API void write_made_streets(const std::string& folder, std::int64_t count, std::uint64_t seed);

/// The published numbers. A node above the greatest depth is an operator with probability
/// `operator_share`, else a digit; an operator and its bracket count 2, a digit 1.
struct FOCI_API ListOps {
  double operator_share = 0.25;
  int most_arguments = 10, depth = 10;
  int least_length = 500, most_length = 2000;  ///< both excluded
};
/// "[MAX 2 9 [MIN 4 7 ] 0 ]" and its value, 0 to 9. MED cuts halves off.
FOCI_API LabelledText make_listops(std::uint64_t seed, std::int64_t index, const ListOps& how = {});
/// The value of an expression. Throws InvalidArgument with the place.
FOCI_API int evaluate_listops(std::string_view text);
/// train.tsv of `count` different expressions, valid.tsv and test.tsv of a 48th: 96,000, 2,000 and
/// 2,000 are the published sizes. The folder must exist.
FOCI_API void write_listops(const std::string& folder, std::int64_t count, std::uint64_t seed);

/// The published numbers of Pathfinder-32, hard: curves of 14 dashes.
struct FOCI_API Pathfinder {
  int size = 32, padding = 1;
  int length = 14, distractor_length = 4, distractors = 5;
  double dash = 2, margin = 1, thickness = 0.5, marker_radius = 1.5, continuity = 1;
  int seed_distance = 7;
  int retries = 20;  ///< of a dash, and of a short curve
};
struct FOCI_API Point {
  double x = 0, y = 0;
};
struct FOCI_API Dash {
  Point begin, end;
  double angle = 0;
};
struct FOCI_API PathfinderSample {
  Image image;                            ///< (size, size, 1)
  int label = 0;                          ///< 1: the discs are on the same curve
  std::vector<std::vector<Dash>> curves;  ///< the two long ones first
  std::array<Point, 2> markers;
};
FOCI_API PathfinderSample make_pathfinder(std::uint64_t seed, std::int64_t index,
                                          const Pathfinder& how = {});
/// IDX files of `count` images for training and a tenth for testing, and classes.txt.
FOCI_API void write_pathfinder(const std::string& folder, std::int64_t count, std::uint64_t seed);

}  // namespace foci::data
