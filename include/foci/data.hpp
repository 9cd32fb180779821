// SPDX-License-Identifier: Apache-2.0
// Data sets as plain tensors and bytes: readers of the official formats of images, masks, text and
// time series. No torch. What is wrong with a file is told in one line with file and place.
#pragma once

#include <foci/export.h>
#include <foci/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci::data {

/// Rows from the top, channels interleaved: pixels are (height, width, channels).
struct FOCI_API Image {
  int height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> pixels;

  Image() = default;
  Image(int height, int width, int channels);  ///< black
  std::uint8_t* at(int y, int x) { return pixels.data() + (std::size_t(y) * width + x) * channels; }
  const std::uint8_t* at(int y, int x) const {
    return pixels.data() + (std::size_t(y) * width + x) * channels;
  }
  bool operator==(const Image&) const = default;
};

/// What this build decodes: "jpeg", "png"; and whether it reads .gz.
FOCI_API std::vector<std::string> image_formats();
FOCI_API bool reads_gzip();

/// A JPEG or PNG file as RGB, what it is told by its first bytes. Alpha is dropped, EXIF's turn is
/// not applied (as PIL's convert("RGB")). A truncated or corrupt file throws FileError.
FOCI_API Image read_image(const std::string& path);
/// The same from memory; `name` stands for the path in messages.
FOCI_API Image decode_image(std::span<const std::byte> bytes, const std::string& name);
/// A PNG of one channel: grey values or palette indices as they are stored.
FOCI_API Image read_mask(const std::string& path);
FOCI_API Image decode_mask(std::span<const std::byte> bytes, const std::string& name);
/// One or three channels; the whole file or nothing.
FOCI_API void write_png(const std::string& path, const Image& image);

enum class Split { train, valid, test };
FOCI_API std::string_view name_of(Split split);

/// In a mask: a pixel without a class, not to be counted.
inline constexpr std::uint8_t ignored = 255;

/// Images with a class each, or with a mask each, in memory or in files. May be read from several
/// threads at once. Copies share the pixels.
class FOCI_API ImageSet {
 public:
  std::int64_t size() const;
  const std::vector<std::string>& classes() const;
  bool has_masks() const;
  int label(std::int64_t index) const;  ///< its class; -1 where there is a mask instead
  Image image(std::int64_t index) const;
  Image mask(std::int64_t index) const;  ///< (height, width, 1): classes and `ignored`
  /// "cat/17.jpg", "train-images-idx3-ubyte.gz #17": for messages.
  std::string name(std::int64_t index) const;
  /// (N, H, W, C) u8 of a set in memory; absent when the images are in files.
  View pixels() const;

  struct Contents;
  explicit ImageSet(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}
  const Contents& contents() const { return *contents_; }

 private:
  const Contents& at(std::int64_t index) const;
  std::shared_ptr<const Contents> contents_;
};

/// IDX of Yann LeCun's MNIST: u8 images (N, H, W) and labels (N), plain or .gz.
FOCI_API ImageSet read_idx(const std::string& images, const std::string& labels);

/// The binary version of CIFAR: one label byte a record, or a coarse and a fine one of which the
/// fine one is taken.
enum class Cifar { ten, hundred };
FOCI_API ImageSet read_cifar(const std::vector<std::string>& files, Cifar cifar);

/// A folder for each class, sorted by name; in it JPEG and PNG files at any depth.
FOCI_API ImageSet read_image_folder(const std::string& folder);

/// How a mask's bytes become classes: value first + c is class c, those in `unlabelled` are
/// ignored, any other is refused with its place.
struct FOCI_API MaskRule {
  std::vector<std::string> classes;
  int first = 0;
  std::vector<int> unlabelled;
};
/// CamVid as SegNet gave it out: 11 classes, 11 = unlabelled.
FOCI_API MaskRule camvid_rule();
/// ADE20K's scene parsing: 150 classes from 1 on, 0 = unlabelled. `names` may be objectInfo150.csv.
FOCI_API MaskRule ade20k_rule(const std::string& names = {});
/// Every image has a mask of the same stem in the other folder.
FOCI_API ImageSet read_mask_folder(const std::string& images, const std::string& masks,
                                   const MaskRule& rule);

/// Finds out what a folder holds: IDX, CIFAR-10/100, folders of classes, CamVid's or ADE20K's
/// layout; `classes.txt` in it may name the classes. Throws FileError that lists what it looked
/// for.
FOCI_API ImageSet open_images(const std::string& folder, Split split);

/// Lower-case hexadecimal.
FOCI_API std::string sha256_of_file(const std::string& path);
FOCI_API std::string sha256_of_text(std::string_view text);

/// Tells one set from another: a file's own sum, or that of a line for each file of a folder, "sum
/// name", in order of names. Above `limit` bytes a line has the file's size in place of its sum.
struct Fingerprint {
  std::string sha256;
  bool read = true;  ///< false: the files were too much to read, sizes alone were seen
};
FOCI_API Fingerprint fingerprint_of(const std::string& path, std::int64_t limit = 4LL << 30);

}  // namespace foci::data
