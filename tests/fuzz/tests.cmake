# SPDX-License-Identifier: Apache-2.0
# The fuzzers (libFuzzer): each gets FOCI_FUZZ_RUNS inputs, grown from tests/fuzz/corpus/<name>.
# What a run finds worth keeping stays in the build folder; an input that fails is written there.
if(FOCI_FUZZ)
  add_custom_target(fuzzers)
endif()
function(foci_fuzz name)
  cmake_parse_arguments(fuzz "" "" "LIBRARIES" ${ARGN})
  add_executable(${name}_fuzz fuzz/${name}_fuzz.cpp)
  add_dependencies(fuzzers ${name}_fuzz)
  target_compile_definitions(${name}_fuzz PRIVATE
    FOCI_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FOCI_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_link_libraries(${name}_fuzz PRIVATE ${fuzz_LIBRARIES})
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  set(grown ${PROJECT_BINARY_DIR}/fuzz/${name})
  file(MAKE_DIRECTORY ${grown})
  add_test(NAME ${name}_fuzz COMMAND ${name}_fuzz -runs=${FOCI_FUZZ_RUNS} -seed=1 -timeout=20
    -rss_limit_mb=4096 -print_final_stats=1 -print_funcs=0 -verbosity=0 -artifact_prefix=${grown}-
    ${grown} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
  set_tests_properties(${name}_fuzz PROPERTIES LABELS fuzz TIMEOUT 7200
    ENVIRONMENT "ASAN_OPTIONS=allocator_may_return_null=0;UBSAN_OPTIONS=print_stacktrace=1")
endfunction()

if(FOCI_FUZZ)
  foci_fuzz(safetensors LIBRARIES foci_inside)
  foci_fuzz(flags LIBRARIES foci_cli)
  foci_fuzz(requests LIBRARIES foci_cli)
  foreach(reader records pictures text checkpoints)
    foci_fuzz(${reader} LIBRARIES foci_data_inside)
    target_include_directories(${reader}_fuzz PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  endforeach()
  # What lies in the folder of a run is read without torch, though by what is built with it.
  foci_fuzz(runs LIBRARIES foci_cli)
  target_sources(runs_fuzz PRIVATE ${PROJECT_SOURCE_DIR}/src/train/run_files.cpp
    ${PROJECT_SOURCE_DIR}/src/train/checkpoint_folder.cpp
    ${PROJECT_SOURCE_DIR}/src/train/events.cpp ${PROJECT_SOURCE_DIR}/cli/torch/run_folder.cpp
    ${PROJECT_SOURCE_DIR}/src/models/gpt2_config.cpp)
  target_include_directories(runs_fuzz
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
endif()
