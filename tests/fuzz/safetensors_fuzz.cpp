// SPDX-License-Identifier: Apache-2.0
// Hostile safetensors files: opening one either throws FileError in one line or gives views whose
// every byte may be read. Now and then what was read is written and must come back the same.
#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace {

constexpr int rounds_between_writes = 256;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

std::size_t bytes_of(const foci::View& view) {
  return std::size_t(view.count()) * foci::size_of(view.dtype);
}

/// Reads every byte, so that the sanitizer sees a view that leaves the file.
unsigned sum_of(const foci::View& view) {
  unsigned sum = 0;
  const auto* data = static_cast<const unsigned char*>(view.data);
  for (std::size_t i = 0; i < bytes_of(view); ++i) sum += data[i];
  return sum;
}

/// The views that can be had; the rest must be refused with a reason.
std::map<std::string, foci::View> views_of(const foci::Safetensors& file) {
  std::map<std::string, foci::View> views;
  for (const std::string& name : file.names()) {
    require(file.contains(name), "a listed name is contained");
    try {
      const foci::View view = file.find(name);
      require(bool(view), "a listed tensor is found");
      require(reinterpret_cast<std::uintptr_t>(view.data) % foci::size_of(view.dtype) == 0,
              "a view is aligned");
      require(view.contiguous(), "a view is row-major");
      volatile unsigned sink = sum_of(view);
      static_cast<void>(sink);
      views.emplace(name, view);
    } catch (const foci::Unsupported& error) {
      require(!std::strchr(error.what(), '\n'), "a message is one line");
    } catch (const foci::FileError& error) {
      require(!std::strchr(error.what(), '\n'), "a message is one line");
    }
  }
  return views;
}

void write_and_compare(const std::map<std::string, foci::View>& views,
                       const std::map<std::string, std::string>& metadata) {
  const char* folder = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
  static const std::string path =
      std::string(folder) + "/foci-fuzz-" + std::to_string(::getpid()) + ".safetensors";
  foci::write_safetensors(path, views, metadata);
  {
    const foci::Safetensors again(path);
    require(again.metadata() == metadata, "metadata come back");
    require(again.names().size() == views.size(), "every tensor comes back");
    for (const auto& [name, view] : views) {
      const foci::View back = again.find(name);
      require(back.dtype == view.dtype && back.rank == view.rank && back.shape == view.shape &&
                  std::memcmp(back.data, view.data, bytes_of(view)) == 0,
              "a tensor comes back the same");
    }
  }
  std::filesystem::remove(path);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static int until_write = 0;
  try {
    const foci::Safetensors file(std::as_bytes(std::span(data, size)), "fuzz");
    const std::map<std::string, foci::View> views = views_of(file);
    if (until_write-- > 0) return 0;
    until_write = rounds_between_writes;
    write_and_compare(views, file.metadata());
  } catch (const foci::FileError& error) {
    require(std::strncmp(error.what(), "fuzz: ", 6) == 0, "a message names the file");
    require(!std::strchr(error.what(), '\n'), "a message is one line");
  }
  return 0;
}
