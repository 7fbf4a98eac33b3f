// Clients who know the secret and say what makes no sense: they are refused, and the server serves the
// others.

#include <array>
#include <chrono>
#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/error.h"
#include "muster/graph/graph_proto.h"
#include "muster/ops.h"
#include "muster/runtime/received_graph.h"
#include "muster/runtime/runtime_stream.h"
#include "muster/runtime/server_secret.h"
#include "muster/runtime/server_test.h"
#include "muster/runtime/worker.h"
#include "muster/session.h"
#include "muster/sync_replicas.h"
#include "muster/testing/fuzz.h"
#include "muster/testing/message_of.h"

namespace muster::detail {
namespace {

using Random = std::mt19937;

// A graph with some of everything that a server keeps.
struct Everything {
  Everything() {
    x = graph.placeholder("x", at::kFloat, {kBatch, 4});
    {
      const auto other = graph.with_device("/job:task/task:1");
      const Output w = graph.variable("w", torch::ones({3, 4}));
      loss = ops::sum(ops::linear(x, w));
      train = minimize(optim::SGD({.lr = 0.1}), loss);
      synchronous = minimize_synchronously(graph, optim::SGD({.lr = 0.1}), loss, {.total_num_replicas = 1});
    }
  }

  Graph graph;
  Output x;
  Output loss;
  Output synchronous;
  Node train;
};

std::vector<runtime::Request> requests(const Everything& all, const runtime::Peer& server,
                                       uint64_t transfer) {
  std::vector<runtime::Request> made(4);
  made[0].mutable_open_session()->set_container("c");
  made[1].mutable_set_graph()->set_transfer(transfer);
  auto* prepare = made[2].mutable_prepare();
  *prepare->mutable_signature() =
      to_proto(Signature{.feeds = {all.x}, .fetches = {all.loss, all.synchronous}, .targets = {all.train}});
  prepare->set_timeout_ms(2000);
  auto* part = made[3].mutable_register_();
  part->set_handle(7);
  part->set_transfer(transfer + 1);
  *part->mutable_signature() = prepare->signature();
  *part->add_peers() = server;
  return made;
}

// Damage that leaves most of a message as it was.
std::string damaged(std::string bytes, Random& random) {
  for (uint32_t n = random() % 3; n > 0 && !bytes.empty(); --n)
    bytes[random() % bytes.size()] = static_cast<char>(random());
  return bytes;
}

// Asks for all of it, in the right order, with damage.
void talk(const TestServers& cluster, const Everything& all, Random& random) {
  const auto soon = Deadline::after(std::chrono::seconds(20));
  RuntimeClient client(address_of_target(cluster.target()), "test", soon);
  TaskMemory memory;
  Endpoint endpoint({.secret = "test"});
  const auto link =
      connect_to(endpoint, memory, client.server(), {.kind = kClientChannel, .deadline = soon, .check = {}});
  const uint64_t transfer = random_number();
  for (int times : {0, 1}) {
    send_graph(*link, to_proto(all.graph), transfer + static_cast<uint64_t>(times), {});
  }
  for (const auto& request : requests(all, client.server(), transfer)) {
    runtime::Request asked;
    if (asked.ParseFromString(damaged(request.SerializeAsString(), random)) && !asked.has_stop())
      client.send(std::move(asked));
  }
  try {
    client.wait(3, Deadline::after(std::chrono::milliseconds(random() % 200)));
  } catch (const Error&) {
  }
  link->send({.kind = StepFrame::Kind::kValue, .step = random(), .value = torch::ones({4, 4})});
  link->send({.kind = StepFrame::Kind::kRun, .step = random(), .handle = random() % 10});
}

// What no StepLink would send.
void send_frames(const TestServers& cluster, Random& random) {
  const auto soon = Deadline::after(std::chrono::seconds(20));
  const RuntimeClient client(address_of_target(cluster.target()), "test", soon);
  Endpoint endpoint({.secret = "test"});
  Connection connection = endpoint.connect(
      Address::parse(client.server().address()),
      std::string(random() % 2 == 0 ? kClientChannel : "runtime/task/") + random_token(), soon);
  for (int frame = 0; frame < 20; ++frame) {
    std::array<uint32_t, 16> head{};
    const std::array<uint32_t, 16> most = {6, 4, 4, 1, 10, 1, 9, 20, 4, 32, 64, 1, 64, 1, 3, 3};
    for (size_t i = 0; i < head.size(); ++i) head[i] = random() % (most[i] + 1);
    if (random() % 8 == 0) head[random() % head.size()] = static_cast<uint32_t>(random());
    std::array<int64_t, 4> sizes{};
    for (auto& size : sizes) size = random() % 3;
    if (random() % 4 == 0) sizes[0] = static_cast<int64_t>(random()) << 32;
    try {
      connection.send(head.data(), sizeof(head), soon);
      connection.send(sizes.data(), sizeof(sizes), soon);
    } catch (const PeerLost&) {
      return;  // as it should be
    }
  }
}

TEST(HostileClients, HarmNobody) {
  const TestServers cluster(2);
  Everything all;
  Session session(cluster.target(), all.graph, {.private_variables = true, .secret = "test"});
  session.run({}, {}, {all.graph.initializer()});
  set_log_sink([](std::string_view) {});  // of all that is refused
  Random random(5);
  const auto until = testing::fuzz_deadline();
  for (int i = 0; i < 40 || !until.expired(); ++i) {
    talk(cluster, all, random);
    send_frames(cluster, random);
    EXPECT_EQ(session.run({all.loss}, {{all.x, torch::ones({2, 4})}}).front().item<float>(), 24);
  }
  set_log_sink({});
}

// Any number may be that of a transfer: also the one that a message has where nothing is said.
TEST(HostileClients, WhoPromiseAGraphDoNotHoldUpAServerThatEnds) {
  const auto soon = Deadline::after(std::chrono::seconds(20));
  for (const uint64_t transfer : {uint64_t{0}, uint64_t{7}}) {
    TestServers cluster(1);
    RuntimeClient client(address_of_target(cluster.target()), "test", soon);
    runtime::Request opens;
    opens.mutable_open_session();
    client.wait(client.send(opens), soon);
    runtime::Request promises;
    promises.mutable_set_graph()->set_transfer(transfer);
    client.send(promises);
    EXPECT_THROW(client.wait(2, Deadline::after(std::chrono::milliseconds(200))), DeadlineExceeded);
    const auto before = std::chrono::steady_clock::now();
    cluster.kill(0);
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
  }
}

TEST(HostileClients, CantAskForMoreReplicasThanThereIsMemoryFor) {
  const TestServers cluster(1);
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  const Output step =
      minimize_synchronously(graph, optim::SGD({.lr = 0.1}), ops::sum(w), {.total_num_replicas = 1});
  for (auto& node : graph.data().nodes) {  // minimize_synchronously() would refuse it
    if (node.op->kind() == OperatorKind::kNextToken || node.op->kind() == OperatorKind::kPush)
      node.arguments[3] = Argument(int64_t{2'000'000'000});
  }
  for (int i = 0; i < 2; ++i) {
    Session session(cluster.target(), graph, {.secret = "test"});
    session.run({}, {}, {graph.initializer()});
    EXPECT_THAT(testing::message_of<InvalidArgument>([&] { session.run({step}); }),
                ::testing::HasSubstr("the total number of replicas is 2000000000"));
  }
}

}  // namespace
}  // namespace muster::detail
