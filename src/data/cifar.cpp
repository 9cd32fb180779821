// SPDX-License-Identifier: Apache-2.0
// The binary version of CIFAR-10 and CIFAR-100: records of one or two label bytes and 3 x 32 x 32
// bytes, a colour after the other; they are turned into interleaved pixels.
#include "data/image_set.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

namespace foci::data {
namespace {

constexpr std::int64_t side = 32, plane = side * side;

std::int64_t labels_in(Cifar cifar) { return cifar == Cifar::ten ? 1 : 2; }
int classes_in(Cifar cifar) { return cifar == Cifar::ten ? 10 : 100; }
std::int64_t record_of(Cifar cifar) { return labels_in(cifar) + 3 * plane; }

std::vector<std::string> names_of(Cifar cifar) {
  if (cifar == Cifar::hundred) return numbered_classes(100);
  return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
}

void append(ImageSet::Contents& to, ByteView bytes, Cifar cifar) {
  const std::int64_t first = to.ends.empty() ? 0 : to.ends.back();
  const std::int64_t count = std::int64_t(bytes.size()) / record_of(cifar);
  const auto* record = reinterpret_cast<const std::uint8_t*>(bytes.data());
  for (std::int64_t i = 0; i < count; ++i, record += record_of(cifar)) {
    to.labels.push_back(record[labels_in(cifar) - 1]);
    const std::uint8_t* planes = record + labels_in(cifar);
    auto* pixel = to.pixels->view().at<std::uint8_t>({first + i, 0, 0, 0});
    for (std::int64_t p = 0; p < plane; ++p) {
      for (std::int64_t c = 0; c < 3; ++c) *pixel++ = planes[c * plane + p];
    }
  }
  to.ends.push_back(first + count);
}

}  // namespace

std::int64_t check_cifar(ByteView bytes, const std::string& name, Cifar cifar) {
  const std::int64_t record = record_of(cifar), size = std::int64_t(bytes.size());
  if (size == 0 || size % record != 0) {
    refuse(name, fmt::format("has {} bytes, which end inside record {}; it needs whole records of "
                             "{} and at least one",
                             size, size / record, record));
  }
  const std::int64_t at = labels_in(cifar) - 1;
  for (std::int64_t i = 0; i < size / record; ++i) {
    const int label = int(bytes[std::size_t(i * record + at)]);
    if (label < classes_in(cifar)) continue;
    refuse(name, fmt::format("has label {} at byte {} (record {}); it needs 0 to {}", label,
                             i * record + at, i, classes_in(cifar) - 1));
  }
  return size / record;
}

ImageSet read_cifar(const std::vector<std::string>& files, Cifar cifar) {
  if (files.empty()) throw InvalidArgument("read_cifar got no files; it needs at least one");
  std::vector<Bytes> bytes;
  std::int64_t count = 0;
  for (const std::string& file : files) {
    bytes.push_back(read_maybe_gzip(file));
    count += check_cifar(bytes.back(), file, cifar);
  }
  ImageSet::Contents all;
  all.classes = names_of(cifar);
  all.pixels = std::make_shared<const Tensor>(Tensor(DType::u8, {count, side, side, 3}));
  for (const Bytes& part : bytes) append(all, part, cifar);
  all.parts = files;
  return set_of(std::move(all));
}

}  // namespace foci::data
