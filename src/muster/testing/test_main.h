#pragma once

// The main of a test program that starts itself again as the tasks of a cluster.
//
//   int enter_job(const std::vector<std::string>& arguments) { ... }
//   const TaskRegistration kEnterJob("enter", enter_job);
//
//   int main(int argc, char** argv) { return run_tests(argc, argv); }
//
// Started with --task-main=enter it runs that function and nothing else; otherwise it runs the tests.

#include <functional>
#include <string>
#include <vector>

namespace muster::detail::testing {

using TaskMain = std::function<int(const std::vector<std::string>& arguments)>;

/// A task that the program can run as; at namespace scope, so that run_tests() finds it, as GoogleTest
/// finds its tests.
class TaskRegistration {
 public:
  TaskRegistration(const std::string& name, TaskMain main);
};

int run_tests(int argc, char** argv);

}  // namespace muster::detail::testing
