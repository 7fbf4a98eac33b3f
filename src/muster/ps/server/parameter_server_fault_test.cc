#include "muster/ps/server/parameter_server_fault_test.h"

#include <random>

#include "muster/shm/arena.h"

namespace muster::detail {
namespace {

using namespace testing;

constexpr Setup kTcp = {.servers = 1, .shared = false};

ModelSpec plain_spec(const Setup& setup, PolicyOptions policy) {
  return spec_of(setup, std::move(policy), sgd({.lr = 1}));
}

struct Breaking {
  int servers = 1;
  int workers = 1;
  Mode mode = Mode::kAsync;
};

void PrintTo(const Breaking& breaking, std::ostream* out) {
  *out << breaking.servers << " servers, " << breaking.workers << " workers, " << to_string(breaking.mode);
}

class BreakingLinks : public ::testing::TestWithParam<Breaking> {};

INSTANTIATE_TEST_SUITE_P(Setups, BreakingLinks,
                         ::testing::Values(Breaking{1, 1, Mode::kAsync}, Breaking{1, 2, Mode::kAsync},
                                           Breaking{2, 1, Mode::kAsync}, Breaking{2, 2, Mode::kAsync},
                                           Breaking{1, 2, Mode::kSync}, Breaking{2, 2, Mode::kSync}));

// Where a link breaks: mostly somewhere in a push or a pull, and now and then while it is made.
std::function<int64_t()> breaking_points(unsigned seed) {
  return [random = std::mt19937(seed), count = 0]() mutable -> int64_t {
    return ++count % 5 == 0 ? 1 + random() % 300 : 2000 + random() % 900'000;
  };
}

TEST_P(BreakingLinks, EveryPushCountsOnce) {
  const auto [server_count, workers, mode] = GetParam();
  const muster::detail::testing::Setup setup = {.servers = server_count, .shared = false};
  const LogLines log;
  ServerGroup servers(setup, plain_spec(setup, {.workers = workers, .phases = {{0, mode}}, .max_steps = 24}));
  std::list<Proxy> proxies;
  std::vector<ServerAddress> addresses;
  for (int i = 0; i < server_count; ++i) {
    proxies.emplace_back(servers.address(i).address, breaking_points(static_cast<unsigned>(i)));
    addresses.push_back({proxies.back().address(), ""});
  }
  std::atomic<int> sum{0};
  run_workers(workers, [&](int index) {
    auto options = servers.client_options(index);
    options.find_server = [&](int server, Deadline) { return addresses[static_cast<size_t>(server)]; };
    Worker worker(std::move(options));
    if (index == 0) worker.initialise(0);
    int pushes = 0;
    for (Reply reply = worker.enter(); reply.kind == Reply::Kind::kBegin;) {
      const int value = 2 * (++pushes % 7) + 4 * index;  // a gradient that is taken for another would show
      reply = worker.push(static_cast<float>(value));
      EXPECT_EQ(reply.outcome, Answer::Outcome::kApplied);
      sum += value;
    }
  });
  for (const auto& proxy : proxies) EXPECT_GT(proxy.breaks(), 10);
  Worker reader(servers.client_options(0, 1));
  reader.enter();
  EXPECT_EQ(reader.value(), -sum.load() / (mode == Mode::kSync ? workers : 1));
}

// A server that one worker has made ready, and another that lies to it.
class LyingWorker : public ::testing::Test {
 protected:
  LyingWorker() {
    honest_.initialise(0);
    honest_.enter();
  }

  Hello hello() const { return {.spec = servers_.spec().fingerprint(), .worker = 1}; }

  /// One that has been accepted and has a token.
  std::unique_ptr<RawWorker> entered() {
    auto worker = std::make_unique<RawWorker>(servers_, hello());
    worker->welcome();
    worker->send_request(1, {.kind = Request::Kind::kEnter});
    EXPECT_EQ(worker->reply().second.kind, Reply::Kind::kBegin);
    return worker;
  }

  static void send_gradient(RawWorker& worker, uint64_t sequence, float value) {
    for (uint32_t i = 0; i < kCounts.size(); ++i)
      worker.send_slice(i, sequence, std::vector<float>(kCounts[i], value));
  }

  /// The server still serves who is honest, and another where the one that lied was.
  void expect_goes_on(float before) {
    honest_.push(1);
    EXPECT_EQ(honest_.value(), before - 1);
    Worker next(servers_.client_options(1, 1));
    next.enter();
    next.push(2);
    EXPECT_EQ(next.value(), before - 3);
  }

