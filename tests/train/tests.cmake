# SPDX-License-Identifier: Apache-2.0
# command: the command in processes of its own, which are killed; torch must be idle before a fork.
if(NOT FOCI_HAS_TORCH)
  return()
endif()
add_executable(train_library_test train/library_test.cpp train/rescue_test.cpp
  ${PROJECT_SOURCE_DIR}/src/train/events.cpp)
target_link_libraries(train_library_test PRIVATE foci_train)
target_include_directories(train_library_test PRIVATE ${PROJECT_SOURCE_DIR}/src)
foci_test_of(train_library_test HEADERS torch_test_headers)
if(TARGET foci_cli_torch)
  add_executable(train_command_test train/command_test.cpp train/kill_test.cpp
    train/tasks_test.cpp train/harm_test.cpp train/fault_test.cpp train/weights_test.cpp)
  target_link_libraries(train_command_test PRIVATE foci_cli_torch)
  foci_test_of(train_command_test FILTERS Train Killed Faults Compare CompareAgain CompareTasks)
  add_dependencies(train_command_test foci_command foci_torch_command)
endif()
