// SPDX-License-Identifier: Apache-2.0
// Blocks of identity attention, and of decay with content, against plain loops.
#include "cpu/agree.hpp"

namespace foci::cpu::blocks {
namespace {

TEST(Identity, Length) { sweep({Kind::identity, Divisor::length}); }
TEST(Identity, L1) { sweep({Kind::identity, Divisor::l1}); }
TEST(Identity, L2) { sweep({Kind::identity, Divisor::l2}); }
TEST(Identity, None) { sweep({Kind::identity, Divisor::none}); }
TEST(Faded, Slowly) { sweep({Kind::faded, Divisor::none, std::log(0.99f)}); }
TEST(Faded, Soon) { sweep({Kind::faded, Divisor::none, std::log(0.8f)}); }

}  // namespace
}  // namespace foci::cpu::blocks
