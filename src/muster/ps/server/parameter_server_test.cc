#include "muster/ps/server/parameter_server_test.h"

namespace muster::detail {
namespace {

using namespace testing;

UpdateRulePtr plain_sgd() {
  return sgd({.lr = 1});
}

class ParameterServers : public ::testing::TestWithParam<Setup> {};

INSTANTIATE_TEST_SUITE_P(Setups, ParameterServers,
                         ::testing::Values(Setup{1, true}, Setup{1, false}, Setup{3, true}, Setup{3, false}));

TEST_P(ParameterServers, APushIsAppliedAndAPullGivesTheResult) {
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = 1}, plain_sgd()));
  Worker worker(servers.client_options(0));
  worker.initialise(10);
  worker.enter();
  EXPECT_EQ(worker.value(), 10);
  for (int i = 1; i <= 5; ++i) {
    const Reply reply = worker.push(0.5F);
    EXPECT_EQ(reply.kind, Reply::Kind::kBegin);
    EXPECT_EQ(reply.step, i);
    EXPECT_EQ(worker.value(), 10 - 0.5F * static_cast<float>(i));
  }
  worker.client().leave();
}

TEST_P(ParameterServers, AreOverWhenAllWorkersHaveLeftAndNotWhenOneHasFailed) {
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = 2}, plain_sgd()));
  const auto await_over = [&](int server) {
    const auto deadline = Deadline::after(20s);
    while (!servers[server].progress().over && !deadline.expired()) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(servers[server].progress().over) << "server " << server;
  };
  Worker first(servers.client_options(0));
  first.initialise(0);
  first.enter();
  {
    Worker failing(servers.client_options(1));
    failing.enter();
    servers[0].report_failure(1, 0);
  }
  first.push(1);
  first.client().leave();
  Worker again(servers.client_options(1, 1));
  again.enter();
  again.push(1);
  for (int i = 0; i < GetParam().servers; ++i) EXPECT_FALSE(servers[i].progress().over) << "server " << i;
  again.client().leave();
  await_over(0);
  for (int i = 1; i < GetParam().servers; ++i) {
    EXPECT_FALSE(servers[i].progress().over) << "the leader may still have commands for " << i;
  }
  servers.pointer(0).reset();
  for (int i = 1; i < GetParam().servers; ++i) await_over(i);
}

TEST_P(ParameterServers, EveryAsynchronousUpdateCountsAndVersionsAreWhole) {
  constexpr int kWorkers = 3;
  constexpr int kPushes = 40;
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = kWorkers}, plain_sgd()));
  run_workers(kWorkers, [&](int index) {
    Worker worker(servers.client_options(index));
    if (index == 0) worker.initialise(0);
    worker.enter();
    for (int i = 0; i < kPushes; ++i) {
      worker.push(1);
      if (GetParam().servers == 1) {
        EXPECT_EQ(worker.value(), -static_cast<float>(worker.version()));
      }
    }
    worker.finish_epoch();
    EXPECT_EQ(worker.value(), -kWorkers * kPushes);
    worker.client().leave();
  });
}

TEST_P(ParameterServers, SynchronousWorkersAreAveraged) {
  constexpr int kWorkers = 3;
  ServerGroup servers(
      GetParam(),
      spec_of(GetParam(), {.workers = kWorkers, .phases = {{0, Mode::kSync}}, .max_steps = 20}, plain_sgd()));
  run_workers(kWorkers, [&](int index) {
    Worker worker(servers.client_options(index));
    if (index == 0) worker.initialise(0);
    int steps = 0;
    for (Reply reply = worker.enter(); reply.kind == Reply::Kind::kBegin;) {
      EXPECT_EQ(worker.value(), -2 * static_cast<float>(reply.step));
      reply = worker.push(static_cast<float>(index + 1));
      ++steps;
    }
    EXPECT_EQ(steps, 20);
    EXPECT_EQ(worker.value(), -40);
    worker.client().leave();
  });
}

TEST_P(ParameterServers, AWorkerMayContributeSeveralGradientsToAStep) {
  ServerGroup servers(
      GetParam(),
      spec_of(GetParam(), {.workers = 1, .phases = {{0, Mode::kSync}}, .max_steps = 4, .aggregate = 3},
              plain_sgd()));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  int pushes = 0;
  for (Reply reply = worker.enter(); reply.kind == Reply::Kind::kBegin; ++pushes)
    reply = worker.push(static_cast<float>(pushes % 3));
  EXPECT_EQ(pushes, 12);
  EXPECT_EQ(worker.value(), -4);
}

