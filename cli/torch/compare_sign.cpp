// SPDX-License-Identifier: Apache-2.0
// Holding, saying and hearing by files.
#include "cli/torch/compare_sign.hpp"

#include "cli/machine.hpp"
#include "cli/run_facts.hpp"
#include "cli/suggest.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

namespace foci::cli {
namespace {

constexpr auto beat_every = std::chrono::seconds(1);
constexpr double longest_gap = 1;  // between two looks, in seconds; more is sleep
constexpr auto try_every = std::chrono::milliseconds(50);

struct flock whole_file() {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return whole;
}

}  // namespace

Hold::Hold(const std::string& path, const std::string& taken, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto refuse = [&] {
    const std::string why = std::generic_category().message(errno);
    const bool there = file_ >= 0, others = errno == EACCES || errno == EAGAIN;
    if (there) ::close(file_);
    if (there && others) throw FileError(taken);
    throw FileError(
        fmt::format("{}: cannot be {}: {}", shown(path), there ? "locked" : "written", why));
  };
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) refuse();
  struct flock whole = whole_file();
  while (::fcntl(file_, F_SETLK, &whole) != 0) {
    if (std::chrono::duration<double>(Clock::now() - begin).count() >= seconds) refuse();
    std::this_thread::sleep_for(try_every);
  }
}

Hold::~Hold() { ::close(file_); }

void Hold::tell(const std::string& text) const {
  if (::ftruncate(file_, 0) == 0) static_cast<void>(!::pwrite(file_, text.data(), text.size(), 0));
}

bool Hold::is_taken(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  struct flock whole = whole_file();
  const bool taken = ::fcntl(file, F_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  ::close(file);
  return taken;
}

std::string this_boot() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.empty() ? this_host() : id;
}

std::string drawn_name() {
  std::random_device draw;
  return fmt::format("{:08x}{:08x}", draw(), draw());
}

Sign::Sign(std::string path, Json said) : path_(std::move(path)), said_(std::move(said)) {
  write();
  thread_ = std::thread([this] {
    std::unique_lock hold(guard_);
    while (!ends_.wait_for(hold, beat_every, [this] { return over_; })) write();
  });
}

Sign::~Sign() {
  {
    const std::lock_guard hold(guard_);
    over_ = true;
  }
  ends_.notify_all();
  thread_.join();
}

void Sign::say(const Json& said) {
  const std::lock_guard hold(guard_);
  if (said == said_) return;
  said_ = said;
  write();
}

void Sign::write() {
  Json all = said_;
  all["beat"] = ++beat_;
  all["boot"] = this_boot();
  try {
    write_whole(path_, all.dump() + "\n");
  } catch (const FileError&) {  // nothing is lost by it but the sign
  }
}

Heard::Heard(std::string path, std::string hold) : path_(std::move(path)), hold_(std::move(hold)) {}

const Json& Heard::look() {
  held_ = Hold::is_taken(hold_);  // first: what was said before letting go is then heard
  // A network's file system looks for news of a name when the folder is read.
  std::error_code none;
  std::filesystem::directory_iterator(std::filesystem::path(path_).parent_path(), none);
  const auto now = Clock::now();
  silence_ += std::min(std::chrono::duration<double>(now - last_).count(), longest_gap);
  last_ = now;
  Json said = read_json(path_);
  if (!said.is_object()) return said_;
  const Json beat = Json::array({said.value("name", ""), said.value("beat", std::int64_t(0))});
  if (beat != beat_) {
    moved_ = moved_ || !beat_.is_null();
    silence_ = 0;
  }
  beat_ = beat;
  near_ = said.value("boot", "") == this_boot();
  said_ = std::move(said);
  return said_;
}

}  // namespace foci::cli
