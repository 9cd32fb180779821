# SPDX-License-Identifier: Apache-2.0
# pictures: what is drawn of numbers. `foci measure --pictures` is tested where commands run over
# runs that were trained.
foci_test(report/pictures_test.cpp LIBRARIES foci_data_inside)
if(TARGET train_command_test)
  target_sources(train_command_test PRIVATE report/command_test.cpp)
endif()
# The page and foci serve: what the library writes, what the server answers, and the page in a
# browser (label browser; skipped where chromium, its driver or selenium is missing).
foci_test(report/page_test.cpp LIBRARIES foci_data_inside)
if(NOT TARGET foci_command)
  return()
endif()
foreach(module pytest selenium)
  set(FOCI_${module}_PYTHON)
  foreach(candidate ${FOCI_PYTHON} python3 /usr/bin/python3)
    execute_process(COMMAND ${candidate} -c "import pytest, ${module}"
      RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
    if(NOT FOCI_${module}_PYTHON AND NOT missing)
      set(FOCI_${module}_PYTHON ${candidate})
    endif()
  endforeach()
endforeach()
if(NOT FOCI_pytest_PYTHON)
  message(STATUS "report tests: left out, no python3 here has pytest")
  return()
endif()
if(NOT FOCI_selenium_PYTHON)
  message(STATUS "report tests: no python3 here has selenium; the page is not tried in a browser")
  set(FOCI_selenium_PYTHON ${FOCI_pytest_PYTHON})
endif()
set(environment PYTHONDONTWRITEBYTECODE=1 FOCI_BINARY_DIR=${PROJECT_BINARY_DIR})
add_test(NAME report_serve COMMAND ${FOCI_pytest_PYTHON} -m pytest -q -p no:cacheprovider
  ${CMAKE_CURRENT_SOURCE_DIR}/report/test_serve.py)
add_test(NAME report_browser COMMAND ${FOCI_selenium_PYTHON} -m pytest -q -p no:cacheprovider
  ${CMAKE_CURRENT_SOURCE_DIR}/report/test_browser.py)
set_tests_properties(report_serve PROPERTIES LABELS quick TIMEOUT 120
  ENVIRONMENT "${environment}")
set_tests_properties(report_browser PROPERTIES LABELS browser TIMEOUT 300 SKIP_RETURN_CODE 5
  ENVIRONMENT "${environment}")
