// SPDX-License-Identifier: Apache-2.0
// Writing a result so that neither a full disk nor Ctrl-C leaves half of it.
#include "cli/write.hpp"

#include "cli/suggest.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace foci::cli {
namespace {

volatile std::sig_atomic_t waiting = 0;

void remember(int signal) { waiting = signal; }

/// Holds back the signals that end a program, for the whole process, and delivers the last one
/// afterwards.
class Undisturbed {
 public:
  Undisturbed() {
    waiting = 0;
    struct sigaction hold {};
    hold.sa_handler = remember;
    sigemptyset(&hold.sa_mask);
    hold.sa_flags = SA_RESTART;
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &hold, &before_[i]);
  }
  ~Undisturbed() {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
    if (waiting != 0) std::raise(waiting);
  }
  Undisturbed(const Undisturbed&) = delete;
  Undisturbed& operator=(const Undisturbed&) = delete;

 private:
  static constexpr std::array signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  std::array<struct sigaction, signals.size()> before_{};
};

}  // namespace

void check_writable(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code fault;
  const fs::path target(path);
  const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
  if (!fs::is_directory(folder, fault)) {
    throw FileError(fmt::format("{}: cannot be written: there is no folder {}", shown(path),
                                shown(folder.string())));
  }
  if (fs::is_directory(target, fault)) {
    throw FileError(fmt::format("{}: cannot be written: it is a directory", shown(path)));
  }
}

void write_result(const std::string& path, const std::map<std::string, Tensor>& tensors,
                  const std::map<std::string, std::string>& metadata) {
  std::map<std::string, View> views;
  for (const auto& [name, tensor] : tensors) views[name] = tensor.view();
  const Undisturbed undisturbed;
  write_safetensors(path, views, metadata);
}

void write_whole(const std::string& path, const std::string& text) {
  const std::string other = path + ".part";
  std::ofstream file(other, std::ios::trunc | std::ios::binary);
  file << text << std::flush;
  std::error_code fault(errno, std::generic_category());
  if (file) std::filesystem::rename(other, path, fault);
  if (!file || fault)
    throw FileError(fmt::format("{}: cannot be written: {}", shown(path), fault.message()));
}

void write_picture(const std::string& path, const std::string& svg) {
  std::ofstream file(path, std::ios::binary);
  file << svg;
  file.close();
  if (!file) throw FileError(fmt::format("{}: cannot be written", shown(path)));
}

}  // namespace foci::cli
