#include "muster/graph/graph_proto.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "muster/control_flow.h"
#include "muster/error.h"
#include "muster/graph/graph_node.h"
#include "muster/ops.h"
#include "muster/queue.h"
#include "muster/testing/fuzz.h"
#include "muster/trace.h"

namespace muster::detail {
namespace {

using ::testing::HasSubstr;

// One with every kind of node and argument.
Graph rich_graph() {
  Graph graph;
  torch::manual_seed(1);
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 8});
  const Output w = graph.variable("w", torch::rand({40, 40}));  // large, so outside of the message
  const Output small = graph.variable("small", torch::rand({8, 40}), /*trainable=*/false);
  const auto device = graph.with_device("/job:ps/task:1");
  const auto parts = ops::chunk(ops::matmul(ops::matmul(x, small), w), 2, 1);
  const Output joined = ops::cat({parts[1], parts[0]}, 1);
  const Output normed = ops::layer_norm(joined, {40}, {}, {}, 1e-3);
  const Output size = graph.add("aten::size.int", {x, 0}).output();
  const Output viewed =
      graph.add("aten::view", {normed, std::vector<Output>{size, graph.value(40)}}).output();
  const Output loss = ops::mean(ops::mul(viewed, viewed));
  const auto after = graph.control_dependencies({graph.assign(small, ops::mul(small, 2))});
  minimize(optim::Adam({.lr = 0.01}), loss, graph.placeholder("lr", at::kFloat, {}));
  const auto beside = graph.colocate_with(graph.read(w));
  ops::einsum("ij,jk->ik", {x, small});
  ops::full(graph, {2}, c10::complex<double>(1, 2), at::kComplexDouble);
  graph.group({loss});
  graph.initializer();
  return graph;
}

