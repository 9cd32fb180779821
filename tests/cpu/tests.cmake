# SPDX-License-Identifier: Apache-2.0
foci_test(cpu/isa_test.cpp)
foci_test(cpu/softmax_bf16_test.cpp)
foci_test(cpu/softmax_bf16_backward_test.cpp)
# AMX with arrays for tiles, so that what is around them is tried on any machine with AVX512-BF16.
get_property(options GLOBAL PROPERTY FOCI_OPTIONS_AVX512BF16)
if(options)
  add_library(foci_cpu_amx_emulated OBJECT
    ${PROJECT_SOURCE_DIR}/src/cpu/softmax_bf16.cpp
    ${PROJECT_SOURCE_DIR}/src/cpu/softmax_bf16_backward.cpp)
  target_compile_definitions(foci_cpu_amx_emulated PUBLIC FOCI_AMX_EMULATED)
  target_compile_options(foci_cpu_amx_emulated PRIVATE -O3 ${options})
  target_include_directories(foci_cpu_amx_emulated PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(cpu_softmax_bf16_test PRIVATE foci_cpu_amx_emulated)
  target_link_libraries(cpu_softmax_bf16_backward_test PRIVATE foci_cpu_amx_emulated)
endif()
foci_test(cpu/matrix_test.cpp)
foci_test(cpu/softmax_test.cpp)
foci_test(cpu/sweep_test.cpp LABELS full)
foci_test(cpu/key_covariance_test.cpp)
foci_test(cpu/full_metric_test.cpp)
foci_test(cpu/decode_test.cpp)
foci_test(cpu/jacobian_test.cpp)
