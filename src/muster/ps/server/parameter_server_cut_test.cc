// Whole on all servers or on none: links between workers and servers that end anywhere, for a moment or for
// good.

#include <random>

#include "muster/ps/server/parameter_server_fault_test.h"
#include "muster/testing/fuzz.h"

namespace muster::detail {
namespace {

using namespace testing;

using ServerSetup = muster::detail::testing::Setup;

ServerAddress through(const Proxy& proxy) {
  return {proxy.address(), ""};
}

void expect_no_errors(ServerGroup& servers, const ServerSetup& setup) {
  for (int i = 0; i < setup.servers; ++i) EXPECT_EQ(servers[i].progress().error, "") << "server " << i;
}

// The link ends in the middle of a gradient, behind the first parameters, for longer than a worker may be
// gone.
TEST(AWorkerThatIsCutOffFromOneServer, IsLeftOutOnAll) {
  constexpr ServerSetup kSetup = {.servers = 2, .shared = false, .heartbeat_timeout = 1s};
  const LogLines log;
  ServerGroup servers(
      kSetup, spec_of(kSetup, {.workers = 2, .phases = {{0, Mode::kSync}}, .max_steps = 4}, sgd({.lr = 1})));
  run_workers(2, [&](int index) {
    if (index == 0) {
      Worker worker(servers.client_options(0));
      worker.initialise(0);
      for (Reply reply = worker.enter(); reply.kind == Reply::Kind::kBegin;) reply = worker.push(1);
      EXPECT_EQ(worker.value(), -4) << "gradients of the other are in it, or in one half of it";
      return;
    }
    const Proxy proxy(servers.address(1).address, [first = true]() mutable -> int64_t {
      return std::exchange(first, false) ? 250'000 : 0;
    });
    auto options = servers.client_options(1);
    options.server_wait = 2s;
    options.find_server = [&](int server, Deadline) {
      return server == 0 ? servers.address(0) : through(proxy);
    };
    Worker worker(std::move(options));
    worker.enter();
    EXPECT_THROW(worker.push(3), Error);
    EXPECT_EQ(proxy.breaks(), 1);
  });
  expect_no_errors(servers, kSetup);
}

// The server has given it up by the time its link is back: it must not go on as if nothing had been.
TEST(AWorkerThatWasTakenForDead, IsToldSo) {
  constexpr ServerSetup kSetup = {.servers = 2, .shared = false, .heartbeat_timeout = 100ms};
  const LogLines log;
  ServerGroup servers(kSetup, spec_of(kSetup, {.workers = 2}, sgd({.lr = 1})));
  Worker chief(servers.client_options(0));
  chief.initialise(0);
  chief.enter();
  std::atomic<bool> is_back = false;
  const Proxy proxy(servers.address(1).address, [&, first = true]() mutable -> int64_t {
    return std::exchange(first, false) ? 250'000 : is_back ? int64_t{1} << 40 : 0;
  });
  auto options = servers.client_options(1);
  options.server_wait = 60s;
  options.find_server = [&](int server, Deadline) {
    return server == 0 ? servers.address(0) : through(proxy);
  };
  Worker worker(std::move(options));
  worker.enter();
  const auto began = Deadline::Clock::now();
  std::thread back([&] {
    while (Deadline::Clock::now() - began < 1s) std::this_thread::yield();
    is_back = true;
  });
  try {
    worker.push(3);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Aborted& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("parameter server 1: it took worker/1 for dead"));
  }
  back.join();
  chief.push(1);
  EXPECT_EQ(chief.value(), -1);
  expect_no_errors(servers, kSetup);
}

struct Cutting {
  int servers = 2;
  Mode mode = Mode::kAsync;
};

void PrintTo(const Cutting& cutting, std::ostream* out) {
  *out << cutting.servers << " servers, " << to_string(cutting.mode);
}

class LinksCutAtAnyByte : public ::testing::TestWithParam<Cutting> {};

INSTANTIATE_TEST_SUITE_P(Setups, LinksCutAtAnyByte,
                         ::testing::Values(Cutting{2, Mode::kAsync}, Cutting{3, Mode::kAsync},
                                           Cutting{2, Mode::kSync}, Cutting{3, Mode::kSync}));

/// Where each connection through it ends; now and then the first end is for good.
std::function<int64_t()> cuts(unsigned seed) {
  return [random = std::mt19937(seed), dead = false]() mutable -> int64_t {
    if (dead) return 0;
    dead = random() % 3 == 0;
    return 1 + random() % 4000;
  };
}

// All shards are what a model of the pushes says: those that were acknowledged, and of each worker that was
// cut off for good perhaps the last.
TEST_P(LinksCutAtAnyByte, LeaveAllShardsWithTheSameUpdates) {
  constexpr int kWorkers = 2;
  constexpr int kSteps = 6;
  const auto [server_count, mode] = GetParam();
  const LogLines log;
  std::mt19937 random(static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()));
  int breaks = 0;
  const auto until = fuzz_deadline(2s);
  for (int trial = 0; trial < 8 || !until.expired(); ++trial) {
    const ServerSetup setup = {.servers = server_count, .shared = false, .heartbeat_timeout = 300ms};
    ModelSpec spec = spec_of(setup, {.workers = kWorkers, .phases = {{0, mode}}}, sgd({.lr = 1}));
    spec.variables = {{"a", {3, 7}}, {"b", {5}}};
    ServerGroup servers(setup, spec);
    Worker(servers.client_options(0)).initialise(0);
    std::list<Proxy> proxies;
    for (int i = 0; i < kWorkers * server_count; ++i)
      proxies.emplace_back(servers.address(i % server_count).address, cuts(random()));
    std::atomic<int> acknowledged = 0;
    std::atomic<int> in_doubt = 0;
    run_workers(kWorkers, [&](int index) {
      auto options = servers.client_options(index, 1);
      options.server_wait = 200ms;
      options.find_server = [&](int server, Deadline) {
        return through(*std::next(proxies.begin(), index * server_count + server));
      };
      bool pushing = false;
      try {
        Worker worker(std::move(options));
        Reply reply = worker.enter();
        for (int i = 0; i < kSteps && reply.kind == Reply::Kind::kBegin; ++i) {
          pushing = true;
          reply = worker.push(1);
          pushing = false;
          ++acknowledged;
        }
        worker.client().leave();
      } catch (const Error&) {
        in_doubt += pushing ? 1 : 0;
        for (int i = 0; i < server_count; ++i)
          servers[i].report_failure(index, 1);  // it may not have entered
      }
    });
    for (const auto& proxy : proxies) breaks += proxy.breaks();
    Worker reader(servers.client_options(0, 2));
    reader.enter();
    const float value = -reader.value();  // the same in all shards
    if (mode == Mode::kAsync) {
      EXPECT_GE(value, acknowledged.load());
      EXPECT_LE(value, acknowledged.load() + in_doubt.load());
    }
    expect_no_errors(servers, setup);
    if (HasFailure()) break;
  }
  EXPECT_GT(breaks, 8);
}

}  // namespace
}  // namespace muster::detail
