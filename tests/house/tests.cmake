# SPDX-License-Identifier: Apache-2.0
# The rules of the house, as tests; and that the documents say what the program says.
# They look at text, so a sanitizer would find nothing more.
if(FOCI_SANITIZE)
  return()
endif()
foci_test(house/layers_test.cpp)
foci_test(house/budgets_test.cpp)
foci_test(house/headers_test.cpp)
target_compile_definitions(house_headers_test PRIVATE
  FOCI_CXX="${CMAKE_CXX_COMPILER}" FOCI_CC="${CMAKE_C_COMPILER}")
foci_test(house/documents_test.cpp)
if(FOCI_BUILD_CLI)
  add_dependencies(house_documents_test foci_command)
endif()
set(torch_flags)
if(FOCI_HAS_TORCH)
  set(torch_flags ${TORCH_INCLUDE_DIRS})
  list(REMOVE_ITEM torch_flags /usr/include)  # where the compiler looks anyway, in its own order
  list(TRANSFORM torch_flags PREPEND " -isystem ")
  list(JOIN torch_flags "" torch_flags)
endif()
target_compile_definitions(house_headers_test PRIVATE FOCI_TORCH_FLAGS="${torch_flags}")
