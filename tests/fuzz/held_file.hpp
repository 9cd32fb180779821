// SPDX-License-Identifier: Apache-2.0
// A file for readers that take a path: it lies in memory and is written over, not made anew.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

class HeldFile {
 public:
  /// Of no folder.
  HeldFile() : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (file_ < 0) std::abort();
    path_ = "/proc/self/fd/" + std::to_string(file_);
  }
  explicit HeldFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ < 0) std::abort();
  }
  ~HeldFile() { ::close(file_); }
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  /// Its path; it holds these bytes and no others.
  const std::string& with(std::string_view bytes) {
    const ssize_t size = ssize_t(bytes.size());
    if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, bytes.data(), bytes.size(), 0) != size)
      std::abort();
    return path_;
  }

 private:
  std::string path_;
  int file_ = -1;
};
