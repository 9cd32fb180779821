// SPDX-License-Identifier: Apache-2.0
// Writing: what is read back is what was given, to the bit; the layout the format asks for; the
// paths and names that are refused.
#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "safetensors/made_file.hpp"
#include "thrown.hpp"

namespace foci {
namespace {

constexpr DType all_types[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                               DType::i64, DType::i32, DType::u8,   DType::boolean};

/// Random bits, NaN patterns among them; booleans 0 or 1.
Tensor random_bits(DType dtype, Shape shape) {
  static std::mt19937 random(3);
  Tensor tensor(dtype, shape);
  const std::size_t bytes = std::size_t(tensor.view().count()) * size_of(dtype);
  for (std::size_t i = 0; i < bytes; ++i) {
    tensor.data<std::uint8_t>()[i] = std::uint8_t(random() % (dtype == DType::boolean ? 2 : 256));
  }
  return tensor;
}

mode_t mode_of(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(stat(path.c_str(), &facts), 0);
  return facts.st_mode & 07777;
}

class Writer : public InFolder {
 protected:
  std::string refusal(const std::string& path) const {
    return thrown<FileError>([&] { write_safetensors(path, {{"x", one_}}); });
  }
  std::string wrong(const std::map<std::string, View>& tensors,
                    const std::map<std::string, std::string>& metadata = {}) const {
    const std::string path = in_folder("f");
    const std::string message =
        thrown<InvalidArgument>([&] { write_safetensors(path, tensors, metadata); });
    EXPECT_EQ(files_in_folder(), 0u);
    EXPECT_EQ(message.rfind(path + ": ", 0), 0u) << message;
    return message.substr(std::min(message.size(), path.size() + 2));
  }

  const float value_ = 1;
  const View one_{&value_, {1}};
};

TEST_F(Writer, EveryTypeComesBackToTheBit) {
  std::vector<Tensor> tensors;
  std::map<std::string, View> views;
  for (DType dtype : all_types) {
    for (const Shape& shape : {Shape{3}, Shape{2, 1, 3, 1, 5}, Shape{0}, Shape{4, 0}}) {
      tensors.push_back(random_bits(dtype, shape));
      views[std::string(name_of(dtype)) + to_string(shape)] = tensors.back();
    }
  }
  const std::map<std::string, std::string> metadata = {
      {"", ""}, {"note", "a \"b\"\n\\\xc3\xa9"}, {"zero", std::string(1, '\0')}};
  write_safetensors(in_folder("f"), views, metadata);
  const Safetensors file(in_folder("f"));
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names().size(), views.size());
  for (const auto& [name, view] : views) {
    const View back = file.find(name);
    EXPECT_EQ(back.dtype, view.dtype) << name;
    EXPECT_EQ(to_string(back.sizes()), to_string(view.sizes())) << name;
    EXPECT_EQ(contents_of(back), contents_of(view)) << name;
  }
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Writer, LaysTheFileOutAsTheFormatAsks) {
  const std::uint8_t u8[] = {1};
  const double f64[] = {1};
  write_safetensors(in_folder("f"),
                    {{"a", View(u8, {1})}, {"z", View(f64, {1})}, {"b", View(&value_, {1, 1})}},
                    {{"k", "2"}, {"j", "1"}});
  const std::string header = R"({"__metadata__":{"j":"1","k":"2"},)"
                             R"("z":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]},)"
                             R"("a":{"dtype":"U8","shape":[1],"data_offsets":[12,13]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_all(in_folder("f")),
            made_file(padded, std::string("\0\0\0\0\0\0\xf0\x3f\0\0\x80\x3f\1", 13)));
}

TEST_F(Writer, PadsTheHeaderToEightBytes) {
  for (std::size_t length = 0; length < 9; ++length) {
    write_safetensors(in_folder("f"), {{std::string(length, 'n'), one_}});
    const std::string bytes = read_all(in_folder("f"));
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    EXPECT_EQ(header % 8, 0u);
    EXPECT_EQ(bytes.size(), 8 + header + 4);
  }
  write_safetensors(in_folder("f"), {});
  EXPECT_EQ(read_all(in_folder("f")), made_file("{}      "));
}

