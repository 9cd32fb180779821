// SPDX-License-Identifier: Apache-2.0
// Reading: views of the right type, shape and bytes, aligned; and paths that are no such file.
#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "safetensors/made_file.hpp"
#include "thrown.hpp"

namespace foci {
namespace {

class Reader : public InFolder {
 protected:
  std::string refusal(const std::string& path) const {
    return thrown<FileError>([&] { Safetensors{path}; });
  }
};

TEST_F(Reader, GivesViewsOfTheFile) {
  const std::string data("\0\0\x80\x3f\0\0\0\xc0\1\0\1", 11);
  write_all(in_folder("f"),
            made_file(R"({"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[8,11]},)"
                      R"("__metadata__":{"format":"pt"},)"
                      R"("k":{"data_offsets":[0,8],"shape":[1,2],"dtype":"F32"}}  )",
                      data));
  const Safetensors file(in_folder("f"));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"k", "mask"}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_TRUE(file.contains("k"));
  EXPECT_FALSE(file.contains("q"));
  EXPECT_FALSE(bool(file.find("q")));
  EXPECT_FALSE(file.contains("__metadata__"));
  const View k = file.find("k");
  EXPECT_EQ(k.dtype, DType::f32);
  EXPECT_EQ(to_string(k.sizes()), "(1, 2)");
  EXPECT_EQ(*k.at<float>({0, 0}), 1.0f);
  EXPECT_EQ(*k.at<float>({0, 1}), -2.0f);
  EXPECT_EQ(Tensor::copy(file.find("mask"), DType::f64).values(), (std::vector<double>{1, 0, 1}));
}

TEST_F(Reader, MovesWithItsViews) {
  write_all(in_folder("f"),
            made_file(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "xy"));
  Safetensors first(in_folder("f"));
  const View view = first.find("a");
  Safetensors second = std::move(first);
  EXPECT_EQ(contents_of(view), "xy");
  second = Safetensors(in_folder("f"));
  EXPECT_EQ(contents_of(second.find("a")), "xy");
}

TEST_F(Reader, KeepsItsBytesWhenTheFileIsReplaced) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  write_all(in_folder("f"), made_file(header, "xy"));
  const Safetensors file(in_folder("f"));
  write_all(in_folder("g"), made_file(header, "uv"));
  std::filesystem::rename(in_folder("g"), in_folder("f"));
  EXPECT_EQ(contents_of(file.find("a")), "xy");
}

TEST(Memory, MisalignedTensorsAreCopiedOnce) {
  // 'b' shifts the rest by one byte; the header may lie anywhere as well.
  const std::string data("Bddddddddhhssss", 15);
  const std::string header = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("d":{"dtype":"F64","shape":[1],"data_offsets":[1,9]},)"
                             R"("h":{"dtype":"BF16","shape":[1],"data_offsets":[9,11]},)"
                             R"("none":{"dtype":"I64","shape":[0],"data_offsets":[11,11]},)"
                             R"("s":{"dtype":"I32","shape":[],"data_offsets":[11,15]}})";
  for (std::size_t spaces = 0; spaces < 8; ++spaces) {
    const std::string bytes = made_file(header + std::string(spaces, ' '), data);
    const Safetensors file(bytes_of(bytes), "f");
    for (const std::string& name : file.names()) {
      const View view = file.find(name);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype), 0u) << name;
      EXPECT_EQ(contents_of(view), name == "none" ? ""
                                   : name == "b"  ? "B"
                                                  : std::string(size_of(view.dtype), name[0]));
      EXPECT_EQ(file.find(name).data, view.data);
    }
  }
}

TEST(Memory, ThreadsMayAskTogether) {
  const std::string bytes = made_file(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                      R"("d":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
                                      "Bdddddddd");
  const Safetensors file(bytes_of(bytes), "f");
  std::vector<void*> found(8);
  std::vector<std::thread> threads;
  for (void*& at : found) threads.emplace_back([&] { at = file.find("d").data; });
  for (std::thread& thread : threads) thread.join();
  for (void* at : found) EXPECT_EQ(at, found[0]);
}

