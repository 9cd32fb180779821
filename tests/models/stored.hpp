// SPDX-License-Identifier: Apache-2.0
// Models that are stored beside their tests, written out as the files that a reader meets, in a
// folder that is gone after the test.
#pragma once

#include <foci/safetensors.hpp>

#include <ATen/ATen.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

namespace foci::models {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    static int made = 0;
    path_ = fs::temp_directory_path() /
            ("foci-models-" + std::to_string(getpid()) + "-" + std::to_string(made++));
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string at(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

class Stored {
 public:
  explicit Stored(const std::string& name) : file_(FOCI_SOURCE_DIR "/tests/models/" + name) {}

  at::Tensor tensor(const char* name) const {
    const View view = file_.find(name);
    const auto type = view.dtype == DType::i64 ? at::kLong : at::kFloat;
    return at::from_blob(view.data, at::IntArrayRef(view.shape.data(), std::size_t(view.rank)),
                         at::TensorOptions().dtype(type));
  }
  const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }
  /// A tensor of bytes as a file.
  std::string write_bytes(const char* name) const {
    const View view = file_.find(name);
    std::ofstream(folder_.at(name), std::ios::binary)
        .write(static_cast<const char*>(view.data), view.count());
    return folder_.at(name);
  }
  /// A folder with model.safetensors and, unless it is empty, config.json.
  std::string write_gpt2(
      const std::string& prefix, const std::string& config = R"({"n_head":2})",
      const std::function<void(std::map<std::string, View>&)>& change = [](auto&) {}) const {
    std::map<std::string, View> tensors;
    for (const std::string& name : file_.names()) {
      if (name != "tokens" && name != "logits") tensors[prefix + name] = file_.find(name);
    }
    change(tensors);
    write_safetensors(folder_.at("model.safetensors"), tensors);
    fs::remove(folder_.at("config.json"));
    if (!config.empty()) std::ofstream(folder_.at("config.json")) << config;
    return folder_.at("");
  }
  /// A message without the folder.
  std::string bare(std::string message) const {
    const std::size_t at = message.find(folder_.at(""));
    return at == message.npos ? message : message.erase(at, folder_.at("").size());
  }

 private:
  Folder folder_;
  Safetensors file_;
};

/// Unpacks stories260k.tar.xz of `data`; the folder's name, empty where it is not there.
inline std::string unpacked_stories(const std::string& data) {
  static const Folder folder;
  const std::string pack = data + "/stories260k.tar.xz";
  if (!fs::exists(pack)) return {};
  const std::string command = "tar -xf '" + pack + "' -C '" + folder.at("") + "'";
  return std::system(command.c_str()) == 0 ? folder.at("stories260k") : std::string();
}

}  // namespace foci::models