  static constexpr std::array<size_t, 3> kCounts = {21, 5, 300 * 257};  // of the slices
  LogLines log_;
  ServerGroup servers_{kTcp, plain_spec(kTcp, {.workers = 2})};
  Worker honest_{servers_.client_options(0)};
};

TEST_F(LyingWorker, WhatComesTwiceCountsOnce) {
  const auto worker = entered();
  for (int64_t step = 0; step < 4; ++step) {
    const auto sequence = static_cast<uint64_t>(step + 1);
    const Request push = {.kind = Request::Kind::kPush,
                          .push = {.sequence = sequence, .step = step, .version = step, .lr = 1}};
    for (int i = 0; i < 2; ++i) send_gradient(*worker, sequence, 1);
    for (int i = 0; i < 2; ++i) worker->send_request(sequence + 1, push);
    EXPECT_EQ(worker->reply().first, sequence + 1);
    send_gradient(*worker, sequence, 100);  // late
    worker->send_request(sequence + 1, push);
    worker->send_request(1, {.kind = Request::Kind::kEnter});
  }
  expect_goes_on(-4);
}

struct Lie {
  const char* name = "";
  std::function<void(RawWorker&)> tell;
  const char* logged = "";
};

void tell_push(RawWorker& worker, Push push, Request::Kind kind = Request::Kind::kPush) {
  if (push.sequence == 0) push.sequence = 1;
  worker.send_request(2, {.kind = kind, .push = push});
}

const std::vector<Lie>& lies() {
  static const std::vector<float> data(5, 1.0F);
  static const std::vector<Lie> all = {
      {"AnUnknownSlice", [](RawWorker& worker) { worker.send_slice(3, 1, data); }, "slice 3"},
      {"TooFewBytes", [](RawWorker& worker) { worker.send_slice(0, 1, data); }, "20 bytes for a slice of 21"},
      {"TooManyBytes",
       [](RawWorker& worker) {
         const Frame frame = {.kind = Frame::Kind::kSlice, .index = 1, .number = 1, .bytes = ~uint64_t{0}};
         worker.send(&frame, sizeof(frame));
       },
       "bytes for a slice of 5"},
      {"AFrameOfServers",
       [](RawWorker& worker) { worker.send(Frame{.kind = Frame::Kind::kParameters}, nullptr); },
       "workers do not send"},
      {"AnUnknownFrame",
       [](RawWorker& worker) { worker.send(Frame{.kind = static_cast<Frame::Kind>(99)}, nullptr); },
       "workers do not send"},
      {"ARequestOfAnotherSize",
       [](RawWorker& worker) {
         worker.send(Frame{.kind = Frame::Kind::kRequest, .number = 2, .bytes = 4}, data.data());
       },
       "request of another size"},
      {"AnUnknownRequest",
       [](RawWorker& worker) { worker.send_request(2, {.kind = static_cast<Request::Kind>(99)}); },
       "unknown request"},
      {"ARequestOutOfTurn",
       [](RawWorker& worker) { worker.send_request(3, {.kind = Request::Kind::kFinishEpoch}); },
       "out of turn"},
      {"AStepThatItHasNoTokenFor", [](RawWorker& worker) { tell_push(worker, {.step = 7}); }, "for step 7"},
      {"AFutureVersion", [](RawWorker& worker) { tell_push(worker, {.version = 7}); }, "of version 7"},
      {"ANegativeVersion", [](RawWorker& worker) { tell_push(worker, {.version = -7}); }, "of version -7"},
      {"ANegativeTotal", [](RawWorker& worker) { tell_push(worker, {.total = -1}); }, "a total of -1"},
      {"NoWeight", [](RawWorker& worker) { tell_push(worker, {.weight = 0}); }, "a weight of 0"},
      {"AnotherSkipThanYesOrNo",
       [](RawWorker& worker) {
         Request request = {.kind = Request::Kind::kPush};
         reinterpret_cast<char&>(request.push.skip) = 2;
         worker.send_request(2, request);
       },
       "unknown request"},
      {"DataForAServerThatDecides", [](RawWorker& worker) { tell_push(worker, {}, Request::Kind::kData); },
       "worker/1 is given up"},
  };
  return all;
}

class Lies : public LyingWorker, public ::testing::WithParamInterface<size_t> {};

INSTANTIATE_TEST_SUITE_P(All, Lies, ::testing::Range<size_t>(0, lies().size()),
                         [](const auto& tested) { return lies()[tested.param].name; });

TEST_P(Lies, EndTheLinkWithTheReasonInTheLogAndTheServerGoesOn) {
  const Lie& lie = lies()[GetParam()];
  const auto worker = entered();
  lie.tell(*worker);
  EXPECT_TRUE(log_.has(lie.logged));
  EXPECT_TRUE(worker->is_ended());
  expect_goes_on(0);
}

TEST_F(LyingWorker, WhoPushesASequenceAgainIsGivenUp) {
  const auto worker = entered();
  worker->send_request(2, {.kind = Request::Kind::kPush, .push = {.sequence = 1}});
  worker->reply();
  worker->send_request(3, {.kind = Request::Kind::kPush, .push = {.sequence = 1, .step = 1, .version = 1}});
  EXPECT_TRUE(log_.has("worker/1 is given up: it pushes gradient 1 again"));
  EXPECT_TRUE(worker->is_ended());
  expect_goes_on(0);
}

TEST_F(LyingWorker, WhoIsNotOfThisTrainingIsRefused) {
  const std::vector<std::pair<std::function<void(Hello&)>, const char*>> strangers = {
      {[](Hello& hello) { hello.version = 99; }, "another build"},
      {[](Hello& hello) { hello.spec = 99; }, "another model"},
      {[](Hello& hello) { hello.worker = 2; }, "no worker/2"},
      {[](Hello& hello) { hello.worker = -1; }, "no worker/-1"},
      {[](Hello& hello) { hello.sockets = 0; }, "0 sockets"},
      {[](Hello& hello) { hello.sockets = 1'000'000; }, "1000000 sockets"},
  };
  for (const auto& [change, reason] : strangers) {
    Hello stranger = hello();
    change(stranger);
    RawWorker worker(servers_, stranger);
    try {
      worker.welcome();
      ADD_FAILURE() << reason << " was welcome";
    } catch (const Refused& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(reason));
    }
    EXPECT_TRUE(log_.has(reason));
  }
  expect_goes_on(0);
}

TEST_F(LyingWorker, AnOlderIncarnationDoesNotTakeTheSessionOfANewerOne) {
  Worker newer(servers_.client_options(1, 5));
  newer.enter();
  RawWorker older(servers_, hello());
  EXPECT_THROW(older.welcome(), Refused);
  newer.push(1);
  EXPECT_EQ(newer.value(), -1);
}

TEST_F(LyingWorker, WhoDoesNotKnowTheSecretIsRefused) {
  auto options = servers_.client_options(1);
  options.endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = "another"});
  EXPECT_THROW(ParameterClient client(std::move(options)), Refused);
  EXPECT_TRUE(log_.has("does not know the job's secret"));
  expect_goes_on(0);
}

