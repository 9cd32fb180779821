// SPDX-License-Identifier: Apache-2.0
// Hostile checkpoints: the first byte picks a whole torch file, its pickle alone, or safetensors
// whose tensors get timm's names for those of Hugging Face's ViT. What is not refused in one line
// can be copied, every number of it.
#include "data/pickle.hpp"
#include "data/torch_file.hpp"
#include "fuzz/refusals.hpp"

#include <foci/convert.hpp>
#include <foci/safetensors.hpp>

using namespace foci::data;

namespace {

void copy_all(const std::map<std::string, foci::View>& tensors) {
  for (const auto& [name, view] : tensors) {
    const foci::Tensor copy = foci::Tensor::copy(view, view.dtype);
    touch({copy.data<std::byte>(), std::size_t(view.count()) * foci::size_of(view.dtype)});
  }
}

/// A refusal here names the tensor; which file it was, the command says.
void rename(ByteView file) {
  try {
    const auto held = std::make_shared<foci::Safetensors>(file, "fuzz");
    Checkpoint checkpoint{
        .format = {}, .taken = {}, .left = {}, .tensors = {}, .metadata = {}, .memory = held};
    for (const std::string& name : held->names()) checkpoint.tensors[name] = held->find(name);
    strip_wrappers(checkpoint);
    rename_hf_vit(checkpoint);
    copy_all(checkpoint.tensors);
  } catch (const foci::Error& error) {
    require_line(error.what());
  }
}

void read(std::size_t reader, ByteView file) {
  if (reader == 2) return rename(file);
  if (reader == 1) {
    const Pickle pickle = read_pickle(file, 0, "fuzz");
    require(pickle.top < pickle.values.size() && pickle.end <= file.size(), "a pickle has a value");
    return;
  }
  if (!is_zip(file) && !is_early_torch(file)) return;
  copy_all(parse_torch(file, "fuzz", "").tensors);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  foci::set_warning_handler([](std::string_view) {});  // every checksum is wrong here
  if (size == 0) return 0;
  static Readers readers({"torch file (.pt)", "pickle", "names of Hugging Face's ViT"});
  const std::size_t reader = readers.picked_by(data[0]);
  refusals_are_told([&] { read(reader, std::as_bytes(std::span(data + 1, size - 1))); });
  return 0;
}
