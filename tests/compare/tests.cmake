# SPDX-License-Identifier: Apache-2.0
foci_test(compare/statistics_test.cpp)
# `foci compare` is tested where commands run in processes that are killed.
if(TARGET train_command_test)
  target_sources(train_command_test PRIVATE compare/command_test.cpp
    compare/again_test.cpp compare/budget_test.cpp compare/images_test.cpp compare/plan_test.cpp
    compare/report_test.cpp compare/results_test.cpp compare/table_test.cpp compare/tasks_test.cpp)
endif()