TEST_F(LyingWorker, AWorkerOfAnotherJobIsNotWelcomed) {
  auto options = servers_.client_options(1);
  options.job_id = "another";
  options.join_timeout = 300ms;
  EXPECT_THROW(ParameterClient client(std::move(options)), DeadlineExceeded);
  expect_goes_on(0);
}

// More of them than anybody would set threads aside for, and each longer than the next worker needs.
TEST_F(LyingWorker, WhoIsSilentAfterItConnectedKeepsNobodyOutAndMayTakeItsTime) {
  Endpoint endpoint({.secret = "s"});
  std::vector<Connection> silent;
  for (int i = 0; i < 8; ++i)
    silent.push_back(
        endpoint.connect(servers_.address(0).address, worker_channel_name("j", "1"), RawWorker::soon()));
  expect_goes_on(0);
  for (auto& connection : silent) {
    Hello late = hello();
    late.incarnation = 2;
    connection.send(&late, sizeof(late), RawWorker::soon());
    EXPECT_EQ(receive_welcome(connection, RawWorker::soon()).initialised, 1U);
  }
}

// One that died between the servers: its gradient is on the follower, and the leader has not heard of it.
TEST(Restart, AGradientOfAnEarlierIncarnationIsNotTakenForALaterOne) {
  constexpr muster::detail::testing::Setup kTwo = {.servers = 2, .shared = false};
  ServerGroup servers(kTwo, plain_spec(kTwo, {.workers = 2}));
  Worker honest(servers.client_options(0));
  honest.initialise(0);
  honest.enter();
  const auto send_gradient = [&](RawWorker& worker, int server, float value) {
    const auto& slices = honest.client().placement().layout(server).slices();
    for (uint32_t i = 0; i < slices.size(); ++i)
      worker.send_slice(i, /*sequence=*/1, std::vector<float>(slices[i].count, value));
  };
  Hello hello = {.spec = servers.spec().fingerprint(), .worker = 1};
  const Push push = {.sequence = 1, .lr = 1};
  {
    RawWorker dying(servers, hello, /*server=*/1);
    dying.welcome();
    send_gradient(dying, 1, 100);
    dying.send_request(1, {.kind = Request::Kind::kData, .push = push});
    dying.reply();
  }
  hello.incarnation = 1;
  RawWorker to_leader(servers, hello, 0);
  RawWorker to_follower(servers, hello, 1);
  to_leader.welcome();
  to_follower.welcome();
  to_leader.send_request(1, {.kind = Request::Kind::kEnter});
  to_leader.reply();
  send_gradient(to_leader, 0, 1);
  send_gradient(to_follower, 1, 1);
  to_follower.send_request(1, {.kind = Request::Kind::kData, .push = push});
  to_follower.reply();
  to_leader.send_request(2, {.kind = Request::Kind::kPush, .push = push});
  to_leader.reply();
  honest.push(2);
  EXPECT_EQ(honest.value(), -3);
}

