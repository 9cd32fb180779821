# SPDX-License-Identifier: Apache-2.0
foci_test(report/pictures_test.cpp LIBRARIES foci_data_inside)
