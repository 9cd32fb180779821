// SPDX-License-Identifier: Apache-2.0
// Pictures of one sample's attention, beside the numbers of foci measure: SVG and PNG, and
// pictures.json with what they are made of.
#pragma once

#include <foci/data.hpp>
#include <foci/measure.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace foci::cli {

/// Where they go, and of what; -1: the top layer, the mean over heads, the class token or the last
/// token.
struct PictureWish {
  std::string folder;
  std::int64_t layer = -1, head = -1, query = -1;
};

/// A sample and a pass of it alone through its model.
struct Pictured {
  std::string name;    ///< of the model, above every picture
  std::string label;   ///< the same in a word or two
  std::string kind;    ///< runs of one kind are seeds of each other: "layer-change"
  std::string sample;  ///< "test sample 7, ankle boot"
  std::function<void()> pass;
  std::vector<measure::Grid> grids;       ///< as measure::Options has them
  std::optional<data::Image> image = {};  ///< where tokens stand on one
  std::vector<std::string> tokens = {};   ///< of text
  /// Of a segmenter: whose tokens stand behind the patches in its mask transformer, and which of
  /// them the sample has, the largest first.
  std::vector<std::string> classes = {};
  std::vector<std::int64_t> present = {};
};

/// Of each one, in a folder of its own where there are several, with strips of them all above
/// and the layers of every kind, its runs being seeds.
/// The files that were written. Throws InvalidArgument for a layer, head or query that is none,
/// FileError.
std::vector<std::string> write_pictures(const PictureWish& wish, const std::vector<Pictured>& all,
                                        const std::vector<const measure::Report*>& reports);

}  // namespace foci::cli