// What else a graph can hold: branches, loops, queues and modules.
Graph graph_with_functions() {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  const Queue queue(graph, "queue", {.types = {at::kFloat}});
  queue.enqueue({x});
  queue.size();
  const Output y = cond(
                       ops::gt(ops::sum(x), 0.0), [&] { return std::vector{graph.print(x, "x ")}; },
                       [&] {
                         return while_loop(
                             {x}, [&](const auto& v) { return ops::lt(ops::sum(v[0]), 10.0); },
                             [&](const auto& v) { return std::vector{ops::add(v[0], 1.0)}; });
                       })
                       .front();
  torch::jit::Module module("module");
  module.register_parameter("w", torch::ones({3, 3}, torch::requires_grad()), /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return torch.matmul(x, self.w)\n");
  const std::string file = ::testing::TempDir() + fmt::format("functions{}.pt", getpid());
  module.save(file);
  const auto script = import_as_one_node(graph, file, {torch::ones({2, 3})}, "script");
  std::filesystem::remove(file);
  minimize(optim::SGD({.lr = 0.1}), ops::add(ops::sum(y), ops::sum(script.outputs[0])));
  all_reduce({x, ops::mul(x, 2)});
  queue.dequeue();
  queue.close();
  return graph;
}

std::string text_of(const Graph& graph) {
  std::string text;
  for (const auto& node : graph.nodes()) {
    text += fmt::format("{} {} {} {}", node.name(), node.op(), node.device(), node.where());
    for (int i = 0; i < node.outputs(); ++i) text += " " + node.output(i).shape().to_string();
    text += "\n";
  }
  return text;
}

TEST(GraphProto, WhatIsReadIsWhatWasWritten) {
  const Graph graph = rich_graph();
  const SavedGraph saved = to_proto(graph);
  EXPECT_EQ(saved.tensors.size(), 1U);
  Graph read = from_proto(saved.proto, saved.tensors);
  EXPECT_EQ(text_of(read), text_of(graph));
  EXPECT_EQ(read.variables().size(), 2U);
  EXPECT_EQ(to_proto(read).proto.SerializeAsString(), saved.proto.SerializeAsString());
  const Output x = read.output("x");
  EXPECT_EQ(read.add("aten::mean", {x, std::vector<int64_t>{1}}).op(), "aten::mean.dim")
      << "it can be built on";
}

TEST(GraphProto, SizesOfSeveralBatchesStayWhatTheyAre) {
  Graph graph;
  const Shape two_batches(std::vector<Size>{{.batches = 2}, {.fixed = 3}});
  graph.placeholder("x", at::kFloat, two_batches);
  const Shape batch_and_one(std::vector<Size>{{.fixed = 1, .batches = 1}});
  graph.placeholder("y", at::kFloat, batch_and_one);
  const SavedGraph saved = to_proto(graph);
  const Graph read = from_proto(saved.proto, saved.tensors);
  EXPECT_EQ(read.output("x").shape(), two_batches);
  EXPECT_FALSE(read.output("y").shape().known()) << "a list of numbers can't say it";
}

// conj() and imag() of it change no element: libtorch notes on the tensor what is left to do.
TEST(GraphProto, ConstantsThatLibtorchConjugatesLaterAreWrittenConjugated) {
  for (const int64_t size : {3, 2000}) {  // in the message, and beside it
    torch::manual_seed(1);
    const torch::Tensor conjugated = torch::conj(torch::rand({size}, torch::kComplexDouble));
    const torch::Tensor negative = torch::imag(torch::conj(torch::rand({size}, torch::kComplexDouble)));
    ASSERT_TRUE(conjugated.is_conj());
    ASSERT_TRUE(negative.is_neg());
    Graph graph;
    graph.constant(conjugated, "conjugated");
    graph.constant(negative, "negative");
    const SavedGraph saved = to_proto(graph);
    const Graph read = from_proto(saved.proto, saved.tensors);
    const auto value_of = [&read](const char* name) {
      return read.find(name).get()->arguments[0].value().toTensor();
    };
    EXPECT_TRUE(value_of("conjugated").equal(conjugated.resolve_conj())) << size;
    EXPECT_TRUE(value_of("negative").equal(negative.resolve_neg())) << size;
    for (const auto& tensor : saved.tensors) EXPECT_FALSE(tensor.is_conj() || tensor.is_neg()) << size;
  }
}

TEST(GraphProto, FilesAreReplacedWhole) {
  const std::string folder = ::testing::TempDir() + "graph_file_test_" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  const std::string file = folder + "/model.pb";
  const Graph graph = rich_graph();
  graph.save(file);
  EXPECT_EQ(text_of(Graph::load(file)), text_of(graph));
  EXPECT_TRUE(std::filesystem::exists(file + ".tensors"));

  std::filesystem::resize_file(file + ".tensors", 100);
  EXPECT_THROW(static_cast<void>(Graph::load(file)), DataLoss);
  std::filesystem::remove(file + ".tensors");
  EXPECT_THROW(static_cast<void>(Graph::load(file)), SystemError);

  Graph().save(file);
  EXPECT_EQ(Graph::load(file).size(), 0U);
  std::ofstream(file) << "this is no graph";
  EXPECT_THROW(static_cast<void>(Graph::load(file)), Error);
  EXPECT_THROW(static_cast<void>(Graph::load(folder + "/nothing.pb")), SystemError);
  EXPECT_THROW(graph.save(folder + "/nowhere/model.pb"), SystemError);
  std::filesystem::remove_all(folder);
}

// Changes a message, and says why it is refused.
template <typename Change>
std::string refusal_after(const Change& change) {
  SavedGraph saved = to_proto(rich_graph());
  change(saved.proto);
  try {
    static_cast<void>(from_proto(saved.proto, saved.tensors));
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

graph::NodeProto& node_named(graph::GraphProto& proto, const std::string& name) {
  for (auto& node : *proto.mutable_nodes()) {
    if (node.name() == name) return node;
  }
  throw std::runtime_error("no node " + name);
}

TEST(GraphProto, WhatMakesNoSenseIsRefused) {
  const auto last = [](graph::GraphProto& p) { return static_cast<uint32_t>(p.nodes_size()); };
  EXPECT_THAT(refusal_after([](auto& p) { p.set_version(7); }), HasSubstr("version 7"));
  EXPECT_THAT(refusal_after([](auto& p) { node_named(p, "matmul").set_op("aten::mutmal"); }),
              HasSubstr("did you mean aten::matmul"));
  EXPECT_THAT(refusal_after([](auto& p) { node_named(p, "matmul").set_op("aten::relu_"); }),
              HasSubstr("changes its arguments"));
  EXPECT_THAT(refusal_after([](auto& p) { node_named(p, "matmul").set_name("x"); }),
              HasSubstr("two nodes are called 'x'"));
  EXPECT_THAT(refusal_after([](auto& p) { node_named(p, "matmul").set_name(""); }), HasSubstr("has no name"));
  EXPECT_THAT(refusal_after([](auto& p) { node_named(p, "matmul").set_device("gpu"); }),
              HasSubstr("is not a task name"));
  EXPECT_THAT(refusal_after([](auto& p) { node_named(p, "matmul").clear_arguments(); }),
              HasSubstr("has 0 arguments; expected 2"));
  EXPECT_THAT(refusal_after([&](auto& p) {
                node_named(p, "matmul").mutable_arguments(0)->mutable_output()->set_node(last(p));
              }),
              HasSubstr("does not come before it"));
  EXPECT_THAT(refusal_after([](auto& p) {
                node_named(p, "matmul").mutable_arguments(0)->mutable_output()->set_index(3);
              }),
              HasSubstr("has no output 3"));
  EXPECT_THAT(refusal_after([&](auto& p) { node_named(p, "matmul").add_control(last(p)); }),
              HasSubstr("does not come before"));
  EXPECT_THAT(refusal_after([&](auto& p) { node_named(p, "matmul").set_colocated(last(p) + 5); }),
              HasSubstr("does not come before"));
  EXPECT_THAT(refusal_after([](auto& p) {  // with itself
                for (int i = 0; i < p.nodes_size(); ++i)
                  p.mutable_nodes(i)->set_beside(static_cast<uint32_t>(i) + 1);
              }),
              HasSubstr("does not come before"));
  EXPECT_THAT(refusal_after([](auto& p) { node_named(p, "matmul").mutable_arguments(0)->clear_kind(); }),
              HasSubstr("an argument is empty"));
  EXPECT_THAT(refusal_after([](auto& p) {
                node_named(p, "matmul").mutable_arguments(0)->mutable_value()->set_text("a");
              }),
              HasSubstr("is str, where it takes a Tensor"));
  EXPECT_THAT(refusal_after([](auto& p) { p.mutable_initializers()->Set(0, 0); }),
              HasSubstr("is no assignment"));
  EXPECT_THAT(refusal_after(
                  [](auto& p) { node_named(p, "x").mutable_arguments(0)->mutable_value()->set_integer(99); }),
              HasSubstr("99 is no type"));
  EXPECT_THAT(refusal_after([](auto& p) {
                node_named(p, "x").mutable_arguments(0)->mutable_value()->set_text("float");
              }),
              HasSubstr("'dtype' is str"));
  EXPECT_THAT(refusal_after([](auto& p) {
                node_named(p, "w/update").mutable_arguments(2)->mutable_value()->set_text("magic");
              }),
              HasSubstr("magic"));
  EXPECT_THAT(refusal_after([](auto& p) {
                *node_named(p, "w/update").mutable_arguments(0) = node_named(p, "matmul").arguments(0);
              }),
              HasSubstr("what is no variable"));
  EXPECT_THAT(refusal_after([](auto& p) {
                *node_named(p, "assign").mutable_arguments(1) = node_named(p, "w/update").arguments(0);
              }),
              HasSubstr("is of shape [8, 40]"));
  EXPECT_THAT(refusal_after([](auto& p) {
                node_named(p, "gradients/mean_1")
                    .mutable_arguments(2)
                    ->mutable_value()
                    ->mutable_integers()
                    ->add_values(9);
              }),
              HasSubstr("has no input 9"));
  EXPECT_THAT(
      refusal_after([](auto& p) {
        node_named(p, "w/initial").mutable_arguments(0)->mutable_value()->mutable_tensor()->set_outside(5);
      }),
      HasSubstr("number 5, is missing"));
  EXPECT_THAT(
      refusal_after([](auto& p) {
        node_named(p, "w/initial").mutable_arguments(0)->mutable_value()->mutable_tensor()->set_bytes("abc");
      }),
      HasSubstr("has 3 bytes of data; its sizes need 6400"));
  EXPECT_THAT(refusal_after([](auto& p) {
                auto* tensor =
                    node_named(p, "w/initial").mutable_arguments(0)->mutable_value()->mutable_tensor();
                tensor->set_sizes(0, int64_t{1} << 62);
                tensor->set_bytes("abc");
              }),
              HasSubstr("a tensor has a size of"));
}

// Messages with random bytes changed are read or refused, and nothing else happens.
class DamagedGraphs : public ::testing::TestWithParam<Graph (*)()> {};

TEST_P(DamagedGraphs, AreReadOrRefused) {
  const SavedGraph saved = to_proto(GetParam()());
  const std::string whole = saved.proto.SerializeAsString();
  EXPECT_EQ(to_proto(from_proto(saved.proto, saved.tensors)).proto.SerializeAsString(), whole);
  std::mt19937 random(17);
  int refused = 0;
  const auto until = testing::fuzz_deadline();
  for (int i = 0; i < 300 || !until.expired(); ++i) {
    std::string damaged = whole;
    for (uint32_t n = 1 + random() % 4; n > 0; --n)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    graph::GraphProto proto;
    if (!proto.ParseFromString(damaged)) {
      ++refused;
      continue;
    }
    try {
      static_cast<void>(from_proto(proto, saved.tensors));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

INSTANTIATE_TEST_SUITE_P(Graphs, DamagedGraphs, ::testing::Values(&rich_graph, &graph_with_functions));

TEST(GraphProto, BodiesInBodiesEndSomewhere) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {});
  std::function<std::vector<Output>(int)> nested = [&](int depth) {
    if (depth == 0) return std::vector{x};
    return cond(
        x, [&] { return nested(depth - 1); }, [&] { return std::vector{x}; });
  };
  EXPECT_EQ(nested(20).size(), 1U);
  EXPECT_THROW(nested(40), InvalidArgument);
}

TEST(GraphFile, ConstantsOfAnotherGraphAreNotTakenAndOnlyFilesAreReplaced) {
  const std::string first = ::testing::TempDir() + fmt::format("first{}.pb", getpid());
  const std::string second = ::testing::TempDir() + fmt::format("second{}.pb", getpid());
  for (const auto& file : {first, second}) {
    Graph graph;
    graph.constant(torch::full({3000}, file == first ? 1.0 : 2.0));
    graph.save(file);
  }
  std::filesystem::rename(second + ".tensors", first + ".tensors");
  try {
    Graph::load(first);
    ADD_FAILURE() << "it was read";
  } catch (const DataLoss& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds the constants of another graph"));
  }
  for (const auto& file : {first, first + ".tensors", second}) std::filesystem::remove(file);
  std::filesystem::create_directories(first);
  EXPECT_THROW(Graph().save(first), SystemError);
  std::filesystem::remove(first);
}

}  // namespace
}  // namespace muster::detail
