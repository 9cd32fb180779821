// SPDX-License-Identifier: Apache-2.0
// A lock of the system's on a file in the folder, which holds the owner's name for others to read.
#include <foci/run_lock.hpp>

#include <foci/error.hpp>

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <system_error>

namespace foci::train {
namespace {

namespace fs = std::filesystem;

std::string reason() { return std::generic_category().message(errno); }

std::string owner_in(const std::string& path) {
  std::string text;
  std::getline(std::ifstream(path) >> std::ws, text);
  return text.empty() ? "another process" : text;
}

}  // namespace

struct RunLock::Held {
  int file = -1;

  explicit Held(const std::string& path) {
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) throw FileError(fmt::format("{}: cannot be written: {}", path, reason()));
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) {
      tell();
      return;
    }
    const bool taken = errno == EWOULDBLOCK;
    const std::string why = reason();
    ::close(file);
    throw FileError(taken ? fmt::format("{}: {} trains into this folder", path, owner_in(path))
                          : fmt::format("{}: cannot be locked: {}", path, why));
  }
  ~Held() { ::close(file); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  /// Best effort: a full disk shows where something is lost by it.
  void tell() const {
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    const std::string name = fmt::format("process {} on {}\n", ::getpid(), host);
    if (::ftruncate(file, 0) == 0) static_cast<void>(!::pwrite(file, name.data(), name.size(), 0));
  }
};

RunLock::RunLock(const std::string& folder) {
  static std::mutex guard;
  static std::map<std::string, std::weak_ptr<Held>> all;
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault) throw FileError(fmt::format("{}: {}", folder, fault.message()));
  const std::string place = fs::weakly_canonical(folder, fault).string();
  const std::lock_guard hold(guard);
  std::weak_ptr<Held>& known = all[place];
  held_ = known.lock();
  if (!held_) known = held_ = std::make_shared<Held>(folder + "/lock");
}

}  // namespace foci::train
