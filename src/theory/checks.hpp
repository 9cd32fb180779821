// SPDX-License-Identifier: Apache-2.0
// What makes the numbers of a form meaningless, said before anything is computed with them.
#pragma once

#include <foci/error.hpp>
#include <foci/theory.hpp>

#include <string>

namespace foci::theory {

/// Mean and variance of one weight of linear attention, in a type whose exponents hold the product
/// of any three doubles.
struct Moments {
  long double mean = 0, variance = 0;
  long double terms = 0;  ///< sum of the sizes of what the variance is a sum of
};
Moments moments(const Linear& form);

/// beta / gamma, within what can be squared.
double ratio(const Scores& of);

/// Throws InvalidArgument.
void check(const Form& form);

/// Throws InvalidArgument: "name is value; it must be needed".
void want(bool fine, const char* name, double value, const char* needed);

/// The shortest digits that give the number back.
std::string digits(double number);

}  // namespace foci::theory
