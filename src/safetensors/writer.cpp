// SPDX-License-Identifier: Apache-2.0
// Writes a safetensors file so that its path holds the old file or the new one, whatever happens
// in between: all bytes go to a temporary neighbour, reach the disk, and only then take the name.
// A process that is killed may leave the neighbour (.foci-*.tmp) behind.
#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "safetensors/header.hpp"

namespace foci {
namespace {

namespace fs = std::filesystem;
using Item = std::pair<const std::string, View>;

[[noreturn]] void fail(const std::string& path, const std::string& fault) {
  throw FileError(safetensors::printable(path) + ": " + fault);
}

[[noreturn]] void fail_system(const std::string& path, int error) {
  fail(path, "cannot be written: " + std::generic_category().message(error));
}

[[noreturn]] void refuse(const std::string& path, const std::string& fault) {
  throw InvalidArgument(safetensors::printable(path) + ": " + fault);
}

/// A file beside the target that is gone again unless it takes the target's name.
class Temporary {
 public:
  /// `path` is what the caller wrote, for messages; `target` the file it leads to.
  Temporary(const std::string& path, const fs::path& target);
  ~Temporary();
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Syncs, closes, renames, syncs the folder.
  void become_target();

 private:
  void create(mode_t mode);
  void sync_folder();

  const std::string& path_;
  const fs::path target_, folder_;
  fs::path name_;  // empty: nothing to remove
  int file_ = -1;
};

Temporary::Temporary(const std::string& path, const fs::path& target)
    : path_(path),
      target_(target),
      folder_(target.has_parent_path() ? target.parent_path() : fs::path(".")) {
  struct stat facts {};
  const bool replaces = ::lstat(target_.c_str(), &facts) == 0;
  if (!replaces && errno != ENOENT) fail_system(path_, errno);
  if (replaces && S_ISDIR(facts.st_mode)) fail(path_, "cannot be written: it is a directory");
  if (replaces && !S_ISREG(facts.st_mode)) fail(path_, "cannot be written: it is not a plain file");
  // Renaming asks only the folder's permission; a file that is marked read-only stays as it is.
  if (replaces && ::faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0) {
    fail_system(path_, errno);
  }
  create(replaces ? 0600 : 0666);  // never open to more than the file it replaces
  if (replaces) ::fchmod(file_, facts.st_mode & 07777);
}

Temporary::~Temporary() {
  if (file_ >= 0) ::close(file_);
  if (!name_.empty()) ::unlink(name_.c_str());
}

void Temporary::create(mode_t mode) {
  static std::atomic<unsigned> counter = 0;
  const std::string stem = ".foci-" + std::to_string(::getpid()) + "-";
  do {
    name_ = folder_ / (stem + std::to_string(counter++) + ".tmp");
    file_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (file_ < 0 && errno == EEXIST);
  if (file_ < 0) fail_system(path_, errno);
}

void Temporary::write(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_system(path_, errno);
    next += written;
    bytes -= std::size_t(written);
  }
}

void Temporary::become_target() {
  if (::fsync(file_) != 0) fail_system(path_, errno);
  const int file = std::exchange(file_, -1);
  if (::close(file) != 0) fail_system(path_, errno);
  if (std::rename(name_.c_str(), target_.c_str()) != 0) fail_system(path_, errno);
  name_.clear();
  sync_folder();
}

/// The new name is on the disk only once the folder is. A folder that cannot be opened for
/// reading, or a file system without such a thing, is let be.
void Temporary::sync_folder() {
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  const int error = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  if (error == EIO || error == ENOSPC || error == EDQUOT) {
    fail(path_, "was written, but its folder could not be synced: " +
                    std::generic_category().message(error));
  }
}

/// Where the links lead, whether or not anything is there yet.
fs::path behind_links(const std::string& path) {
  fs::path target = path;
  if (!target.has_filename()) fail(path, "cannot be written: it needs the name of a file");
  constexpr int most_links = 40;
  for (int i = 0; i < most_links; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(target, error);
    if (error) return target;  // not a link
    target = target.parent_path() / next;
  }
  fail_system(path, ELOOP);
}

void check(const std::string& path, const std::string& name, const View& view) {
  const auto subject = [&] { return "tensor " + safetensors::in_quotes(name); };
  if (name == safetensors::metadata_key) {
    refuse(path, subject() + " has the name that the format keeps for metadata");
  }
  if (safetensors::find_invalid_utf8(name) != name.npos) {
    refuse(path, subject() + " has a name that is not valid UTF-8");
  }
  if (!view) refuse(path, subject() + " is absent; there is nothing to write");
  if (!view.data && view.count() > 0) refuse(path, subject() + " has no data");
}

/// Largest element first, so that every tensor is aligned for its type; then by name.
std::vector<const Item*> in_file_order(const std::map<std::string, View>& tensors) {
  std::vector<const Item*> order;
  order.reserve(tensors.size());
  for (const Item& item : tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return size_of(a->second.dtype) > size_of(b->second.dtype);
  });
  return order;
}

std::string header_of(const std::string& path, const std::vector<const Item*>& order,
                      const std::map<std::string, std::string>& metadata) {
  const auto json = [](const std::string& text) { return nlohmann::json(text).dump(); };
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::uint64_t offset = 0;
  for (const Item* item : order) {
    const View& view = item->second;
    const std::uint64_t end = offset + std::uint64_t(view.count()) * size_of(view.dtype);
    if (text.size() > 1) text += ',';
    text += json(item->first) + ":{\"dtype\":\"";
    text += safetensors::kind_of(view.dtype).name;
    text += "\",\"shape\":" + nlohmann::json(view.sizes()).dump();
    text += ",\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > safetensors::max_header_bytes) {
    fail(path, "cannot be written: its header would have " + std::to_string(text.size()) +
                   " bytes; at most 100000000 are allowed");
  }
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::map<std::string, View>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, view] : tensors) check(path, name, view);
  for (const auto& [key, value] : metadata) {
    if (safetensors::find_invalid_utf8(key) != key.npos ||
        safetensors::find_invalid_utf8(value) != value.npos) {
      refuse(path, "metadata " + safetensors::in_quotes(key) + " is not valid UTF-8");
    }
  }
  const std::vector<const Item*> order = in_file_order(tensors);
  const std::string header = header_of(path, order, metadata);
  const std::uint64_t length = header.size();

  Temporary file(path, behind_links(path));
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const Item* item : order) {
    const View& view = item->second;
    // Booleans are copied too: any byte that is not 0 is written as 1.
    const bool as_is = view.contiguous() && view.dtype != DType::boolean;
    const Tensor copy = as_is ? Tensor() : Tensor::copy(view, view.dtype);
    const void* data = as_is ? view.data : copy.view().data;
    file.write(data, std::size_t(view.count()) * size_of(view.dtype));
  }
  file.become_target();
}

}  // namespace foci
