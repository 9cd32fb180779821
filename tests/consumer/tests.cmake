# SPDX-License-Identifier: Apache-2.0
# Installs into the build folder, moves the prefix and uses it from outside, step by step.
# A sanitizer's library would need a sanitized consumer: not then.
if(FOCI_SANITIZE OR NOT FOCI_INSTALL OR NOT FOCI_BUILD_CLI)
  return()
endif()
include(GNUInstallDirs)
set(steps install find_package versions pkg_config subdirectory exports command)
if(FOCI_HAS_TORCH)
  list(APPEND steps torch)
endif()
foreach(step ${steps})
  add_test(NAME consumer_${step}
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consumer/consumer_test.sh ${step})
  set_tests_properties(consumer_${step} PROPERTIES LABELS full TIMEOUT 1200
    FIXTURES_REQUIRED foci_prefix ENVIRONMENT "SOURCE=${PROJECT_SOURCE_DIR};\
BUILD=${PROJECT_BINARY_DIR};CMAKE=${CMAKE_COMMAND};GENERATOR=${CMAKE_GENERATOR};\
CC=${CMAKE_C_COMPILER};CXX=${CMAKE_CXX_COMPILER};LIBDIR=${CMAKE_INSTALL_LIBDIR};TORCH=${Torch_DIR}")
endforeach()
set_tests_properties(consumer_install PROPERTIES
  FIXTURES_REQUIRED "" FIXTURES_SETUP foci_prefix)
