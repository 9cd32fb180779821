// SPDX-License-Identifier: Apache-2.0
// The message of the exception that a call throws; the test fails when it throws none or another.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>

namespace foci {

/// E exactly, not a class derived from it.
template <class E, class F>
std::string thrown(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    EXPECT_EQ(typeid(error), typeid(E)) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    return message;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace foci
