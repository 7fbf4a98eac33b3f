#include "muster/testing/test_main.h"

#include <cstdio>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::testing {

int run_tests(int argc, char** argv, const std::map<std::string, TaskMain>& tasks) {
  const std::string prefix = "--task-main=";
  if (argc > 1 && std::string(argv[1]).starts_with(prefix)) {
    const auto task = tasks.find(std::string(argv[1]).substr(prefix.size()));
    if (task == tasks.end()) raise<InvalidArgument>("there is no task {}", argv[1]);
    try {
      return task->second(std::vector<std::string>(argv + 2, argv + argc));
    } catch (const std::exception& error) {
      fmt::print(stderr, "threw: {}\n", error.what());
      return 1;
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace muster::testing
