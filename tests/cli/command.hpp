// SPDX-License-Identifier: Apache-2.0
// Runs the built command and gives back its exit status and both outputs; makes and reads the files
// it is tested with. Everything lives in a folder of its own that is gone afterwards.
#pragma once

#include <foci/safetensors.hpp>
#include <foci/tensor.hpp>

#include <nlohmann/json.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace cli_test {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

inline const std::string program = FOCI_BINARY_DIR "/foci";
inline const std::string golden_folder = FOCI_SOURCE_DIR "/tests/golden";

/// A folder that goes away with the program.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("foci-cli-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

inline const Folder& folder() {
  static const Folder folder;
  return folder;
}

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

struct Ran {
  int status = -1;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

inline Ran run_shell(const std::string& command) {
  const std::string out = folder().file("stdout"), err = folder().file("stderr");
  const int status = std::system(("( " + command + " ) > " + out + " 2> " + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(out), read(err)};
}

inline Ran run_foci(const Words& words) {
  std::string command = quoted(program);
  for (const std::string& word : words) (command += ' ') += quoted(word);
  return run_shell(command);
}

inline Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A tensor of small numbers that differ from one another.
inline foci::Tensor numbers(const foci::Shape& shape, double phase = 0) {
  foci::Tensor tensor(foci::DType::f32, shape);
  for (std::int64_t i = 0; i < tensor.view().count(); ++i) {
    tensor.data<float>()[i] =
        float(std::sin(0.7 * double(i) + phase) + 0.3 * std::cos(double(i * i)));
  }
  return tensor;
}

using Tensors = std::map<std::string, foci::Tensor>;

inline std::string save(const std::string& name, const Tensors& tensors,
                        const std::map<std::string, std::string>& metadata = {}) {
  std::map<std::string, foci::View> views;
  for (const auto& [key, tensor] : tensors) views[key] = tensor.view();
  const std::string path = folder().file(name);
  foci::write_safetensors(path, views, metadata);
  return path;
}

/// q, k, v, v_prev, do of B = 1, H = 2, G = 1, N = M = 9, D = E = 4.
inline Tensors plain_tensors() {
  Tensors tensors;
  tensors["q"] = numbers({1, 2, 9, 4}, 0.1);
  tensors["k"] = numbers({1, 1, 9, 4}, 0.2);
  tensors["v"] = numbers({1, 1, 9, 4}, 0.3);
  tensors["v_prev"] = numbers({1, 1, 9, 4}, 0.9);
  tensors["do"] = numbers({1, 2, 9, 4}, 0.5);
  return tensors;
}

}  // namespace cli_test
