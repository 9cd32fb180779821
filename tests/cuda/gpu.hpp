// SPDX-License-Identifier: Apache-2.0
// Tests that need a GPU are skipped where there is none; the emulator counts as one.
#pragma once

#include <foci/device.hpp>

#include <gtest/gtest.h>

#define FOCI_WANT_GPU() \
  if (devices().empty()) GTEST_SKIP() << "no GPU here"
