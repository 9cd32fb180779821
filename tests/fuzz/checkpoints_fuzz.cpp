// SPDX-License-Identifier: Apache-2.0
// Hostile checkpoints: the first byte picks a whole torch file or its pickle alone. What is not
// refused in one line can be copied, every number of it.
#include "data/pickle.hpp"
#include "data/torch_file.hpp"
#include "fuzz/refusals.hpp"

using namespace foci::data;

namespace {

void read(std::size_t reader, ByteView file) {
  if (reader == 1) {
    const Pickle pickle = read_pickle(file, 0, "fuzz");
    require(pickle.top < pickle.values.size() && pickle.end <= file.size(), "a pickle has a value");
    return;
  }
  if (!is_zip(file) && !is_early_torch(file)) return;
  for (const auto& [name, view] : parse_torch(file, "fuzz", "").tensors) {
    const foci::Tensor copy = foci::Tensor::copy(view, view.dtype);
    touch({copy.data<std::byte>(), std::size_t(view.count()) * foci::size_of(view.dtype)});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  foci::set_warning_handler([](std::string_view) {});  // every checksum is wrong here
  if (size == 0) return 0;
  static Readers readers({"torch file (.pt)", "pickle"});
  const std::size_t reader = readers.picked_by(data[0]);
  refusals_are_told([&] { read(reader, std::as_bytes(std::span(data + 1, size - 1))); });
  return 0;
}
