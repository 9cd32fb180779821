# SPDX-License-Identifier: Apache-2.0
# Several processes: forks of the test and the command itself; torch must be idle before a fork.
find_program(FOCI_PYTHON3 python3)
mark_as_advanced(FOCI_PYTHON3)
if(FOCI_PYTHON3)
  add_test(NAME dist_scale_page COMMAND ${FOCI_PYTHON3} bench/scale.py --check docs/scale.md
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(dist_scale_page PROPERTIES LABELS quick TIMEOUT 60)
endif()
if(FOCI_HAS_NCCL AND TARGET foci_cli_torch)
  add_test(NAME dist_nccl COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/dist/nccl_test.sh
    ${PROJECT_BINARY_DIR}/foci)
  set_tests_properties(dist_nccl PROPERTIES LABELS gpu TIMEOUT 600)
endif()
if(NOT FOCI_HAS_TORCH OR NOT FOCI_HAS_GLOO OR NOT TARGET foci_cli_torch)
  return()
endif()
add_executable(dist_command_test dist/group_test.cpp dist/weights_test.cpp dist/faults_test.cpp
  dist/launch_test.cpp dist/context_test.cpp dist/compare_test.cpp dist/verdict_test.cpp
  ${PROJECT_SOURCE_DIR}/src/dist/verdict.cpp)
target_include_directories(dist_command_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(dist_command_test PRIVATE foci_cli_torch)
foci_test_of(dist_command_test FILTERS Standing Verdict Group Weights Context Faults Launch
  CompareRanks)
# Preloaded: a clock that somebody sets, images that never come.
add_library(dist_jumping_clock MODULE dist/jumping_clock.cpp)
add_library(dist_stuck_open MODULE dist/stuck_open.cpp)
target_link_libraries(dist_stuck_open PRIVATE ${CMAKE_DL_LIBS})
target_compile_definitions(dist_command_test PRIVATE
  FOCI_JUMPING_CLOCK="$<TARGET_FILE:dist_jumping_clock>"
  FOCI_STUCK_OPEN="$<TARGET_FILE:dist_stuck_open>")
add_dependencies(dist_command_test foci_command foci_torch_command dist_jumping_clock
  dist_stuck_open)
