# SPDX-License-Identifier: Apache-2.0
# The documents: pictures are drawn again, commands run, code compiled and run.
foci_test(docs/paths_test.cpp)
foci_test(docs/performance_test.cpp)
target_sources(docs_performance_test PRIVATE docs/reliability_test.cpp)
foci_test(docs/quotes_test.cpp)
foci_test(docs/pictures_test.cpp)
add_dependencies(docs_pictures_test draw_pictures)
foci_test(docs/concentration_test.cpp LIBRARIES foci_data_inside)
add_dependencies(docs_concentration_test draw_concentration)

if(FOCI_BUILD_CLI)
  foci_test(docs/commands_test.cpp)
  add_dependencies(docs_commands_test foci_command)
  foci_test(docs/theory_test.cpp)
  add_dependencies(docs_theory_test foci_command)
endif()

add_executable(docs_write_blocks docs/write_blocks.cpp)
target_include_directories(docs_write_blocks PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
set_target_properties(docs_write_blocks PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
file(GLOB docs_pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md)
set(docs_made ${CMAKE_CURRENT_BINARY_DIR}/docs_pages.cpp ${CMAKE_CURRENT_BINARY_DIR}/docs_pages.c)
add_custom_command(OUTPUT ${docs_made}
  COMMAND docs_write_blocks ${PROJECT_SOURCE_DIR} ${docs_made}
  DEPENDS docs_write_blocks ${docs_pages} ${PROJECT_SOURCE_DIR}/README.md
  VERBATIM)
list(GET docs_made 0 docs_cpp)
list(GET docs_made 1 docs_c)
add_executable(docs_pages_test ${docs_cpp})
target_link_libraries(docs_pages_test PRIVATE foci::foci foci::data)
foci_test_of(docs_pages_test)
add_executable(docs_pages_c ${docs_c})
target_link_libraries(docs_pages_c PRIVATE foci::foci)
set_target_properties(docs_pages_c PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_test(NAME docs_pages_c COMMAND docs_pages_c)
set_tests_properties(docs_pages_c PROPERTIES LABELS quick TIMEOUT 600)
add_dependencies(docs_pages_c docs_pages_test)
