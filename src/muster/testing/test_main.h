#pragma once

// The main of a test program that starts itself again as the tasks of a cluster.
//
//   int main(int argc, char** argv) { return run_tests(argc, argv, {{"join", join_task}}); }
//
// Started with --task-main=join it runs that function and nothing else; otherwise it runs the tests.

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace muster::testing {

using TaskMain = std::function<int(const std::vector<std::string>& arguments)>;

int run_tests(int argc, char** argv, const std::map<std::string, TaskMain>& tasks);

}  // namespace muster::testing
