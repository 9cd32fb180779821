// SPDX-License-Identifier: Apache-2.0
// The reference backend over tensors of bf16.
#include "ref/run.hpp"

namespace foci::ref {

template std::size_t workspace<Bf16>(const metric::Problem&);
template void forward<Bf16>(const Outputs&, const metric::Problem&, std::span<std::byte>,
                            Executor*);
template void backward<Bf16>(const Gradients&, const metric::Problem&, std::span<std::byte>,
                             Executor*);

}  // namespace foci::ref
