// SPDX-License-Identifier: Apache-2.0
// FOCI_ISA chooses among the instruction sets this machine has.
#include "cpu/choose.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace foci::cpu {
namespace {

struct Isa : testing::Test {
  void TearDown() override { unsetenv("FOCI_ISA"); }
};

TEST_F(Isa, TheBestUnlessAsked) {
  unsetenv("FOCI_ISA");
  EXPECT_EQ(&chosen(), available().front());
  EXPECT_EQ(chosen_narrow(), available_narrow().empty() ? nullptr : available_narrow().front());
  EXPECT_STREQ(available().back()->name, "portable");
  EXPECT_EQ(isa_names().size(), available().size() + available_narrow().size());
}

TEST_F(Isa, ANameChoosesItsKernels) {
  for (const Kernels* kernels : available()) {
    setenv("FOCI_ISA", kernels->name, 1);
    EXPECT_EQ(&chosen(), kernels);
    EXPECT_EQ(chosen_narrow(), nullptr) << kernels->name << " is over floats";
  }
  for (const NarrowKernels* kernels : available_narrow()) {
    setenv("FOCI_ISA", kernels->name, 1);
    EXPECT_EQ(chosen_narrow(), kernels);
    EXPECT_STREQ(chosen().name, "avx512");
  }
}

TEST_F(Isa, AnotherNameIsAnError) {
  setenv("FOCI_ISA", "mmx", 1);
  const auto message = thrown<InvalidArgument>([] { chosen(); });
  EXPECT_NE(message.find("FOCI_ISA is 'mmx'; this machine has: "), std::string::npos) << message;
  EXPECT_NE(message.find("portable"), std::string::npos) << message;
}

}  // namespace
}  // namespace foci::cpu