TEST(Memory, AScalarIsShownAsOneElement) {
  const std::string bytes =
      made_file(R"({"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", "\7");
  const Safetensors file(bytes_of(bytes), "f");
  const View x = file.find("x");
  EXPECT_TRUE(bool(x));
  EXPECT_EQ(to_string(x.sizes()), "(1)");
  EXPECT_EQ(contents_of(x), "\7");
}

TEST(Memory, EmptyTensorsAndEmptyFilesAreLegal) {
  const std::string bytes =
      made_file(R"({"e":{"dtype":"F32","shape":[2,0,3],"data_offsets":[1,1]},)"
                R"("u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                R"("z":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                "x");
  const Safetensors file(bytes_of(bytes), "f");
  EXPECT_EQ(to_string(file.find("e").sizes()), "(2, 0, 3)");
  EXPECT_TRUE(bool(file.find("z")));
  EXPECT_EQ(file.find("z").count(), 0);
  const std::string nothing = made_file("{}");
  EXPECT_TRUE(Safetensors(bytes_of(nothing), "f").names().empty());
}

TEST(Memory, TypesAndRanksThatAViewCannotHold) {
  const std::string bytes =
      made_file(R"({"e":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                R"("r":{"dtype":"U8","shape":[1,1,1,1,1,1],"data_offsets":[2,3]},)"
                R"("u":{"dtype":"U16","shape":[1],"data_offsets":[3,5]}})",
                "xxxxx");
  const Safetensors file(bytes_of(bytes), "f");
  EXPECT_EQ(file.names(), (std::vector<std::string>{"e", "r", "u"}));
  EXPECT_TRUE(file.contains("e"));
  EXPECT_EQ(thrown<Unsupported>([&] { file.find("e"); }),
            "f: tensor \"e\" is of type F8_E4M3; "
            "foci holds F64, F32, BF16, F16, I64, I32, U8 and BOOL");
  EXPECT_EQ(
      thrown<Unsupported>([&] { file.find("u"); }),
      "f: tensor \"u\" is of type U16; foci holds F64, F32, BF16, F16, I64, I32, U8 and BOOL");
  EXPECT_EQ(thrown<Unsupported>([&] { file.find("r"); }),
            "f: tensor \"r\" has 6 axes; foci holds at most 5");
}

TEST(Memory, ABooleanIsZeroOrOne) {
  const std::string bytes =
      made_file(R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", "\1\1\x2a");
  const Safetensors file(bytes_of(bytes), "f");
  EXPECT_EQ(thrown<FileError>([&] { file.find("m"); }),
            "f: tensor \"m\" is BOOL, but its byte 2 is 42; it needs 0 or 1");
}

TEST(Memory, EscapedNamesAreFound) {
  const std::string bytes =
      made_file("{\"\\u00e9\\\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
  EXPECT_TRUE(Safetensors(bytes_of(bytes), "f").contains("\xc3\xa9\""));
}

TEST_F(Reader, RefusesWhatIsNotAPlainFile) {
  EXPECT_EQ(refusal(in_folder("none")),
            in_folder("none") + ": cannot be opened: No such file or directory");
  EXPECT_EQ(refusal(""), ": cannot be opened: No such file or directory");
  EXPECT_EQ(refusal(folder().string()),
            folder().string() + ": is a directory; it needs a safetensors file");
  ASSERT_EQ(mkfifo(in_folder("pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(in_folder("pipe")),
            in_folder("pipe") + ": is a pipe or device; it needs a file that can be mapped");
  EXPECT_EQ(refusal("/dev/null"),
            "/dev/null: is a pipe or device; it needs a file that can be mapped");
  write_all(in_folder("empty"), "");
  EXPECT_EQ(refusal(in_folder("empty")),
            in_folder("empty") + ": is empty; it needs a safetensors file");
}

TEST_F(Reader, RefusesAFileThatMayNotBeRead) {
  write_all(in_folder("secret"), made_file("{}"));
  ASSERT_EQ(chmod(in_folder("secret").c_str(), 0), 0);
  ASSERT_EQ(chmod(folder().c_str(), 0755), 0);
  const AsNobody nobody;
  EXPECT_EQ(refusal(in_folder("secret")),
            in_folder("secret") + ": cannot be opened: Permission denied");
}

TEST_F(Reader, RefusesAFileTooLargeToMap) {
  const int file = memfd_create("large", 0);
  ASSERT_EQ(ftruncate(file, off_t(1) << 62), 0) << "past the address space, with nothing in it";
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  EXPECT_EQ(refusal(path), path + ": cannot be mapped: Cannot allocate memory");
  close(file);
}

TEST(Golden, EveryFileOpens) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FOCI_SOURCE_DIR "/tests/golden")) {
    if (entry.path().extension() != ".safetensors") continue;
    const Safetensors file(entry.path().string());
    EXPECT_TRUE(file.contains("q") && file.contains("k") && file.contains("v")) << entry.path();
    EXPECT_FALSE(file.metadata().empty()) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace foci