TEST_P(ParameterServers, AVariableWithoutGradientStaysAsItIs) {
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = 1}, plain_sgd()));
  ParameterClient client(servers.client_options(0));
  std::vector<std::vector<float>> values = {std::vector<float>(21, 1), std::vector<float>(5, 2),
                                            std::vector<float>(300 * 257, 3)};
  std::vector<float*> variables = {values[0].data(), values[1].data(), values[2].data()};
  client.initialise(std::vector<const float*>(variables.begin(), variables.end()));
  const Reply reply = client.enter();
  const std::vector<float> gradient(5, 0.25F);  // outside of the arena
  client.deliver(1, gradient.data());
  client.pull(client.push({.step = reply.step, .lr = 1}).version, variables);
  EXPECT_THAT(values[0], ::testing::Each(1));
  EXPECT_THAT(values[1], ::testing::Each(1.75));
  EXPECT_THAT(values[2], ::testing::Each(3));
}

TEST_P(ParameterServers, AWorkerThatDiesLeavesTheOthersAlone) {
  auto setup = GetParam();
  setup.heartbeat_timeout = 1s;  // after which a worker on another host counts as dead
  ServerGroup servers(
      setup, spec_of(setup, {.workers = 2, .phases = {{0, Mode::kSync}}, .max_steps = 10}, plain_sgd()));
  auto dying = std::make_unique<Worker>(servers.client_options(1));
  run_workers(2, [&](int index) {
    if (index == 1) {
      dying->enter();
      dying->push(3);
      dying.reset();
      return;
    }
    Worker worker(servers.client_options(0));
    worker.initialise(0);
    for (Reply reply = worker.enter(); reply.kind == Reply::Kind::kBegin;) reply = worker.push(1);
    EXPECT_EQ(worker.reply().step, 10);
    EXPECT_EQ(worker.value(), -2 - 9);
  });
}

TEST_P(ParameterServers, AWorkerThatComesAgainEntersAtTheCurrentStep) {
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = 2}, plain_sgd()));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  worker.enter();
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    Worker other(servers.client_options(1, incarnation));
    EXPECT_EQ(other.enter().step, 2 * incarnation);
    other.push(1);
    worker.push(1);
  }
  EXPECT_EQ(worker.reply().step, 6);
}

TEST_P(ParameterServers, AServerThatComesBackWithoutItsParametersIsAnError) {
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = 1}, plain_sgd()));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  worker.enter();
  worker.push(1);
  servers.pointer(0).reset();
  servers.pointer(0) = servers.make(0);
  try {
    worker.push(1);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const DataLoss& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("parameter server 0 was started again"));
  }
}

TEST_P(ParameterServers, AServerThatDoesNotComeBackIsNamed) {
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = 1}, plain_sgd()));
  auto options = servers.client_options(0);
  options.server_wait = 300ms;
  Worker worker(std::move(options));
  worker.initialise(0);
  worker.enter();
  servers.pointer(0).reset();
  try {
    worker.push(1);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("parameter server 0"));
  }
}

TEST_P(ParameterServers, AnotherModelIsRefused) {
  ServerGroup servers(GetParam(), spec_of(GetParam(), {.workers = 1}, plain_sgd()));
  auto options = servers.client_options(0);
  options.spec.variables[0].shape = {7, 3};
  EXPECT_THROW(ParameterClient client(std::move(options)), Refused);
}

TEST_P(ParameterServers, HalfPrecisionTravelsAndFullPrecisionIsKept) {
  auto spec = spec_of(GetParam(), {.workers = 1}, plain_sgd());
  spec.wire_dtype = DType::kBFloat16;
  ServerGroup servers(GetParam(), spec);
  Worker worker(servers.client_options(0));
  worker.initialise(1);
  worker.enter();
  for (int i = 0; i < 8; ++i) worker.push(1.0F / 1024);
  // One 1/1024 is lost in a bfloat16 near 1; eight of them are not, where the server keeps them all.
  EXPECT_EQ(worker.value(), 1 - 8.0F / 1024);
}

TEST(AGradientThatIsNotANumber, IsNamedWithItsWorkerAndTheReportCountsAllBeforeIt) {
  const testing::Setup setup = {.servers = 1, .shared = true};
  ModelSpec spec = spec_of(setup, {.workers = 2}, plain_sgd());
  spec.stop_at_nan = true;
  ServerGroup servers(setup, spec);
  auto options = servers.client_options(0);
  options.server_wait = 100ms;  // the server does not come back
  Worker worker(std::move(options));
  worker.initialise(0);
  worker.enter();
  for (int i = 0; i < 20; ++i) worker.push(1);
  std::thread last([&] {
    EXPECT_THROW(worker.push(std::numeric_limits<float>::quiet_NaN()), PeerLost);  // when the server is gone
  });
  const auto limit = Deadline::after(100s);
  while (servers[0].progress().error.empty() && !limit.expired()) std::this_thread::yield();
  EXPECT_THAT(servers[0].progress().error,
              ::testing::HasSubstr("from worker/0 is infinite or not a number, in update 21"));
  EXPECT_THAT(servers[0].progress().report, ::testing::HasSubstr("worker 0: 21 applied"));
  servers.pointer(0).reset();
  last.join();
}

}  // namespace
}  // namespace muster::detail
