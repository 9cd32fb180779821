// SPDX-License-Identifier: Apache-2.0
// Pictures of numbers: plain structs in, SVG or pixels out, the same bytes for the same numbers.
// SVG follows the reader's light or dark scheme; no series is told apart by colour alone. No torch.
// What cannot be drawn (nothing, lengths that differ, NaN) throws InvalidArgument.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>
#include <foci/metric.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace foci::report {

enum class Steps { linear, logarithmic };

/// Where it begins and ends follows from the numbers unless it is said.
struct Axis {
  std::string name = {};
  Steps steps = Steps::linear;
  std::optional<double> from = {}, to = {};
};

/// line: joined, in a band; few points have signs. points: signs with bars. joined: signs with bars
/// on a line. curve: a line alone, as of a formula.
enum class Mark { line, points, joined, curve };

/// Numbers over x. With low and high a line has a band, and points have bars.
struct Series {
  std::string name = {};
  std::vector<double> x = {}, y = {};
  std::vector<double> low = {}, high = {};
  Mark mark = Mark::line;
};

struct LineChart {
  std::string title = {}, about = {};  ///< about: what there is to see, for those who cannot
  Axis x = {}, y = {};
  std::vector<Series> series = {};
  double width = 640, height = 400;
};
FOCI_API std::string draw(const LineChart& chart);  ///< SVG, as all draw()

/// Line charts side by side, all of one size. Series of one name look alike in all of them and
/// stand in the legend once; a curve that has the name of points is drawn beside them, thin and
/// dashed. Charts that have no name in common bear letters, and have a legend each.
struct ChartSheet {
  std::string title = {}, about = {};
  std::vector<LineChart> charts = {};     ///< their width, height and about do not count
  std::string asides = "in closed form";  ///< what the legend calls curves beside points
};
FOCI_API std::string draw(const ChartSheet& sheet);

/// The mean of several runs over x, between its standard deviations; a single run has no band.
FOCI_API Series mean_of(std::string name, std::vector<double> x,
                        const std::vector<std::vector<double>>& runs);

/// One bar in each group; with low and high it has whiskers.
struct Bars {
  std::string name = {};
  std::vector<double> values = {};
  std::vector<double> low = {}, high = {};
};

struct BarChart {
  std::string title = {}, about = {};
  std::vector<std::string> groups = {};
  Axis y = {};
  std::vector<Bars> bars = {};
  double width = 640, height = 400;
};
FOCI_API std::string draw(const BarChart& chart);

struct Colour {
  std::uint8_t r = 0, g = 0, b = 0;
  bool operator==(const Colour&) const = default;
};
/// From dark violet at 0 to pale yellow at 1: equal steps look equal (in OKLab), and lightness
/// alone tells them. Outside [0,1] its ends.
FOCI_API Colour colour_at(double t);

/// Numbers of layers and heads, or of anything that has rows and columns; each is written out.
struct Grid {
  std::string name = {};
  std::vector<std::string> rows = {}, columns = {};
  std::vector<double> values = {};           ///< (rows, columns)
  std::optional<double> from = {}, to = {};  ///< of the colours
};
struct GridSheet {
  std::string title = {}, about = {};
  std::string row_name = "layer", column_name = "head";
  std::vector<Grid> grids = {};
};
FOCI_API std::string draw(const GridSheet& sheet);

/// What one query gives to each patch of an image; no number is below 0.
struct Heat {
  std::string name = {};
  int rows = 0, columns = 0;
  std::vector<double> weights = {};  ///< (rows, columns)
};
struct Cell {
  int row = 0, column = 0;
};
struct HeatRow {
  std::string name = {};
  data::Image image = {};
  std::optional<Cell> query = {};  ///< its patch; none: a query that is no patch
  std::string query_name = {};     ///< what it is called, such as "class token"; usually its patch
  std::vector<Heat> heats = {};    ///< side by side
};
enum class Overlay { smooth, patches };
enum class Range { row, own };  ///< whose largest weight has the brightest colour
struct HeatSheet {
  std::string title = {}, about = {};
  std::vector<HeatRow> rows = {};
  Overlay overlay = Overlay::smooth;
  Range range = Range::row;
  int side = 160;  ///< pixels of a picture's longer side
};
FOCI_API data::Image paint(const HeatSheet& sheet);  ///< RGB, on white
FOCI_API std::string draw(const HeatSheet& sheet);   ///< pixels inside, letters outside

/// Images in rows and columns of one size, with names beside and above them; small ones are
/// enlarged until names fit.
FOCI_API data::Image named_sheet(const data::Image& sheet, const std::vector<std::string>& rows,
                                 const std::vector<std::string>& columns);

/// What each token gives to each other one; no number is below 0.
struct TokenMap {
  std::string title = {}, about = {};
  std::vector<std::string> queries = {}, keys = {};
  std::vector<double> weights = {};  ///< (queries, keys)
};
FOCI_API std::string draw(const TokenMap& map);

/// A text whose tokens are tinted by what one of them, or something else, gives to each.
struct TokenText {
  std::string name = {};
  std::vector<std::string> tokens = {};
  std::vector<double> weights = {};
  std::optional<std::size_t> query = {};
};
struct TextSheet {
  std::string title = {}, about = {};
  std::vector<TokenText> texts = {};
  Range range = Range::row;  ///< row: all texts
  double width = 640;
};
FOCI_API std::string draw(const TextSheet& sheet);

/// A piece of the space of keys. A key's score is that of a metric (2,2) that has the scale in it:
/// a product with the query or, form distance, minus half the squared distance. Weights need not
/// follow from it: keys differ from the query in other directions too.
struct Plane {
  std::string name = {};
  std::string x_name = {}, y_name = {};
  std::vector<double> keys = {};  ///< (n,2)
  std::vector<double> weights = {};
  std::array<double, 2> query = {};
  std::array<double, 4> metric = {1, 0, 0, 1};
  Form form = Form::distance;
};
/// One head's query, keys and metric. The plane is that of the two coordinates with the largest
/// spread times m, or of the two leading eigenvectors of P; of another metric where `axes` is one,
/// so that two heads lie in the same.
struct Head {
  std::string name = {};
  std::int64_t D = 0;
  std::span<const double> query = {}, keys = {};   ///< (D), (n,D)
  std::span<const double> weights = {};            ///< (n)
  std::span<const double> metric = {}, axes = {};  ///< nothing for dot, (D) or (D,D)
  double scale = 1;
  Form form = Form::product;
};
FOCI_API Plane plane_of(const Head& head);

struct PlaneSheet {
  std::string title = {}, about = {};
  std::vector<Plane> planes = {};
};
FOCI_API std::string draw(const PlaneSheet& sheet);

}  // namespace foci::report
