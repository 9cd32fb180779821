// SPDX-License-Identifier: Apache-2.0
// Safetensors files put together by hand, right or wrong, and a folder that is gone after the test.
#pragma once

#include <foci/safetensors.hpp>

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace foci {

/// The eight bytes of a header's length.
inline std::string length_bytes(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

inline std::string made_file(std::string_view header, std::string_view data = {}) {
  return length_bytes(header.size()) + std::string(header) + std::string(data);
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_all(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string contents_of(const View& view) {
  return {static_cast<const char*>(view.data), std::size_t(view.count()) * size_of(view.dtype)};
}

/// Permissions do not bind root: lays the rank down, if there is one, for as long as it lives.
class AsNobody {
 public:
  AsNobody() {
    if (root_) {
      EXPECT_EQ(seteuid(65534), 0);
    }
  }
  ~AsNobody() {
    if (root_) {
      EXPECT_EQ(seteuid(0), 0);
    }
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  const bool root_ = geteuid() == 0;
};

/// An empty folder for each test.
class InFolder : public testing::Test {
 protected:
  InFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "foci-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~InFolder() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder() const { return folder_; }
  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }
  std::size_t files_in_folder() const {
    const std::filesystem::directory_iterator files(folder_);
    return std::size_t(std::distance(begin(files), end(files)));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace foci
