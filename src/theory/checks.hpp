// SPDX-License-Identifier: Apache-2.0
// What makes the numbers of a form meaningless, said before anything is computed with them.
#pragma once

#include <foci/error.hpp>
#include <foci/theory.hpp>

#include <string>

namespace foci::theory {

/// Mean and variance of one weight of linear attention.
struct Moments {
  double mean = 0, variance = 0;
};
Moments moments(const Linear& form);

/// Throws InvalidArgument.
void check(const Form& form);

/// Throws InvalidArgument: "name is value; it must be needed".
void want(bool fine, const char* name, double value, const char* needed);

/// The shortest digits that give the number back.
std::string digits(double number);

}  // namespace foci::theory
