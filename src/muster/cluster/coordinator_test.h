#pragma once

// A Coordinator in this process, and the options of its members.

#include <chrono>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "muster/cluster/coordinator.h"
#include "muster/cluster/member.h"

namespace muster::detail {

class CoordinatorFixture : public ::testing::Test {
 protected:
  static Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

  static TaskSet workers(int count) {
    TaskSet tasks;
    for (int i = 0; i < count; ++i) tasks["worker"].push_back(i);
    return tasks;
  }

  void start(TaskSet tasks, FailurePolicy policy = FailurePolicy::kAbort) {
    cluster = tasks;
    coordinator.emplace(Coordinator::Options{.listen = {{"127.0.0.1", 0}},
                                             .job_id = "test",
                                             .secret = "secret",
                                             .tasks = std::move(tasks),
                                             .failure_policy = policy});
  }

  Member::Options options(const std::string& job, int index) {
    return {.coordinator = {coordinator->address()},
            .job_id = "test",
            .secret = "secret",
            .task = TaskName::of(job, index),
            .tasks = cluster,
            .address = "127.0.0.1:" + std::to_string(1000 + index)};
  }

  TaskSet cluster;
  std::optional<Coordinator> coordinator;
};

}  // namespace muster::detail
