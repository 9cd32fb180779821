// SPDX-License-Identifier: Apache-2.0
// foci corrupt: its page, and sets of images as ImageNet-C would have them, or a sheet to look at.
#include "cli/corruption_words.hpp"
#include "cli/misuse.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/error.hpp>
#include <foci/executor.hpp>
#include <foci/image.hpp>
#include <foci/pictures.hpp>

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace foci::cli {
namespace {

using corrupt::Corruption;

std::string text_in(const Words& words, const char* flag) {
  const auto found = words.find(flag);
  return found == words.end() ? "" : found->second;
}
std::int64_t count_of(const Words& words, const char* flag, std::int64_t standard) {
  const std::string text = text_in(words, flag);
  return text.empty() ? standard : to_count(text);
}

corrupt::How how_of(const Corrupt& verb, const Harm& harm, const data::Image& image) {
  return {.severity = 1,
          .scale = harm.scale.value_or(corrupt::scale_for(image)),
          .seed = verb.common.seed,
          .index = 0,
          .frost = harm.frost};
}

/// Refuses a side that only the out-of-memory killer would answer: an image in bytes and its planes
/// in f32, several of them at a time, and the f64 heights of a fog.
void check_memory(const data::Image& image, std::int64_t side) {
  const auto [low, high] = std::minmax(image.height, image.width);
  const double pixels = double(side) * double(side) * high / low;
  const double bytes = pixels * (16.0 * image.channels + 32.0);
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (bytes < memory) return;
  throw Misuse(fmt::format("--side {}: an image needs about {:.1f} GiB; this machine has {:.1f}",
                           side, bytes / 0x1p30, memory / 0x1p30));
}

/// The image that stands for the set, as large as --side says.
data::Image image_of(const data::ImageSet& set, const Words& words) {
  const std::int64_t index = count_of(words, "image", 0);
  if (index >= set.size())
    throw Misuse(fmt::format("--image {}: the set has {} images", index, set.size()));
  data::Image image = set.image(index);
  const std::int64_t asked = count_of(words, "side", 0);
  if (asked == 0) return image;
  check_memory(image, asked);
  const int side = int(asked);
  return data::center_crop(data::resize_shorter(image, side, data::Filter::bicubic), side, side);
}

/// Folders OUT/CORRUPTION/SEVERITY, as ImageNet-C has them.
void write_all(const Corrupt& verb, const Harm& harm, const data::ImageSet& set) {
  const std::string out = verb.words.at("out");
  corrupt::SetPlan plan{.how = how_of(verb, harm, image_of(set, verb.words))};
  plan.side = int(count_of(verb.words, "side", 0));
  plan.count = count_of(verb.words, "count", -1);
  plan.threads = verb.common.threads;
  Progress progress("corrupting", "sets",
                    verb.common.json || verb.common.quiet ? Show::nothing : Show::progress);
  const auto total = std::int64_t(harm.corruptions.size() * harm.severities.size());
  std::int64_t done = 0, there = 0;
  for (const Corruption corruption : harm.corruptions) {
    for (const int severity : harm.severities) {
      plan.corruption = corruption;
      plan.how.severity = severity;
      progress.now(fmt::format("{} {}", corrupt::name_of(corruption), severity));
      const std::string folder =
          fmt::format("{}/{}/{}", out, corrupt::name_of(corruption), severity);
      const data::ImageSet harmed = corrupt::corrupted(set, plan);
      there += std::filesystem::exists(folder) ? 1 : 0;
      corrupt::write_set(folder, harmed);
      progress.at(++done, total);
    }
  }
  if (there > 0 && !verb.common.quiet) {
    warn(
        fmt::format("{}: {} of these {} sets had been written before; files of the same names were "
                    "replaced, others stay",
                    shown(out), there, total));
  }
}

Json names_of(const std::vector<Corruption>& corruptions) {
  Json names = Json::array();
  for (const Corruption corruption : corruptions) names.push_back(corrupt::name_of(corruption));
  return names;
}

/// What --corrupt may say of images.
std::vector<std::string> all_names() {
  std::vector<std::string> names = {"all", "extra", "noise", "blur", "weather", "digital"};
  for (int i = 0; i < corrupt::corruption_count; ++i)
    names.emplace_back(corrupt::name_of(Corruption(i)));
  return names;
}

std::vector<Corruption> named(const std::string& text) {
  const auto names = all_names();
  std::vector<Corruption> all;
  for (const std::string& name : split(text, ',')) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw Misuse(
          fmt::format("--corrupt does not know '{}'{}", shown(name), suggestion(name, names)),
          "one of " + listed(names) + ", or several with commas");
    }
    for (const Corruption corruption : corrupt::corruptions_named(name)) {
      if (std::find(all.begin(), all.end(), corruption) == all.end()) all.push_back(corruption);
    }
  }
  return all;
}

}  // namespace

Flags harm_flags() {
  return {{"severity", "1|2|3|4|5|LIST", "1,2,3,4,5", harm_group, "how much, with commas between"},
          {"scale", "32|64|224", "the nearest to the images' side", harm_group,
           "whose numbers: those for CIFAR-10, Tiny ImageNet or ImageNet"},
          {"frost", "FILE", "", harm_group, "folder of pictures of frost, which frost needs"}};
}

