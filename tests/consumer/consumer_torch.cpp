// SPDX-License-Identifier: Apache-2.0
// A user's smallest libtorch program: attention with a gradient, and an error caught by its type.
#include <foci/error.hpp>
#include <foci/nn.hpp>

#include <ATen/ATen.h>

#include <iostream>

int main() {
  const at::Tensor q = at::randn({1, 2, 5, 8}).requires_grad_();
  foci::nn::attend(q, q, q).sum().backward();
  if (!q.grad().defined()) {
    std::cerr << "there is no gradient\n";
    return 1;
  }
  try {
    foci::nn::attend(q, q, q, {}, {.metric = foci::LayerChange{}});
    std::cerr << "a missing v_prev was not refused\n";
    return 1;
  } catch (const foci::InvalidArgument& error) {
    std::cout << "refused: " << error.what() << "\n";
  }
}
