# SPDX-License-Identifier: Apache-2.0
# pictures: what is drawn of numbers. `foci measure --pictures` is tested where commands run over
# runs that were trained.
foci_test(report/pictures_test.cpp LIBRARIES foci_data_inside)
target_sources(report_pictures_test PRIVATE report/maps_test.cpp)
if(TARGET train_command_test)
  target_sources(train_command_test PRIVATE report/command_test.cpp)
endif()
# The page and foci serve: what the library writes, what the server answers, and the page in a
# browser (label browser; skipped, with a line that says why, where there is none).
foci_test(report/page_test.cpp LIBRARIES foci_data_inside)
if(NOT TARGET foci_command)
  return()
endif()
function(foci_page_test name)
  cmake_parse_arguments(test "" "LABEL;NEEDS;TIMEOUT" "" ${ARGN})
  add_test(NAME report_${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/report/run.sh
    ${test_NEEDS} test_${name}.py)
  set_tests_properties(report_${name} PROPERTIES LABELS ${test_LABEL} TIMEOUT ${test_TIMEOUT}
    SKIP_RETURN_CODE 5
    ENVIRONMENT "FOCI_BINARY_DIR=${PROJECT_BINARY_DIR};FOCI_PYTHON=${FOCI_PYTHON}")
endfunction()
foci_page_test(serve NEEDS pytest LABEL quick TIMEOUT 120)
if(NOT FOCI_SANITIZE)
  foci_page_test(browser NEEDS selenium LABEL browser TIMEOUT 300)
endif()
