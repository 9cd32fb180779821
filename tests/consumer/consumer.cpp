// SPDX-License-Identifier: Apache-2.0
// A user's smallest C++ program: three tensors in, one out, and an error caught by its type.
#include <foci/version.h>
#include <foci/attention.hpp>
#include <foci/error.hpp>

#include <cmath>
#include <iostream>

int main() {
  const float q[] = {1, 0}, k[] = {1, 0, 0, 1}, v[] = {1, 0};
  float o[1] = {};
  foci::attend({.o = {o, {1, 1, 1, 1}}},
               {.q = {q, {1, 1, 1, 2}}, .k = {k, {1, 1, 2, 2}}, .v = {v, {1, 1, 2, 1}}});
  const double want = 1 / (1 + std::exp(-std::sqrt(0.5)));
  if (std::abs(o[0] - want) > 1e-6) {
    std::cerr << "o is " << o[0] << ", not " << want << "\n";
    return 1;
  }
  try {
    foci::attend({.o = {o, {1, 1, 1, 1}}}, {});
    std::cerr << "attention without tensors was not refused\n";
    return 1;
  } catch (const foci::InvalidArgument& error) {
    std::cout << "foci " << foci::version() << ": " << o[0] << "; refused: " << error.what()
              << "\n";
  }
  return foci::version() == FOCI_VERSION ? 0 : 1;
}
