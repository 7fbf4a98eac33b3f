#include "muster/runtime/replica_coordinator.h"

#include <atomic>
#include <future>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/deadline.h"
#include "muster/optim.h"
#include "muster/optim/rule_text.h"
#include "muster/testing/message_of.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

constexpr auto kWaitAtMost = std::chrono::seconds(60);

struct Coordination {
  Coordination(int workers, int aggregate, std::chrono::milliseconds stall_warning = {})
      : step("global_step"), coordinator(replica_options(workers, aggregate), step, stall_warning) {
    step.assign(torch::zeros({}, at::kLong));
  }

  // A worker's run that ends well.
  int64_t run(const ReplicaCoordinator::Run& run) {
    const auto commands = coordinator.push(run, 0.1).commands;
    coordinator.carried_out(run, commands.empty() ? 0 : commands.back().number);
    return wait(run);
  }

  int64_t wait(const ReplicaCoordinator::Run& run) {
    coordinator.wait(run, [deadline = Deadline::after(kWaitAtMost)] {
      if (deadline.expired()) throw DeadlineExceeded("a wait did not end");
    });
    return step.read().item<int64_t>();
  }

  TaskVariable step;
  ReplicaCoordinator coordinator;
};

TEST(ReplicaCoordinator, WhatSomebodyDidNotCarryOutTheNextRunDoes) {
  Coordination all(2, 2);
  all.wait({.worker = 0, .session = 1, .step = 10});
  all.wait({.worker = 1, .session = 2, .step = 20});
  auto waiting =
      std::async(std::launch::async, [&] { return all.run({.worker = 0, .session = 1, .step = 11}); });
  std::vector<NumberedCommand> commands;
  const auto deadline = Deadline::after(kWaitAtMost);
  // Whichever of the two is second gets the update; here it is worker 1.
  while (commands.empty() && !deadline.expired()) {
    if (waiting.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout)
      commands = all.coordinator.push({.worker = 1, .session = 2, .step = 21}, 0.1).commands;
  }
  ASSERT_EQ(commands.size(), 1U);
  EXPECT_EQ(commands.front().command.kind, Command::Kind::kApply);
  EXPECT_EQ(commands.front().command.sources.size(), 2U);
  all.coordinator.end_run(21);
  EXPECT_EQ(waiting.get(), 0) << "it is let go without a token";
  all.coordinator.end_session(2);
  const auto again = all.coordinator.push({.worker = 0, .session = 1, .step = 12}, 0.1).commands;
  ASSERT_GE(again.size(), 2U);
  EXPECT_EQ(again.front().number, commands.front().number);
  EXPECT_EQ(again.front().command.sources, commands.front().command.sources);
  EXPECT_EQ(again.back().command.kind, Command::Kind::kDrop) << "its own gradient: it had no token";
  all.coordinator.carried_out({.worker = 0, .session = 1, .step = 12}, again.back().number);
  EXPECT_EQ(all.wait({.worker = 0, .session = 1, .step = 12}), 1);
  EXPECT_EQ(all.run({.worker = 0, .session = 1, .step = 13}), 2) << "alone now";
}

TEST(ReplicaCoordinator, AWaitEndsWithItsRunAndWithItsSession) {
  Coordination all(2, 2);
  const ReplicaCoordinator::Run run{.worker = 0, .session = 1, .step = 10};
  all.wait(run);
  all.coordinator.push(run, 0.1);
  all.coordinator.carried_out(run, 0);
  EXPECT_THROW(all.coordinator.wait(run, [] { throw Aborted("the client has gone"); }), Aborted);
  auto waiting = std::async(std::launch::async, [&] { return message_of([&] { all.wait(run); }); });
  all.coordinator.end_session(1);
  EXPECT_THAT(waiting.get(), HasSubstr("has ended"));
}

TEST(ReplicaCoordinator, AWaitSaysForWhomAfterTheStallWarning) {
  Coordination all(2, 2, std::chrono::milliseconds(50));
  const ReplicaCoordinator::Run run{.worker = 0, .session = 1, .step = 10};
  all.wait(run);
  all.coordinator.push(run, 0.1);
  all.coordinator.carried_out(run, 0);
  std::atomic<bool> is_said = false;
  set_log_sink([&](std::string_view line) {
    if (line.find("replica 0 waits for one gradient more of replicas 1") != std::string_view::npos)
      is_said = true;
  });
  const auto deadline = Deadline::after(kWaitAtMost);
  EXPECT_THROW(all.coordinator.wait(run,
                                    [&] {
                                      if (is_said || deadline.expired()) throw Aborted("it was said");
                                    }),
               Aborted);
  set_log_sink({});
  EXPECT_TRUE(is_said);
}

