# SPDX-License-Identifier: Apache-2.0
# library: what attacks compute, with the library's objects. `foci attack` is tested where commands
# run in processes that are killed.
if(NOT FOCI_HAS_TORCH)
  return()
endif()
add_executable(attack_library_test attack/library_test.cpp attack/doubts_test.cpp
  $<TARGET_OBJECTS:foci_attack_objects>)
target_link_libraries(attack_library_test PRIVATE foci_attack_objects)
foci_test_of(attack_library_test HEADERS torch_test_headers)
if(TARGET train_command_test)
  target_sources(train_command_test PRIVATE attack/command_test.cpp)
endif()
if(TARGET foci_cli_torch)
  add_executable(attack_records_test attack/records_test.cpp)
  target_link_libraries(attack_records_test PRIVATE foci_cli_torch)
  foci_test_of(attack_records_test HEADERS torch_test_headers)
endif()
