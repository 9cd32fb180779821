// SPDX-License-Identifier: Apache-2.0
// Images for when nothing is there: four shapes over noise, written as IDX. Easy to learn, and
// impossible for a model that looks at single pixels.
#include "data/bytes.hpp"
#include "data/folder.hpp"

#include <foci/error.hpp>
#include <foci/generate.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

namespace foci::data {
namespace {

constexpr int side = 28;
enum Shape { disc, square, cross, stripes };
constexpr std::int64_t most_images = 10'000'000;

/// Whether a shape of this reach covers a point, seen from its middle.
bool covers(int shape, int y, int x, int reach) {
  if (std::max(std::abs(y), std::abs(x)) > reach) return false;
  switch (shape) {
    case disc:
      return y * y + x * x <= reach * reach;
    case square:
      return true;
    case cross:
      return std::min(std::abs(y), std::abs(x)) <= reach / 4;
    default:
      return (y + reach) / 2 % 2 == 0;
  }
}

void write_shapes(const std::string& folder, const std::string& part, std::int64_t count,
                  std::uint64_t seed) {
  IdxWriter images, labels;
  images.begin({count, side, side});
  labels.begin({count});
  for (std::int64_t i = 0; i < count; ++i) {
    const MadeImage made = make_image(seed, i);
    images.add(made.image.pixels);
    labels.add(std::vector<std::uint8_t>{std::uint8_t(made.label)});
  }
  write_file(joined(folder, part + "-images-idx3-ubyte"), images.bytes);
  write_file(joined(folder, part + "-labels-idx1-ubyte"), labels.bytes);
}

}  // namespace

const std::vector<std::string>& made_image_classes() {
  static const std::vector<std::string> names = {"disc", "square", "cross", "stripes"};
  return names;
}

MadeImage make_image(std::uint64_t seed, std::int64_t index) {
  Random random(seed, 1, std::uint64_t(index));
  MadeImage made{.image = Image(side, side, 1), .label = int(random.below(4))};
  const int reach = int(random.between(4, 9));
  const int y0 = int(random.between(reach, side - 1 - reach));
  const int x0 = int(random.between(reach, side - 1 - reach));
  const int shade = int(random.between(120, 215));
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      const int base = covers(made.label, y - y0, x - x0, reach) ? shade : 40;
      *made.image.at(y, x) =
          std::uint8_t(std::clamp<int>(base + int(random.between(-40, 40)), 0, 255));
    }
  }
  return made;
}

void write_made_images(const std::string& folder, std::int64_t count, std::uint64_t seed) {
  if (count < 5 || count > most_images) {
    throw InvalidArgument(fmt::format("{} made images; it needs 5 to {}", count, most_images));
  }
  write_shapes(folder, "train", count, seed);
  write_shapes(folder, "t10k", count / 5, seed ^ 0x5eed);
  std::string names;
  for (const std::string& name : made_image_classes()) names += name + "\n";
  write_file(joined(folder, "classes.txt"), std::as_bytes(std::span(names)));
}

}  // namespace foci::data
