// SPDX-License-Identifier: Apache-2.0
// A disk that fails: the calls the writer makes are replaced by ones that can be told to fail, so
// that every step is seen to leave the old file whole and nothing beside it.
#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "safetensors/made_file.hpp"
#include "thrown.hpp"

namespace {

/// The error each call is to fail with; 0: it works.
struct Faults {
  int fsync_file = 0, fsync_folder = 0, rename = 0;
};
Faults faults;

bool is_folder(int file) {
  struct stat facts {};
  return fstat(file, &facts) == 0 && S_ISDIR(facts.st_mode);
}

}  // namespace

extern "C" int fsync(int file) {
  errno = is_folder(file) ? faults.fsync_folder : faults.fsync_file;
  return errno != 0 ? -1 : int(syscall(SYS_fsync, file));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  errno = faults.rename;
  return errno != 0 ? -1 : int(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

namespace foci {
namespace {

class Fault : public InFolder {
 protected:
  Fault() {
    faults = {};
    write_all(path_, "old");
  }
  ~Fault() override { faults = {}; }

  std::string failure() const {
    return thrown<FileError>([&] { write_safetensors(path_, {{"x", tensor_}}); });
  }
  void expect_untouched() const {
    EXPECT_EQ(read_all(path_), "old");
    EXPECT_EQ(files_in_folder(), 1u);
  }

  const std::string path_ = in_folder("f");
  const Tensor tensor_ = Tensor(DType::f64, {100'000});
};

TEST_F(Fault, NoneAndTheFileIsReplaced) {
  write_safetensors(path_, {{"x", tensor_}});
  EXPECT_TRUE(Safetensors(path_).contains("x"));
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Fault, TheFileCannotBeSynced) {
  faults.fsync_file = EIO;
  EXPECT_EQ(failure(), path_ + ": cannot be written: Input/output error");
  expect_untouched();
}

TEST_F(Fault, TheFileCannotBeRenamed) {
  faults.rename = EXDEV;
  EXPECT_EQ(failure(), path_ + ": cannot be written: Invalid cross-device link");
  expect_untouched();
}

TEST_F(Fault, TheFolderCannotBeSynced) {
  faults.fsync_folder = EIO;
  EXPECT_EQ(failure(),
            path_ + ": was written, but its folder could not be synced: Input/output error");
  EXPECT_TRUE(Safetensors(path_).contains("x"));
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Fault, AFileSystemThatSyncsNoFolders) {
  faults.fsync_folder = EINVAL;
  write_safetensors(path_, {{"x", tensor_}});
  EXPECT_TRUE(Safetensors(path_).contains("x"));
}

TEST_F(Fault, TheDiskFillsWhileWriting) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (rlim_t limit : {0, 4, 8, 100, 65536, 799'999}) {
    const rlimit tight{limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
    const std::string message = failure();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_EQ(message, path_ + ": cannot be written: File too large") << limit;
    expect_untouched();
  }
  std::signal(SIGXFSZ, handler);
}

}  // namespace
}  // namespace foci