TEST_F(Writer, WritesStridedViewsInRowMajorOrder) {
  for (DType dtype : all_types) {
    const Tensor tensor = random_bits(dtype, {3, 4, 5});
    const View strided = tensor.view().swapped(0, 2).sliced(1, 1, 3);
    write_safetensors(in_folder("f"), {{"x", strided}});
    const Safetensors file(in_folder("f"));
    const View back = file.find("x");
    EXPECT_EQ(to_string(back.sizes()), "(5, 2, 3)");
    const std::size_t size = size_of(dtype);
    std::string expected;
    for (int i = 0; i < 5; ++i) {
      for (int j = 1; j < 3; ++j) {
        for (int k = 0; k < 3; ++k) {
          expected.append(tensor.data<char>() + std::size_t(k * 20 + j * 5 + i) * size, size);
        }
      }
    }
    EXPECT_EQ(contents_of(back), expected) << name_of(dtype);
  }
}

TEST_F(Writer, WritesAnyTrueAsOne) {
  const std::uint8_t bytes[] = {0, 1, 42};
  write_safetensors(in_folder("f"), {{"m", View(bytes, DType::boolean, Shape{3})}});
  const Safetensors file(in_folder("f"));
  EXPECT_EQ(contents_of(file.find("m")), std::string("\0\1\1", 3));
}

TEST_F(Writer, MayReplaceTheFileItsViewsComeFrom) {
  const Tensor tensor = random_bits(DType::f32, {1000});
  write_safetensors(in_folder("f"), {{"x", tensor}});
  const Safetensors file(in_folder("f"));
  write_safetensors(in_folder("f"), {{"y", file.find("x")}, {"z", one_}});
  EXPECT_EQ(contents_of(Safetensors(in_folder("f")).find("y")), contents_of(tensor.view()));
  EXPECT_EQ(contents_of(file.find("x")), contents_of(tensor.view()));
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Writer, KeepsPermissionsOrFollowsTheMask) {
  const mode_t before = umask(027);
  write_safetensors(in_folder("f"), {{"x", one_}});
  umask(before);
  EXPECT_EQ(mode_of(in_folder("f")), mode_t(0640));
  ASSERT_EQ(chmod(in_folder("f").c_str(), 0604), 0);
  write_safetensors(in_folder("f"), {{"x", one_}});
  EXPECT_EQ(mode_of(in_folder("f")), mode_t(0604));
}

TEST_F(Writer, WritesThroughLinks) {
  std::filesystem::create_directory(in_folder("d"));
  write_all(in_folder("d/real"), "old");
  std::filesystem::create_symlink("d/real", in_folder("link"));
  std::filesystem::create_symlink(in_folder("link"), in_folder("second"));
  write_safetensors(in_folder("second"), {{"x", one_}});
  EXPECT_TRUE(std::filesystem::is_symlink(in_folder("link")));
  EXPECT_TRUE(std::filesystem::is_symlink(in_folder("second")));
  EXPECT_FALSE(std::filesystem::is_symlink(in_folder("d/real")));
  EXPECT_TRUE(Safetensors(in_folder("d/real")).contains("x"));

  std::filesystem::create_symlink("d/later", in_folder("dangling"));
  write_safetensors(in_folder("dangling"), {{"x", one_}});
  EXPECT_TRUE(std::filesystem::is_symlink(in_folder("dangling")));
  EXPECT_TRUE(Safetensors(in_folder("d/later")).contains("x"));

  std::filesystem::create_symlink("loop", in_folder("loop"));
  EXPECT_EQ(refusal(in_folder("loop")),
            in_folder("loop") + ": cannot be written: Too many levels of symbolic links");
}

TEST_F(Writer, TakesALeftoverOfItsOwnNameInItsStride) {
  for (int i = 0; i < 100; ++i) {
    write_all(in_folder(".foci-" + std::to_string(getpid()) + "-" + std::to_string(i) + ".tmp"),
              "left");
  }
  write_safetensors(in_folder("f"), {{"x", one_}});
  EXPECT_EQ(files_in_folder(), 101u);
  EXPECT_TRUE(Safetensors(in_folder("f")).contains("x"));
}

TEST_F(Writer, TakesTheLongestName) {
  const std::string name(255, 'n');
  write_safetensors(in_folder(name), {{"x", one_}});
  EXPECT_TRUE(Safetensors(in_folder(name)).contains("x"));
  EXPECT_EQ(refusal(in_folder(name + "n")),
            in_folder(name + "n") + ": cannot be written: File name too long");
}

