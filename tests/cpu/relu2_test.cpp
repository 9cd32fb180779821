// SPDX-License-Identifier: Apache-2.0
// Blocks of relu2 attention against plain loops.
#include "cpu/agree.hpp"

namespace foci::cpu::blocks {
namespace {

TEST(Relu2, Length) { sweep({Kind::relu2, Divisor::length}); }
TEST(Relu2, L1) { sweep({Kind::relu2, Divisor::l1}); }
TEST(Relu2, L2) { sweep({Kind::relu2, Divisor::l2}); }
TEST(Relu2, None) { sweep({Kind::relu2, Divisor::none}); }

}  // namespace
}  // namespace foci::cpu::blocks
