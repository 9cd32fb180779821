foci_test(ref/gradients_test.cpp)
