# SPDX-License-Identifier: Apache-2.0
if(NOT FOCI_HAS_TORCH)
  return()
endif()
foreach(name vit encoders language language_files)
  add_executable(models_${name}_test models/${name}_test.cpp)
  target_link_libraries(models_${name}_test PRIVATE foci_torch foci_data)
  foci_test_of(models_${name}_test HEADERS torch_test_headers)
endforeach()
