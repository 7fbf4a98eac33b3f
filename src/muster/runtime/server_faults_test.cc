// Clients and values that a server could suffer from.

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/ops.h"
#include "muster/runtime/server_test.h"
#include "muster/session.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kOther = "/job:task/task:1";

template <typename Function>
std::string thrown_by(Function function) {
  try {
    function();
  } catch (const InvalidArgument& error) {
    return std::string("InvalidArgument: ") + error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

TEST(ServerFaults, ConjugatesCrossAsTheyAre) {
  for (const bool is_shared : {true, false}) {
    const TestServers cluster(2, /*start=*/true, {.secret = "test", .shared_memory = is_shared});
    Graph graph;
    const Output x = graph.placeholder("x", at::kComplexFloat, {kBatch});
    const Output conjugate = ops::conj(x);
    Output there;
    {
      const auto other = graph.with_device(kOther);
      there = ops::mul(conjugate, 2.0);
    }
    Session session(cluster.target(), graph, {.private_variables = true, .secret = "test"});
    const torch::Tensor given = torch::complex(torch::randn({20000}), torch::randn({20000}));
    const auto found = session.run({conjugate, there}, {{x, at::conj(given)}});
    EXPECT_TRUE(torch::equal(found[0], given));
    EXPECT_TRUE(torch::equal(found[1], given * 2));
  }
}

// A view may begin anywhere in its tensor.
TEST(ServerFaults, LargeViewsCross) {
  const TestServers cluster(2);
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {30011});
  const Output part = ops::slice(ops::mul(x, 3.0), 0, 7, 20011);
  Output there;
  {
    const auto other = graph.with_device(kOther);
    there = ops::add(part, 1.0);
  }
  Session session(cluster.target(), graph, {.secret = "test", .timeout = std::chrono::seconds(20)});
  const torch::Tensor given = torch::randn({30011});
  EXPECT_TRUE(torch::equal(session.run({there}, {{x, given}}).front(), given.slice(0, 7, 20011) * 3 + 1));
}

// What is too large is refused by name, whichever way it comes, and the server goes on.
TEST(ServerFaults, ValuesForWhichATaskHasNoMemoryFailTheirRunAndNoOther) {
  constexpr int64_t kTooMany = 8 << 20;  // floats: 32 MiB
  for (const bool is_shared : {true, false}) {
    const TestServers cluster(
        2, /*start=*/true, {.secret = "test", .shared_memory = is_shared, .memory_limit = size_t{16} << 20});
    Graph graph;
    Output x, fed, small, too_large;
    {
      const auto other = graph.with_device(kOther);
      x = graph.placeholder("x", at::kFloat, {kBatch});
      fed = ops::sum(x);
      small = graph.constant(torch::ones({5}));
    }
    Session session(cluster.target(), graph, {.secret = "test", .timeout = std::chrono::seconds(60)});
    EXPECT_EQ(session.run({fed}, {{x, torch::ones({1000})}}).front().item<float>(), 1000);
    if (!is_shared) {  // else it is lent
      EXPECT_THAT(thrown_by([&] {
                    session.run({fed}, {{x, torch::ones({kTooMany})}});
                  }),
                  AllOf(HasSubstr("InvalidArgument"), HasSubstr(kOther), HasSubstr("memory limit")));
    }
    {
      const auto other = graph.with_device(kOther);
      too_large = graph.constant(torch::ones({kTooMany}));
    }
    const auto before = std::chrono::steady_clock::now();
    EXPECT_THAT(thrown_by([&] { session.run({too_large}); }),
                AllOf(HasSubstr("InvalidArgument"), HasSubstr("memory limit")));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(30));
    Graph without;
    Session next(cluster.target(), without, {.secret = "test"});
    EXPECT_EQ(next.run({without.constant(2.0)}).front().item<float>(), 2);
    EXPECT_EQ(session.run({fed}, {{x, torch::ones({10})}}).front().item<float>(), 10)
        << "what is ready needs no new graph";
  }
}

TEST(ServerFaults, ASparseFeedIsRefusedAndTheSessionGoesOn) {
  const TestServers cluster(2);
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {3, 3});
  Output there;
  {
    const auto other = graph.with_device(kOther);
    there = ops::sum(x);
  }
  const Output both = ops::add(there, ops::sum(x));
  Session session(cluster.target(), graph, {.secret = "test", .timeout = std::chrono::seconds(20)});
  EXPECT_THAT(thrown_by([&] {
                session.run({both}, {{x, torch::eye(3).to_sparse()}});
              }),
              HasSubstr("InvalidArgument"));
  EXPECT_EQ(session.run({both}, {{x, torch::eye(3)}}).front().item<float>(), 6);
}

}  // namespace
}  // namespace muster
