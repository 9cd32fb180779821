# SPDX-License-Identifier: Apache-2.0
foci_test(attend/settings_test.cpp)
foci_test(attend/golden_test.cpp)
foci_test(attend/exact_test.cpp LABELS quick threads)
foci_test(attend/decode_test.cpp)
foci_test(attend/shapes_test.cpp)
foci_test(attend/packed_test.cpp)
foci_test(attend/messages_test.cpp LABELS quick threads)
foci_test(attend/allocation_test.cpp LABELS quick threads)
