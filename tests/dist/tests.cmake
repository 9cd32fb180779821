# SPDX-License-Identifier: Apache-2.0
# Several processes: forks of the test and the command itself; torch must be idle before a fork.
if(NOT FOCI_HAS_TORCH OR NOT FOCI_HAS_GLOO OR NOT TARGET foci_cli_torch)
  return()
endif()
add_executable(dist_command_test dist/group_test.cpp dist/weights_test.cpp dist/faults_test.cpp
  dist/launch_test.cpp dist/context_test.cpp)
target_link_libraries(dist_command_test PRIVATE foci_cli_torch)
foci_test_of(dist_command_test)
add_dependencies(dist_command_test foci_command foci_torch_command)