// A worker of this host, by hand.
struct LocalWorker {
  explicit LocalWorker(const ServerGroup& servers)
      : connection(endpoint.connect_local(servers.address(0).local_name, worker_channel_name("j", "1"),
                                          RawWorker::soon())) {
    const Hello hello = {.shares_memory = 1,
                         .spec = servers.spec().fingerprint(),
                         .worker = 1,
                         .slot = arena->offset_of(slot)};
    connection.send(&hello, sizeof(hello), RawWorker::soon());
    connection.send_descriptor(arena->fd(), RawWorker::soon());
    receive_welcome(connection, RawWorker::soon());
  }

  void ask(Request::Kind kind) {
    slot->request = {.kind = kind};
    const uint64_t number = slot->posted.fetch_add(1) + 1;
    for (const auto limit = RawWorker::soon(); slot->answered.load() < number && !limit.expired();)
      std::this_thread::yield();
    ASSERT_EQ(slot->answered.load(), number);
  }

  Endpoint endpoint{{.secret = "s"}};
  std::shared_ptr<Arena> arena = Arena::create(size_t{1} << 20);
  SessionSlot* slot = SessionSlot::make(arena->allocate(SessionSlot::bytes(3)));
  Connection connection;
};

// One that says that it reads the first version, and does not get on.
struct StoppedReader : LocalWorker {
  explicit StoppedReader(const ServerGroup& servers) : LocalWorker(servers) {
    ask(Request::Kind::kEnter);
    slot->reading.exchange(1);
  }
};

TEST(AWorkerThatHasNotEntered, IsAnsweredOnceWhenItGoesAway) {
  const muster::detail::testing::Setup setup = {.servers = 1, .shared = true};
  ServerGroup servers(setup, plain_spec(setup, {.workers = 2}));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  worker.enter();
  LocalWorker absent(servers);
  for (const auto kind : {Request::Kind::kAway, Request::Kind::kBack, Request::Kind::kLeave}) {
    absent.ask(kind);
    worker.push(1);  // whatever the server had to say, it has said
    EXPECT_EQ(absent.slot->reply.kind, Reply::Kind::kTaken);
  }
}

// It welcomes a worker and then reads nothing, as one does that was stopped.
TEST(ServerThatHangs, DoesNotKeepAWorkerFromItsCheck) {
  Endpoint server({.secret = "s"});
  const ModelSpec spec = {
      .variables = {{"large", {16 << 20}}}, .rule = sgd({.lr = 1})->to_string(), .policy = {.workers = 1}};
  std::atomic<bool> is_over = false;
  struct Over {};
  run_workers(2, [&](int role) {
    if (role == 0) {
      Connection connection = server.accept(worker_channel_name("j", "1"), RawWorker::soon());
      Hello hello;
      connection.receive(&hello, sizeof(hello), RawWorker::soon());
      const Welcome welcome = {.initialised = 1, .instance = 1};
      connection.send(&welcome, sizeof(welcome), RawWorker::soon());
      while (!is_over) std::this_thread::sleep_for(1ms);
      return;
    }
    int checks = 0;
    ParameterClient client({.endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = "s"}),
                            .job_id = "j",
                            .model_id = "1",
                            .spec = spec,
                            .find_server =
                                [&](int, Deadline) {
                                  return ServerAddress{server.address(), ""};
                                },
                            .check =
                                [&] {
                                  if (++checks > 3) throw Over{};
                                }});
    const std::vector<float> gradient(16 << 20);
    const std::vector<const void*> all = {gradient.data()};
    EXPECT_THROW(client.initialise(all), Over);
    is_over = true;
  });
}