std::vector<int> severities_of(const Words& words) {
  const std::string text = text_in(words, "severity");
  std::vector<int> severities;
  for (const std::string& part : split(text.empty() ? "1,2,3,4,5" : text, ',')) {
    const int severity = int(to_count(part));
    if (std::find(severities.begin(), severities.end(), severity) != severities.end())
      throw Misuse(fmt::format("--severity {} has {} twice", text, severity));
    severities.push_back(severity);
  }
  return severities;
}

Harm harm_of(const Words& words) {
  const std::string names = text_in(words, "corrupt"), scale = text_in(words, "scale");
  Harm harm{named(names.empty() ? "all" : names), severities_of(words), {}, {}};
  if (!scale.empty()) {
    harm.scale = scale == "32"   ? corrupt::Scale::px32
                 : scale == "64" ? corrupt::Scale::px64
                                 : corrupt::Scale::px224;
  }
  const auto& all = harm.corruptions;
  const bool frost = std::find(all.begin(), all.end(), Corruption::frost) != all.end();
  if (frost && words.count("frost") == 0) {
    throw Misuse("frost needs pictures of it: --frost FOLDER",
                 "ImageNet-C's are in its repository; without them --corrupt "
                 "noise,blur,snow,fog,brightness,digital");
  }
  if (frost) harm.frost = corrupt::read_frost(words.at("frost"));
  return harm;
}

VerbPage corrupt_page() {
  return {
      "corrupt",
      "Writes images as noise, blur, weather and compression leave them: ImageNet-C's corruptions.",
      {{"what they look like: a row a corruption, a column a severity",
        "foci corrupt data/fashion-mnist --corrupt noise,blur --sheet sheet.png"},
       {"sets to evaluate a model on, as ImageNet-C has them",
        "foci corrupt data/fashion-mnist --corrupt fog,contrast --severity 1,3,5 --out fog-c"},
       {"evaluate a run on all of them", "foci eval runs/a --corrupt all --frost frost"}},
      together({{{"out", "FILE", "", tensor_group,
                  "folder for the sets, CORRUPTION/SEVERITY in it, each a test split"},
                 {"sheet", "FILE", "", tensor_group,
                  "PNG file: the image as it is and at severities 1 to 5, a row a corruption"},
                 {"split", "train|valid|test", "test", tensor_group, "of the set"},
                 {"count", "COUNT", "all", tensor_group, "images of the set, the first ones"},
                 {"side", "COUNT", "as they are", tensor_group,
                  "pixels a side that images are resized and cut to"},
                 {"image", "COUNT", "0", tensor_group, "the one on the sheet"},
                 {"corrupt", "KEY", "all", harm_group,
                  "names with commas between; all are the benchmark's 15, extra the other 4"}},
                harm_flags(),
                common_flags()}),
      "DATA",
      "folder of a set of images, or the name of a known one",
      {"Names: gaussian_noise, shot_noise, impulse_noise (together: noise); defocus_blur, "
       "glass_blur, motion_blur, zoom_blur (blur); snow, frost, fog, brightness (weather); "
       "contrast, elastic_transform, pixelate, jpeg_compression (digital); speckle_noise, "
       "gaussian_blur, spatter, saturate (extra).",
       "Sets are written as IDX where images are grey, as CIFAR's binary where they are "
       "32 x 32 in ten classes, else as PNG files. The same --seed gives the same images, "
       "whatever the threads; docs/corrupt.md has the numbers."}};
}

int run(const Corrupt& verb) {
  const std::string sheet = text_in(verb.words, "sheet"), out = text_in(verb.words, "out");
  const Harm harm = harm_of(verb.words);
  const std::string split = text_in(verb.words, "split");
  const data::ImageSet set =
      data::open_images(data_folder(verb.data), split_of(split.empty() ? "test" : split));
  const data::Image image = image_of(set, verb.words);
  const corrupt::How how = how_of(verb, harm, image);
  if (!sheet.empty()) {
    static const std::vector<std::string> columns = {"as it is",   "severity 1", "severity 2",
                                                     "severity 3", "severity 4", "severity 5"};
    const data::Image images = corrupt::contact_sheet(image, harm.corruptions, how);
    data::write_png(sheet, report::named_sheet(images, names_of(harm.corruptions), columns));
  }
  if (!out.empty()) write_all(verb, harm, set);
  constexpr int pixels[] = {32, 64, 224};
  const std::int64_t count = std::min(set.size(), count_of(verb.words, "count", set.size()));
  if (verb.common.json) {
    print_json({{"data", verb.data},
                {"out", out},
                {"sheet", sheet},
                {"corruptions", names_of(harm.corruptions)},
                {"severities", harm.severities},
                {"scale", pixels[int(how.scale)]},
                {"count", count},
                {"seed", verb.common.seed},
                {"threads", Executor(verb.common.threads).threads()},
                {"sheet_sha256", sheet.empty() ? "" : data::sha256_of_file(sheet)}});
    return 0;
  }
  if (verb.common.quiet) return 0;
  if (!sheet.empty()) {
    fmt::print("{}: rows from the top are", sheet);
    for (const Corruption corruption : harm.corruptions)
      fmt::print(" {}", corrupt::name_of(corruption));
    fmt::print("\n");
  }
  if (!out.empty()) {
    fmt::print("{}: {} sets of {} images, with the numbers for {} pixels\n", out,
               harm.corruptions.size() * harm.severities.size(), count, pixels[int(how.scale)]);
  }
  return 0;
}

}  // namespace foci::cli
