#include "muster/queue.h"

#include <future>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/ops.h"
#include "muster/runtime/server_test.h"
#include "muster/session.h"
#include "muster/testing/message_of.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::HasSubstr;

TEST(Queue, GivesWhatWasPutInInItsOrder) {
  Graph graph;
  const Queue queue(graph, "batches", {.capacity = 3, .types = {at::kFloat, at::kLong}});
  const Output x = graph.placeholder("x", at::kFloat, {2});
  const Node put = queue.enqueue({x, graph.constant(7, at::kLong)});
  const auto taken = queue.dequeue();
  const Output size = queue.size();
  Session session("local", graph);
  for (const float value : {1.F, 2.F, 3.F}) session.run({}, {{x, torch::full({2}, value)}}, {put});
  EXPECT_EQ(session.run({size})[0].item<int64_t>(), 3);
  for (const float value : {1.F, 2.F, 3.F}) {
    const auto element = session.run(taken);
    EXPECT_TRUE(element[0].equal(torch::full({2}, value)));
    EXPECT_EQ(element[1].item<int64_t>(), 7);
  }
  EXPECT_EQ(session.run({size})[0].item<int64_t>(), 0);
}

// Two clients, one queue of two elements on a task: one is filled while the other takes.
TEST(Queue, LetsClientsWaitForEachOther) {
  const TestServers cluster(2);
  constexpr int64_t kElements = 50;
  const auto client = [&cluster](const auto& work) {
    return std::async(std::launch::async, [&cluster, work] {
      Graph graph;
      const auto device = graph.with_device("/job:task/task:1");
      const Queue queue(graph, "numbers", {.capacity = 2, .types = {at::kLong}});
      const Output x = graph.placeholder("x", at::kLong, {});
      Session session(cluster.target(), graph, {.secret = "test"});
      return work(session, queue, x);
    });
  };
  auto filled = client([](Session& session, const Queue& queue, const Output& x) {
    const Node put = queue.enqueue({x});
    for (int64_t i = 0; i < kElements; ++i) session.run({}, {{x, torch::tensor(i)}}, {put});
    session.run({}, {}, {queue.close()});
    return int64_t{0};
  });
  auto taken = client([](Session& session, const Queue& queue, const Output&) {
    const auto next = queue.dequeue();
    int64_t count = 0;
    try {
      for (;; ++count) EXPECT_EQ(session.run(next)[0].item<int64_t>(), count);
    } catch (const Aborted& error) {
      EXPECT_THAT(error.what(), HasSubstr("the queue 'numbers' is closed and empty"));
    }
    return count;
  });
  filled.get();
  EXPECT_EQ(taken.get(), kElements);
}

TEST(Queue, AWaitEndsWithItsRun) {
  const TestServers cluster(1);
  Graph graph;
  const Queue queue(graph, "empty", {.types = {at::kFloat}});
  Session session(cluster.target(), graph, {.secret = "test", .timeout = std::chrono::milliseconds(200)});
  EXPECT_THROW(session.run(queue.dequeue()), DeadlineExceeded);
  EXPECT_EQ(session.run({queue.size()})[0].item<int64_t>(), 0);
}

TEST(Queue, RefusesWhatIsNoElement) {
  Graph graph;
  EXPECT_THAT(message_of<InvalidArgument>([&] { Queue(graph, "none", {}); }), HasSubstr("has no types"));
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { Queue(graph, "small", {.capacity = 0, .types = {at::kFloat}}); }),
      HasSubstr("a capacity of 0"));
  const Queue queue(graph, "q", {.types = {at::kFloat}});
  const Output number = graph.constant(1, at::kLong);
  EXPECT_THAT(message_of<InvalidArgument>([&] { queue.enqueue({number}); }), HasSubstr("is of type Long"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { queue.enqueue({}); }),
              HasSubstr("0 tensors are given, where an element has 1"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { Queue(graph, "q", {.types = {at::kFloat}}); }),
              HasSubstr("two nodes"));

  Graph other;
  const Queue larger(other, "q", {.capacity = 5, .types = {at::kFloat}});
  const TestServers cluster(1);
  Session first(cluster.target(), graph, {.secret = "test"});
  first.run({queue.size()});
  Session second(cluster.target(), other, {.secret = "test"});
  EXPECT_THAT(message_of<InvalidArgument>([&] { second.run({larger.size()}); }),
              HasSubstr("has a capacity of 32 here"));
}

// Each task has the sum, of the same bits, whatever the number of elements.
TEST(AllReduceInGraphs, GivesEachTaskTheSum) {
  constexpr int kTasks = 3;
  const TestServers cluster(kTasks);
  torch::manual_seed(1);
  for (const int64_t rows : {1, 5, 64}) {
    Graph graph;
    std::vector<Output> values;
    torch::Tensor expected;
    for (int task = 0; task < kTasks; ++task) {
      const auto device = graph.with_device(fmt::format("/job:task/task:{}", task));
      const torch::Tensor value = torch::rand({rows, 7});
      values.push_back(graph.constant(value));
      expected = expected.defined() ? expected + value : value;
    }
    const auto sums = all_reduce(values);
    Session session(cluster.target(), graph, {.secret = "test"});
    for (const auto& sum : session.run(sums)) EXPECT_TRUE(sum.equal(expected));
  }
  Graph graph;
  EXPECT_THAT(message_of<InvalidArgument>([&] { all_reduce({}); }), HasSubstr("there are no values"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                all_reduce({graph.constant(torch::ones({2})), graph.constant(torch::ones({3}))});
              }),
              HasSubstr("of different types or sizes"));
}

// What a list operator takes may come from another task, which says nothing of its sizes.
TEST(AllReduceInGraphs, ListsOfValuesFromOtherTasksAreKnown) {
  const TestServers cluster(2);
  Graph graph;
  const Output x = graph.constant(torch::arange(6));
  const auto device = graph.with_device("/job:task/task:1");
  const Node parts = graph.add("aten::chunk", {x, int64_t{3}});
  Session session(cluster.target(), graph, {.secret = "test"});
  EXPECT_TRUE(session.run({parts.output(2)})[0].equal(torch::tensor({4, 5})));
}

}  // namespace
}  // namespace muster
