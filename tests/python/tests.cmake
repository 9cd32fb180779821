# SPDX-License-Identifier: Apache-2.0
# The Python package under pytest, one ctest entry a file, with the package as it is staged.
if(NOT FOCI_HAS_TORCH)
  return()
endif()
if(NOT FOCI_PYTHON)
  message(STATUS "python tests: left out, no python3 has torch ${Torch_VERSION}")
  return()
endif()
file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/python/test_*.py)
set(environment PYTHONPATH=${PROJECT_BINARY_DIR}/python PYTHONDONTWRITEBYTECODE=1
  FOCI_SOURCE_DIR=${PROJECT_SOURCE_DIR} FOCI_BINARY_DIR=${PROJECT_BINARY_DIR})
foreach(file ${files})
  get_filename_component(name ${file} NAME_WE)
  add_test(NAME python_${name}
    COMMAND ${FOCI_PYTHON} -m pytest -q -p no:cacheprovider ${file})
  set_tests_properties(python_${name} PROPERTIES
    LABELS full TIMEOUT 900 SKIP_RETURN_CODE 5 ENVIRONMENT "${environment}")
endforeach()
