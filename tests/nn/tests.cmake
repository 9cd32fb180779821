# SPDX-License-Identifier: Apache-2.0
if(NOT FOCI_HAS_TORCH)
  return()
endif()
foreach(name attend layer)
  add_executable(nn_${name}_test nn/${name}_test.cpp)
  target_link_libraries(nn_${name}_test PRIVATE foci_torch)
  foci_test_of(nn_${name}_test HEADERS torch_test_headers)
endforeach()
