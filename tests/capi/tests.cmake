foci_test(capi/capi_test.cpp)
