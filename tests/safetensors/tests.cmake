# SPDX-License-Identifier: Apache-2.0
foci_test(safetensors/header_test.cpp)
foci_test(safetensors/reader_test.cpp)
foci_test(safetensors/writer_test.cpp)
foci_test(safetensors/fault_test.cpp)
