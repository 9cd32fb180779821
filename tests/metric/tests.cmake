foci_test(metric/formulas_test.cpp)
