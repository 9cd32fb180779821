// SPDX-License-Identifier: Apache-2.0
// foci data over folders that are not as they should be: a class without images beside files at
// fault, and another set where one lay.
#include "cli/command.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace {

using namespace cli_test;

/// A class without images does not hide the files at fault in the others.
TEST(Data, FilesAtFaultAreNamedBesideAnEmptyClass) {
  const std::string path = folder().file("empty-class");
  for (const char* name : {"train/cow", "train/ant", "train/bee", "test/bee"})
    fs::create_directories(path + "/" + name);
  for (const char* name : {"/train/ant/a.png", "/train/bee/b.jpg", "/test/bee/c.JPG"})
    write(path + name, "no picture");
  const Ran ran = run_foci({"data", "show", path, "--check"});
  EXPECT_EQ(ran.status, 1);
  for (const char* said : {"train/cow: has no images", "ant/a.png: begins with",
                           "bee/b.jpg: begins with", "bee/c.JPG: begins with"}) {
    EXPECT_NE(ran.err.find(said), std::string::npos) << said << "\n" << ran.err;
  }
  const Ran plain = run_foci({"data", "show", path});
  EXPECT_EQ(std::count(plain.err.begin(), plain.err.end(), '\n'), 1) << plain.err;
}

/// Another set in the same folder is no silent change; the same one again is none at all.
TEST(Data, AReplacedSetIsSaid) {
  const Words make = {"data", "make", "images", "--out", folder().file("replaced"), "--count"};
  EXPECT_EQ(run_foci(make + Words{"20"}).err, "");
  EXPECT_EQ(run_foci(make + Words{"20"}).err, "");
  const Ran other = run_foci(make + Words{"10"});
  EXPECT_EQ(other.status, 0);
  EXPECT_NE(other.err.find("4 files that lay there were replaced"), std::string::npos) << other.err;
  EXPECT_EQ(run_foci(make + Words{"20", "--quiet"}).err, "");
}

}  // namespace
