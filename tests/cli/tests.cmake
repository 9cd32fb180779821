# SPDX-License-Identifier: Apache-2.0
# Tests of the command: most run the built binary, the others call its library.
if(TARGET foci_command)
  foreach(name golden messages flags json pages verbs bench contest data data_change models
      generate)
    add_executable(cli_${name}_test cli/${name}_test.cpp)
    target_link_libraries(cli_${name}_test PRIVATE foci_cli)
    foci_test_of(cli_${name}_test HEADERS test_headers)
    add_dependencies(cli_${name}_test foci_command)
    if(TARGET foci_torch_command)
      add_dependencies(cli_${name}_test foci_torch_command)
    endif()
    if(TARGET foci_sgemm)
      add_dependencies(cli_${name}_test foci_sgemm)
    endif()
  endforeach()
endif()
