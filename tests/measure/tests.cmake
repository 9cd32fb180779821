# SPDX-License-Identifier: Apache-2.0
# library: what foci/measure.hpp computes. `foci measure` is tested where commands run over runs
# that were trained.
if(NOT FOCI_HAS_TORCH)
  return()
endif()
add_executable(measure_library_test measure/library_test.cpp measure/edges_test.cpp
  measure/weights_test.cpp)
target_link_libraries(measure_library_test PRIVATE foci_measure)
foci_test_of(measure_library_test HEADERS torch_test_headers)
if(TARGET train_command_test)
  target_sources(train_command_test PRIVATE measure/command_test.cpp
    measure/tensors_test.cpp)
endif()
