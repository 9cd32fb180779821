// SPDX-License-Identifier: Apache-2.0
// The reference backend over tensors of f16.
#include "ref/run.hpp"

namespace foci::ref {

template std::size_t workspace<F16>(const metric::Problem&);
template void forward<F16>(const Outputs&, const metric::Problem&, std::span<std::byte>, Executor*);
template void backward<F16>(const Gradients&, const metric::Problem&, std::span<std::byte>,
                            Executor*);

}  // namespace foci::ref
