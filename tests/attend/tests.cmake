# SPDX-License-Identifier: Apache-2.0
foci_test(attend/settings_test.cpp)
foci_test(attend/golden_test.cpp)
foci_test(attend/exact_test.cpp LABELS quick threads)
foci_test(attend/decode_test.cpp)
foci_test(attend/shapes_test.cpp)
foci_test(attend/packed_test.cpp)
foci_test(attend/messages_test.cpp LABELS quick threads)
foci_test(attend/allocation_test.cpp LABELS quick threads)

# Random mechanisms and shapes, the same ones every time here: the names of what failed stay.
find_package(rapidcheck QUIET CONFIG)
if(rapidcheck_FOUND)
  foci_test(attend/property_test.cpp LIBRARIES rapidcheck
    ENVIRONMENT "RC_PARAMS=seed=1 max_success=150 max_discard_ratio=20")
else()
  add_test(NAME attend_property_test COMMAND ${CMAKE_COMMAND} -E echo
    "no RapidCheck here (Debian: librapidcheck-dev); tests/attend/property_test.cpp is not built")
  set_tests_properties(attend_property_test PROPERTIES LABELS quick
    SKIP_REGULAR_EXPRESSION "no RapidCheck here")
endif()
