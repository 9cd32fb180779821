// SPDX-License-Identifier: Apache-2.0
// A folder that is gone after the test, files made in it, and what a call says of a bad one.
#pragma once

#include <foci/data.hpp>
#include <foci/error.hpp>

#include "thrown.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace foci::data {

inline const std::string golden = FOCI_SOURCE_DIR "/tests/data/golden/";

class InFolder : public testing::Test {
 protected:
  InFolder()
      : folder_((std::filesystem::temp_directory_path() /
                 ("foci-data-" + std::to_string(getpid()) + "-" +
                  testing::UnitTest::GetInstance()->current_test_info()->name()))
                    .string()) {
    std::filesystem::create_directories(folder_);
  }
  ~InFolder() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  std::string made(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(at(name)).parent_path());
    std::ofstream(at(name), std::ios::binary) << bytes;
    return at(name);
  }
  /// The message without the folder's name in it.
  template <class F>
  std::string fault(F&& f) const {
    return bare(thrown<FileError>(f));
  }
  std::string bare(std::string message) const {
    for (std::size_t at = 0; (at = message.find(folder_ + "/")) != std::string::npos;) {
      message.erase(at, folder_.size() + 1);
    }
    return message;
  }

  const std::string folder_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Four bytes, the largest first, as IDX writes them.
inline std::string big(std::uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += char(number >> shift & 0xff);
  return bytes;
}

inline std::string idx_images(std::uint32_t count, std::uint32_t height, std::uint32_t width) {
  std::string bytes = big(0x803) + big(count) + big(height) + big(width);
  for (std::uint32_t i = 0; i < count * height * width; ++i) bytes += char(i * 5 % 251);
  return bytes;
}

inline std::string idx_labels(const std::string& labels) {
  return big(0x801) + big(std::uint32_t(labels.size())) + labels;
}

}  // namespace foci::data
