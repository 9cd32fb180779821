// SPDX-License-Identifier: Apache-2.0
// Records come back as they were written, and a file of them loses nothing to a kill.
#include <foci/error.hpp>
#include <foci/record.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "thrown.hpp"

namespace foci {
namespace {

namespace fs = std::filesystem;

Record made(double value) {
  return {.name = "top1",
          .value = value,
          .unit = "share",
          .n = 10000,
          .seed = std::numeric_limits<std::uint64_t>::max(),
          .spread = 0.003,
          .model = "vit_micro, layer-change",
          .data_sha256 = "aa",
          .config_sha256 = "bb",
          .commit = "c0",
          .machine = "two \"cores\"",
          .command = "foci eval runs/a\n",
          .flags = {{"one seed", "no spread between seeds", "train three"}}};
}

std::string fresh(const std::string& name) {
  const std::string path = testing::TempDir() + name;
  fs::remove(path);
  return path;
}

TEST(Record, ComesBack) {
  const Record record = made(0.1 + 0.2);
  EXPECT_EQ(record_of(to_json(record)), record);
  EXPECT_EQ(to_json(record).find('\n'), std::string::npos);
  EXPECT_EQ(record_of(to_json(Record{})), Record{});
}

TEST(Record, RefusesWhatIsNoNumber) {
  EXPECT_EQ(thrown<InvalidArgument>([] { to_json(made(std::nan(""))); }),
            "record 'top1': its value or spread is not finite");
}

TEST(Record, NamesTheFieldThatIsWrong) {
  const auto fault = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    return thrown<InvalidArgument>([&] { record_of(text); });
  };
  const std::string good = to_json(made(1));
  EXPECT_EQ(fault(good, "\"n\":10000", "\"n\":\"x\""), "field 'n' is not what it should be");
  EXPECT_EQ(fault(good, "\"seed\"", "\"sead\""), "no field 'seed'");
  EXPECT_EQ(fault(good, "\"schema\":1", "\"schema\":2"), "its schema is 2, not 1");
  EXPECT_EQ(fault(good, "\"flags\":[", "\"flags\":[3,"), "a flag is not an object");
  EXPECT_EQ(fault(good, "\"n\":10000", "\"n\":1e300"), "field 'n' is not what it should be");
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  EXPECT_EQ(fault(good, "\"flags\":[", "\"flags\":[" + deep + ","), "a flag is not an object");
  EXPECT_EQ(fault(good, "{", "[{"), "not a JSON object");
}

TEST(Record, FilesGrowByWholeLines) {
  const std::string path = fresh("records.jsonl");
  append_records(path, std::vector{made(1), made(2)});
  std::ofstream(path, std::ios::app) << "{\"schema\":1,\"na";  // a writer was killed here
  EXPECT_EQ(read_records(path), (std::vector{made(1), made(2)}));
  append_records(path, std::vector{made(3)});
  EXPECT_EQ(read_records(path), (std::vector{made(1), made(2), made(3)}));
}

TEST(Record, FaultsOfAFileAreNamed) {
  const std::string path = fresh("bad.jsonl");
  EXPECT_EQ(thrown<FileError>([&] { read_records(path); }), path + ": is not there");
  append_records(path, std::vector{made(1)});
  std::ofstream(path, std::ios::app) << "{}\n";
  EXPECT_EQ(thrown<FileError>([&] { read_records(path); }), path + ", line 2: no field 'schema'");
  const std::string nowhere = testing::TempDir() + "not/there.jsonl";
  EXPECT_EQ(thrown<FileError>([&] { append_records(nowhere, std::vector{made(1)}); }),
            nowhere + ": cannot be written: No such file or directory");
}

}  // namespace
}  // namespace foci
