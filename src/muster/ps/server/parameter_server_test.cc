#include "muster/ps/server/parameter_server_test.h"

#include "muster/base/convert.h"
#include "muster/optim/shard_update.h"

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
  std::vector<void*> variables = {values[0].data(), values[1].data(), values[2].data()};
  client.initialise(std::vector<const void*>(variables.begin(), variables.end()));
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

// A variable of each type that is trained, with values and gradients of its own.
struct Mixed {
  Mixed() {
    for (size_t i = 0; i < variables.size(); ++i) {
      std::vector<double> wide(variables[i].count());
      for (size_t k = 0; k < wide.size(); ++k) wide[k] = 0.125 * static_cast<double>(k % 7 + i + 1);
      values.push_back(narrow(wide, variables[i].dtype));
      for (size_t k = 0; k < wide.size(); ++k) wide[k] = static_cast<double>(k % 5 + i) - 2;
      gradients.push_back(narrow(wide, variables[i].dtype));
    }
  }

  static std::vector<std::byte> narrow(const std::vector<double>& from, DType dtype) {
    std::vector<std::byte> to(from.size() * size_of(dtype));
    const std::vector<float> floats(from.begin(), from.end());
    if (dtype == DType::kFloat64) {
      std::memcpy(to.data(), from.data(), to.size());
    } else if (dtype == DType::kFloat32) {
      std::memcpy(to.data(), floats.data(), to.size());
    } else {
      convert(DType::kFloat32, floats.data(), dtype, to.data(), floats.size());
    }
    return to;
  }

  static std::vector<double> widen(const void* from, size_t count, DType dtype) {
    if (dtype == DType::kFloat64)
      return {static_cast<const double*>(from), static_cast<const double*>(from) + count};
    std::vector<float> floats(count);
    if (dtype == DType::kFloat32) {
      std::memcpy(floats.data(), from, count * sizeof(float));
    } else {
      convert(dtype, from, DType::kFloat32, floats.data(), count);
    }
    return {floats.begin(), floats.end()};
  }

  template <typename Pointer>
  static std::vector<Pointer> pointers(std::vector<std::vector<std::byte>>& of) {
    std::vector<Pointer> pointers;
    for (auto& bytes : of) pointers.push_back(bytes.data());
    return pointers;
  }

  std::vector<ParameterInfo> variables = {{"a", {3, 7}},
                                          {"b", {1001}, DType::kBFloat16},
                                          {"c", {130, 257}},
                                          {"d", {517}, DType::kFloat64},
                                          {"e", {300}, DType::kFloat16}};
  std::vector<std::vector<std::byte>> values;
  std::vector<std::vector<std::byte>> gradients;
};

// The same variables and gradients on servers, and in one piece.
void expect_trains_as_one_piece(const Setup& setup, const UpdateRulePtr& rule, double clip_norm) {
  constexpr int kSteps = 3;
  constexpr double kRate = 0.1;
  Mixed mixed;
  const FlatLayout layout(mixed.variables);
  std::vector<std::byte> memory(layout.bytes());
  ShardUpdate whole({.layout = layout, .rule = rule, .parameters = memory.data(), .clip_norm = clip_norm});
  whole.initialise(Mixed::pointers<const void*>(mixed.values));
  const auto gradients = Mixed::pointers<const void*>(mixed.gradients);
  for (int i = 0; i < kSteps; ++i) whole.apply({.sources = {{.gradients = &gradients}}, .lr = kRate});

  ModelSpec spec = spec_of(setup, {.workers = 1}, rule);
  spec.variables = mixed.variables;
  spec.clip_norm = clip_norm;
  ServerGroup servers(setup, spec);
  ParameterClient client(servers.client_options(0));
  client.initialise(Mixed::pointers<const void*>(mixed.values));
  const auto variables = Mixed::pointers<void*>(mixed.values);
  Reply reply = client.enter();
  for (int i = 0; i < kSteps; ++i) {
    for (size_t v = 0; v < gradients.size(); ++v) client.deliver(v, gradients[v]);
    reply = client.push({.step = reply.step, .version = reply.version, .lr = kRate});
    client.pull(reply.version, variables);
  }
  for (size_t v = 0; v < gradients.size(); ++v) {
    const ParameterInfo& variable = mixed.variables[v];
    const auto expected = Mixed::widen(memory.data() + layout.offset(v), variable.count(), variable.dtype);
    const auto found = Mixed::widen(variables[v], variable.count(), variable.dtype);
    for (size_t k = 0; k < variable.count(); ++k)
      ASSERT_NEAR(found[k], expected[k], 1e-6) << rule->name() << ", " << variable.name << ' ' << k;
  }
  client.leave();
}

TEST_P(ParameterServers, VariablesOfAllTypesTrainAsInOnePiece) {
  expect_trains_as_one_piece(GetParam(), sgd({.lr = 0.1, .momentum = 0.9}), 0);
  expect_trains_as_one_piece(GetParam(), adam({.lr = 0.1}), 0);
}

TEST_P(ParameterServers, TheNormOfTheGradientIsThatOfAllShards) {
  expect_trains_as_one_piece(GetParam(), sgd({.lr = 0.1}), 0.5);
}

TEST_P(ParameterServers, NormsOfVariablesAreThoseOfAllTheirSlices) {
  expect_trains_as_one_piece(GetParam(), lars({.lr = 0.1, .momentum = 0.9}), 0);
  expect_trains_as_one_piece(GetParam(), lamb({.lr = 0.1}), 0.5);
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
  EXPECT_THAT(servers[0].progress().report, ::testing::HasSubstr("worker/0: 21 applied"));
  servers.pointer(0).reset();
  last.join();
}

}  // namespace
}  // namespace muster::detail