TEST_F(Writer, ARelativePathWorks) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder());
  write_safetensors("f", {{"x", one_}});
  std::filesystem::current_path(before);
  EXPECT_TRUE(Safetensors(in_folder("f")).contains("x"));
}

TEST_F(Writer, RefusesPathsThatCannotBeWritten) {
  EXPECT_EQ(refusal(in_folder("none/f")),
            in_folder("none/f") + ": cannot be written: No such file or directory");
  EXPECT_EQ(refusal(folder().string()),
            folder().string() + ": cannot be written: it is a directory");
  EXPECT_EQ(refusal(in_folder("")),
            in_folder("") + ": cannot be written: it needs the name of a file");
  EXPECT_EQ(refusal(""), ": cannot be written: it needs the name of a file");
  EXPECT_EQ(refusal("/dev/full"), "/dev/full: cannot be written: it is not a plain file");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  write_all(in_folder("file"), "x");
  EXPECT_EQ(refusal(in_folder("file/f")),
            in_folder("file/f") + ": cannot be written: Not a directory");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Writer, RefusesWhatItHasNoPermissionFor) {
  write_all(in_folder("file"), "old");
  ASSERT_EQ(chmod(in_folder("file").c_str(), 0444), 0);
  ASSERT_EQ(chmod(folder().c_str(), 0777), 0);
  {
    const AsNobody nobody;
    EXPECT_EQ(refusal(in_folder("file")),
              in_folder("file") + ": cannot be written: Permission denied");
  }
  ASSERT_EQ(chmod(folder().c_str(), 0555), 0);
  {
    const AsNobody nobody;
    EXPECT_EQ(refusal(in_folder("f")), in_folder("f") + ": cannot be written: Permission denied");
  }
  ASSERT_EQ(chmod(folder().c_str(), 0755), 0);
  EXPECT_EQ(read_all(in_folder("file")), "old");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Writer, RefusesNamesAndViewsThatCannotBeWritten) {
  EXPECT_EQ(wrong({{"__metadata__", one_}}),
            "tensor \"__metadata__\" has the name that the format keeps for metadata");
  EXPECT_EQ(wrong({{"a\xff", one_}}), "tensor \"a\\xff\" has a name that is not valid UTF-8");
  EXPECT_EQ(wrong({{"x", View()}}), "tensor \"x\" is absent; there is nothing to write");
  EXPECT_EQ(wrong({{"x", View(nullptr, DType::f32, Shape{2})}}), "tensor \"x\" has no data");
  EXPECT_EQ(wrong({{"x", one_}}, {{"k", "\xc3"}}), "metadata \"k\" is not valid UTF-8");
  EXPECT_EQ(wrong({{"x", one_}}, {{"\xc3", "\xa9"}}), "metadata \"\\xc3\" is not valid UTF-8");
}

TEST_F(Writer, RefusesAHeaderNoReaderWouldTake) {
  const std::map<std::string, std::string> metadata = {{"k", std::string(100'000'000, 'v')}};
  EXPECT_EQ(thrown<FileError>([&] { write_safetensors(in_folder("f"), {}, metadata); }),
            in_folder("f") +
                ": cannot be written: its header would have 100000032 bytes; "
                "at most 100000000 are allowed");
  EXPECT_EQ(files_in_folder(), 0u);
}

TEST_F(Writer, EveryGoldenFileComesBack) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FOCI_SOURCE_DIR "/tests/golden")) {
    const Safetensors file(entry.path().string());
    std::map<std::string, View> views;
    for (const std::string& name : file.names()) views[name] = file.find(name);
    write_safetensors(in_folder("f"), views, file.metadata());
    const Safetensors again(in_folder("f"));
    EXPECT_EQ(again.metadata(), file.metadata());
    EXPECT_EQ(again.names(), file.names());
    for (const auto& [name, view] : views) {
      const View back = again.find(name);
      EXPECT_EQ(back.dtype, view.dtype) << entry.path() << name;
      EXPECT_EQ(to_string(back.sizes()), to_string(view.sizes())) << entry.path() << name;
      EXPECT_EQ(contents_of(back), contents_of(view)) << entry.path() << name;
    }
    ++files;
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace foci
