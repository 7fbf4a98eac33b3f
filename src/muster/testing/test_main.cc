#include "muster/testing/test_main.h"

#include <cstdio>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster::detail::testing {
namespace {

std::map<std::string, TaskMain>& registered_tasks() {
  static std::map<std::string, TaskMain> tasks;
  return tasks;
}

}  // namespace

TaskRegistration::TaskRegistration(const std::string& name, TaskMain main) {
  MUSTER_CHECK(registered_tasks().emplace(name, std::move(main)).second, "two tasks are called {}", name);
}

int run_tests(int argc, char** argv) {
  const std::string prefix = "--task-main=";
  if (argc > 1 && std::string(argv[1]).starts_with(prefix)) {
    const auto task = registered_tasks().find(std::string(argv[1]).substr(prefix.size()));
    if (task == registered_tasks().end()) raise<InvalidArgument>("there is no task {}", argv[1]);
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

}  // namespace muster::detail::testing
