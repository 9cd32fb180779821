// SPDX-License-Identifier: Apache-2.0
// The reference backend over tensors of f32.
#include "ref/run.hpp"

namespace foci::ref {

template std::size_t workspace<float>(const metric::Problem&);
template void forward<float>(const Outputs&, const metric::Problem&, std::span<std::byte>,
                             Executor*);
template void backward<float>(const Gradients&, const metric::Problem&, std::span<std::byte>,
                              Executor*);

}  // namespace foci::ref