TEST(ReplicaCoordinator, TwoClientsThatAreTheSameReplicaAreToldSo) {
  Coordination all(2, 2);
  const ReplicaCoordinator::Run run{.worker = 0, .session = 1, .step = 10};
  all.wait(run);
  all.coordinator.push(run, 0.1);
  all.coordinator.carried_out(run, 0);
  auto waiting = std::async(std::launch::async, [&] { return message_of([&] { all.wait(run); }); });
  all.coordinator.push({.worker = 0, .session = 2, .step = 11}, 0.1);
  EXPECT_THAT(waiting.get(),
              HasSubstr("another client says that it is replica 0, too, and is taken for it: each client has "
                        "a number of its own in SyncReplicas::replica"));
}

TEST(ReplicaCoordinator, AllReplicasHaveTheSameNumbers) {
  Coordination all(2, 2);
  EXPECT_THAT(message_of([&] { all.coordinator.check_options(replica_options(3, 2)); }),
              HasSubstr("aggregates 2 of 3 replicas, and others 2 of 2"));
  EXPECT_THAT(message_of([&] { all.wait({.worker = 2}); }),
              HasSubstr("there is no replica 2: they are 0 to 1"));
}

// The task with the global step was started again, and those of the variables were not.
TEST(Accumulator, CarriesOutTheCommandsOfACoordinatorThatBeginsAnew) {
  TaskVariable variable("w");
  variable.assign(torch::zeros({2}));
  Accumulator accumulator(variable);
  const auto rule = parse_rule(optim::SGD({.lr = 1}).to_string());
  const auto use = [&](uint64_t coordinator, int64_t number, uint64_t sequence) {
    accumulator.carry_out({.coordinator = coordinator,
                           .commands = {{number,
                                         {.kind = Command::Kind::kApply,
                                          .sources = {{.worker = 0, .sequence = sequence}},
                                          .lr = 1}}}},
                          *rule);
  };
  for (int64_t step = 1; step <= 3; ++step) {
    accumulator.keep(0, static_cast<uint64_t>(step), torch::ones({2}));
    use(7, step, static_cast<uint64_t>(step));
    use(7, step, static_cast<uint64_t>(step));  // a second run was given the same command
  }
  EXPECT_EQ(variable.read()[0].item<float>(), -3);
  const at::Tensor unused = torch::ones({2});
  accumulator.keep(0, 4, unused);
  accumulator.keep(0, 5, torch::ones({2}));
  use(8, 1, 5);
  EXPECT_EQ(variable.read()[0].item<float>(), -4);
  EXPECT_EQ(unused.storage().use_count(), 1) << "the gradient that the last one did not use is still kept";
}

TEST(ReplicaCommands, AreThemselvesAgainOnTheOtherSide) {
  const std::vector<NumberedCommand> commands = {{7,
                                                  {.kind = Command::Kind::kApply,
                                                   .sources = {{.worker = 1, .sequence = ~uint64_t{0}}},
                                                   .divisor = 3,
                                                   .lr = 0.1}},
                                                 {8, {.kind = Command::Kind::kDrop, .lr = -1}}};
  const at::Tensor packed = pack({.coordinator = ~uint64_t{1}, .commands = commands});
  const auto [coordinator, found] = unpack(packed);
  EXPECT_EQ(coordinator, ~uint64_t{1});
  ASSERT_EQ(found.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found[i].number, commands[i].number);
    EXPECT_EQ(found[i].command, commands[i].command);
  }
  for (int64_t size = 0; size < packed.numel(); ++size) {
    if (size == 1 || size == 8) continue;  // no command; the first alone
    EXPECT_THROW(unpack(packed.slice(0, 0, size)), InvalidArgument) << size;
  }
  EXPECT_THROW(unpack(torch::ones({3})), InvalidArgument);
}

}  // namespace
}  // namespace muster::detail