TEST(ServerThatIsGone, IsNamedByEveryLaterCall) {
  for (const bool shared : {true, false}) {
    const muster::detail::testing::Setup setup = {.servers = 1, .shared = shared};
    ServerGroup servers(setup, plain_spec(setup, {.workers = 1}));
    auto options = servers.client_options(0);
    options.server_wait = 100ms;
    Worker worker(std::move(options));
    worker.initialise(0);
    worker.enter();
    worker.push(1);
    servers.pointer(0).reset();
    for (int i = 0; i < 3; ++i) EXPECT_THROW(worker.push(1), PeerLost);
    EXPECT_THROW(worker.pull(), PeerLost);
    EXPECT_THROW(worker.client().leave(), PeerLost);
    EXPECT_THROW(worker.client().parameters(), PeerLost);
  }
}

// A command that was on its way may be lost, and no other may follow that would tell.
TEST(AFollowerThatIsCutOff, IsNoticedByBothSidesThoughNobodyHasAnythingToSay) {
  std::unique_ptr<Proxy> proxy;
  const std::function<ServerAddress(const ServerAddress&)> route = [&](const ServerAddress& follower) {
    proxy = std::make_unique<Proxy>(follower.address, [] { return int64_t{1} << 40; });
    return ServerAddress{proxy->address(), ""};
  };
  const muster::detail::testing::Setup setup = {.servers = 2, .shared = false, .route = &route};
  ServerGroup servers(setup, plain_spec(setup, {.workers = 1}));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  worker.enter();
  worker.push(1);
  EXPECT_EQ(servers[0].progress().error, "");
  proxy.reset();
  const auto limit = Deadline::after(60s);
  while ((servers[0].progress().error.empty() || servers[1].progress().error.empty()) && !limit.expired())
    std::this_thread::yield();
  EXPECT_THAT(servers[0].progress().error, HasSubstr("parameter server 1 is gone"));
  EXPECT_THAT(servers[1].progress().error, HasSubstr("parameter server 0, which decides, is gone"));
}

TEST(AWorkerThatWaits, IsSaidToWaitForWhomTheServerNeeds) {
  WaitRegistry waits;
  const muster::detail::testing::Setup setup = {.servers = 1, .waits = &waits};
  ServerGroup servers(setup, plain_spec(setup, {.workers = 2, .phases = {{0, Mode::kSync}}}));
  const auto said_of = [&](const std::string& worker) {
    const auto limit = Deadline::after(60s);
    while (!limit.expired()) {
      for (const auto& wait : waits.waits()) {
        if (wait.of == worker)
          return fmt::format("{} of {} in {}", wait.wait_for.what, fmt::join(wait.wait_for.tasks, " "),
                             wait.wait_for.subject);
      }
    }
    return std::string("nothing");
  };
  Worker chief(servers.client_options(0));
  Worker other(servers.client_options(1));
  std::thread enters([&] { other.enter(); });
  EXPECT_EQ(said_of("worker/1"), "the first parameters of worker/0 in model 1");
  chief.initialise(0);
  enters.join();
  chief.enter();
  std::thread pushes([&] { other.push(1); });
  EXPECT_EQ(said_of("worker/1"), "a gradient of worker/0 in model 1");
  chief.push(1);
  pushes.join();
  const auto limit = Deadline::after(60s);
  while (!waits.waits().empty() && !limit.expired()) std::this_thread::yield();
  EXPECT_TRUE(waits.waits().empty());
}

TEST(AStoppedReader, HoldsUpTheOthersForAWhileOnly) {
  const muster::detail::testing::Setup setup = {.servers = 1, .shared = true, .reader_timeout = 50ms};
  ServerGroup servers(setup, plain_spec(setup, {.workers = 2}));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  worker.enter();
  const StoppedReader stopped(servers);
  for (int i = 0; i < 5; ++i) worker.push(1);
  EXPECT_EQ(worker.value(), -5);
}

