# SPDX-License-Identifier: Apache-2.0
foci_test(capi/capi_test.cpp)
