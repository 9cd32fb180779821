// SPDX-License-Identifier: Apache-2.0
// The reference backend over tensors of f64.
#include "ref/run.hpp"

namespace foci::ref {

template std::size_t workspace<double>(const metric::Problem&);
template void forward<double>(const Outputs&, const metric::Problem&, std::span<std::byte>,
                              Executor*);
template void backward<double>(const Gradients&, const metric::Problem&, std::span<std::byte>,
                               Executor*);

}  // namespace foci::ref