TEST(ASlowReader, IsWaitedForAsLongAsItGetsOn) {
  const muster::detail::testing::Setup setup = {.servers = 1, .shared = true, .reader_timeout = 1s};
  ServerGroup servers(setup, plain_spec(setup, {.workers = 2}));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  worker.enter();
  const StoppedReader reader(servers);
  std::atomic<bool> has_pushed = false;
  std::thread push([&] {
    worker.push(1);
    has_pushed = true;
  });
  const auto began = Deadline::Clock::now();
  while (Deadline::Clock::now() - began < 3 * setup.reader_timeout) {
    reader.slot->chunks_read.fetch_add(1);
    EXPECT_FALSE(has_pushed);
    std::this_thread::yield();
  }
  reader.slot->reading.exchange(0);
  push.join();
  EXPECT_EQ(worker.value(), -1);
}

TEST(AnAbsentWorker, CountsAsFailedAfterTheHeartbeatTimeoutOnly) {
  const muster::detail::testing::Setup setup = {.servers = 1, .shared = false, .heartbeat_timeout = 1500ms};
  ServerGroup servers(setup, plain_spec(setup, {.workers = 2, .phases = {{0, Mode::kSync}}}));
  Worker worker(servers.client_options(0));
  worker.initialise(0);
  worker.enter();
  {
    Worker leaving(servers.client_options(1));
    leaving.enter();
  }
  const auto began = Deadline::Clock::now();
  worker.push(1);  // an average of both, until the other has failed
  EXPECT_GE(Deadline::Clock::now() - began, 1400ms);
  EXPECT_EQ(worker.value(), -1);
}

TEST(Staleness, DividesTheLearningRate) {
  ServerGroup servers(kTcp, plain_spec(kTcp, {.workers = 2, .staleness_damping = true}));
  Worker fast(servers.client_options(0));
  fast.initialise(0);
  fast.enter();
  Worker slow(servers.client_options(1));
  slow.enter();
  for (int i = 0; i < 4; ++i) fast.push(1);
  EXPECT_EQ(slow.push(1).staleness, 4);
  EXPECT_EQ(slow.value(), -4.25F);
}

TEST(Staleness, AboveTheMostThatIsAllowedDropsTheGradient) {
  ServerGroup servers(kTcp, plain_spec(kTcp, {.workers = 2, .max_staleness = 3}));
  Worker fast(servers.client_options(0));
  fast.initialise(0);
  fast.enter();
  Worker slow(servers.client_options(1));
  slow.enter();
  for (int i = 0; i < 4; ++i) fast.push(1);
  EXPECT_EQ(slow.push(1).outcome, Answer::Outcome::kDropped);
  EXPECT_EQ(slow.value(), -4);
  EXPECT_EQ(slow.push(1).outcome, Answer::Outcome::kApplied);
  EXPECT_EQ(slow.value(), -5);
}

TEST(Ssp, KeepsAFastWorkerBesideTheSlowest) {
  constexpr int kPushes = 10;
  constexpr int kStaleness = 2;
  ServerGroup servers(kTcp,
                      plain_spec(kTcp, {.workers = 2, .phases = {{0, Mode::kSsp}}, .staleness = kStaleness}));
  std::atomic<int> pushed_by_slow{0};
  std::atomic<int> entered{0};
  run_workers(2, [&](int index) {
    Worker worker(servers.client_options(index));
    if (index == 0) worker.initialise(0);
    worker.enter();
    for (++entered; entered.load() < 2;) std::this_thread::yield();
    for (int i = 1; i <= kPushes; ++i) {
      if (index == 0) {
        worker.push(1);
        EXPECT_GE(pushed_by_slow.load(), i - kStaleness);
        continue;
      }
      // The other has gone as far as it may.
      const int64_t step = std::min(i + kStaleness, kPushes) + i - 1;
      const auto deadline = Deadline::after(20s);
      while (servers[0].progress().step < step && !deadline.expired()) std::this_thread::yield();
      EXPECT_EQ(servers[0].progress().step, step);
      ++pushed_by_slow;
      worker.push(1);
    }
    worker.finish_epoch();
    EXPECT_EQ(worker.value(), -2 * kPushes);
  });
}

}  // namespace
}  // namespace muster::detail
