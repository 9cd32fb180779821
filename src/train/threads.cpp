// SPDX-License-Identifier: Apache-2.0
// How many threads torch works with.
#include <foci/run.hpp>

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace foci::train {

void use_threads(int count) {
  if (count <= 0) return;
  at::set_num_threads(count);
  using Tell = void (*)(int);
  if (void* tell = ::dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))
    reinterpret_cast<Tell>(tell)(count);
}

}  // namespace foci::train
