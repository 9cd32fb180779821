// SPDX-License-Identifier: Apache-2.0
// Opens a safetensors file by mapping it and hands out views of the mapping; a tensor that lies
// misaligned for its type is copied on first use. A file that another program shortens while it is
// mapped is not guarded against.
#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>

#include "safetensors/header.hpp"

namespace foci {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using safetensors::Entry;
using safetensors::in_quotes;

/// Closes what it holds.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return number_; }

 private:
  int number_;
};

/// A whole file in memory, read-only.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() {
    if (data_) ::munmap(data_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> open(const std::string& path, const std::string& shown);

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

std::span<const std::byte> Mapping::open(const std::string& path, const std::string& shown) {
  const auto fail = [&](const std::string& fault) { throw FileError(shown + ": " + fault); };
  const auto reason = [] { return std::generic_category().message(errno); };
  // Not to wait for a writer when the path is a pipe.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (file < 0 || ::fstat(file, &facts) != 0) fail("cannot be opened: " + reason());
  if (S_ISDIR(facts.st_mode)) fail("is a directory; it needs a safetensors file");
  if (!S_ISREG(facts.st_mode)) fail("is a pipe or device; it needs a file that can be mapped");
  if (facts.st_size == 0) fail("is empty; it needs a safetensors file");
  size_ = std::size_t(facts.st_size);
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) fail("cannot be mapped: " + reason());
  data_ = data;
  return {static_cast<const std::byte*>(data_), size_};
}

}  // namespace

struct Safetensors::Contents {
  std::string path;  // fit for messages
  Mapping mapping;
  safetensors::Header header;
  const std::byte* data = nullptr;

  std::mutex lock;  // guards copies
  std::map<const Entry*, Tensor> copies;

  void read(std::span<const std::byte> bytes);
  View view_of(const std::string& name, const Entry& entry);
};

void Safetensors::Contents::read(std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length) {
    throw FileError(path + ": has " + std::to_string(bytes.size()) +
                    " bytes; a safetensors file needs at least 8");
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > safetensors::max_header_bytes) {
    throw FileError(path + ": says its header has " + std::to_string(length) +
                    " bytes; at most 100000000 are allowed; is it a safetensors file?");
  }
  const std::size_t rest = bytes.size() - sizeof length;
  if (length > rest) {
    throw FileError(path + ": says its header has " + std::to_string(length) + " bytes, but only " +
                    std::to_string(rest) + " follow");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof length);
  data = bytes.data() + sizeof length + length;
  header = safetensors::read_header({text, std::size_t(length)}, rest - length, path);
}

View Safetensors::Contents::view_of(const std::string& name, const Entry& entry) {
  const auto subject = [&] { return path + ": tensor " + in_quotes(name); };
  if (!entry.kind->dtype) {
    throw Unsupported(subject() + " is of type " + std::string(entry.kind->name) +
                      "; foci holds F64, F32, BF16, F16, I64, I32, U8 and BOOL");
  }
  if (entry.rank > max_rank) {
    throw Unsupported(subject() + " has " + std::to_string(entry.rank) +
                      " axes; foci holds at most " + std::to_string(max_rank));
  }
  const DType dtype = *entry.kind->dtype;
  const std::byte* const begin = data + entry.begin;
  const std::byte* const end = data + entry.end;
  if (dtype == DType::boolean) {
    const auto* odd = std::find_if(begin, end, [](std::byte b) { return b > std::byte{1}; });
    if (odd != end) {
      throw FileError(subject() + " is BOOL, but its byte " + std::to_string(odd - begin) + " is " +
                      std::to_string(int(*odd)) + "; it needs 0 or 1");
    }
  }
  // A scalar is shown as one element: a view of rank 0 would mean "absent".
  constexpr std::int64_t one[] = {1};
  std::span<const std::int64_t> shape = one;
  if (entry.rank > 0) shape = std::span(entry.shape).first(std::size_t(entry.rank));
  if (reinterpret_cast<std::uintptr_t>(begin) % size_of(dtype) == 0) {
    return View(begin, dtype, shape);
  }
  const std::lock_guard guard(lock);
  Tensor& copy = copies[&entry];
  if (!copy) {
    copy = Tensor(dtype, shape);
    std::memcpy(copy.data<std::byte>(), begin, std::size_t(end - begin));
  }
  return copy.view();
}

Safetensors::Safetensors(const std::string& path) : contents_(std::make_unique<Contents>()) {
  contents_->path = safetensors::printable(path);
  contents_->read(contents_->mapping.open(path, contents_->path));
}

Safetensors::Safetensors(std::span<const std::byte> bytes, const std::string& name)
    : contents_(std::make_unique<Contents>()) {
  contents_->path = safetensors::printable(name);
  contents_->read(bytes);
}

Safetensors::~Safetensors() = default;
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> result;
  result.reserve(contents_->header.tensors.size());
  for (const auto& [name, entry] : contents_->header.tensors) result.push_back(name);
  return result;
}

bool Safetensors::contains(std::string_view name) const {
  return contents_->header.tensors.contains(name);
}

View Safetensors::find(std::string_view name) const {
  const auto at = contents_->header.tensors.find(name);
  return at == contents_->header.tensors.end() ? View() : contents_->view_of(at->first, at->second);
}

const std::map<std::string, std::string>& Safetensors::metadata() const {
  return contents_->header.metadata;
}

}  // namespace foci
