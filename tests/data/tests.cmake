# SPDX-License-Identifier: Apache-2.0
foreach(name records images text augment generate convert llama2c)
  foci_test(data/${name}_test.cpp LIBRARIES foci_data_inside)
endforeach()
foci_test(data/loader_test.cpp LABELS quick threads LIBRARIES foci_data_inside)
