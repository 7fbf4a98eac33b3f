#include "muster/trace.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/graph/graph_node.h"
#include "muster/testing/message_of.h"

namespace muster {
namespace {

using detail::testing::message_of;
using ::testing::HasSubstr;

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    encoder = register_module("encoder",
                              torch::nn::Sequential(torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4)));
    decoder = register_module("decoder", torch::nn::Linear(4 * 36, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = encoder->forward(x);
    torch::relu_(x);
    x = torch::max_pool2d(x, 2);
    return decoder(x.view({x.size(0), -1}));
  }
  torch::nn::Sequential encoder{nullptr};
  torch::nn::Linear decoder{nullptr};
};
TORCH_MODULE(ConvNet);

TEST(Trace, ParametersAreVariablesAndNodesAreNamedAfterTheirModules) {
  Graph graph;
  ConvNet net;
  const TracedModule traced = trace(graph, net, {torch::rand({2, 1, 14, 14})});
  EXPECT_EQ(traced.inputs.front().shape().to_string(), "[N, 1, 14, 14]");
  EXPECT_EQ(traced.outputs.front().shape().to_string(), "[N, 10]")
      << "the batch stays open, though view() was told a number";
  EXPECT_EQ(graph.find("encoder.0.weight").op(), "muster::variable");
  EXPECT_EQ(graph.find("encoder.1.running_mean").op(), "muster::variable");
  EXPECT_EQ(graph.find("encoder.1/relu").op(), "aten::relu") << "without parameters, as the node before it";
  EXPECT_EQ(graph.find("decoder/addmm").op(), "aten::addmm");
}

TEST(Trace, LeavesTheModuleAsItWas) {
  Graph graph;
  ConvNet net;
  torch::manual_seed(5);
  const torch::Tensor next = torch::rand({3});
  torch::manual_seed(5);
  trace(graph, net, {torch::full({2, 1, 14, 14}, 3.0)});
  EXPECT_EQ(net->named_buffers()["encoder.1.running_mean"].abs().sum().item<float>(), 0);
  EXPECT_EQ(net->named_buffers()["encoder.1.num_batches_tracked"].item<int64_t>(), 0);
  EXPECT_TRUE(torch::rand({3}).equal(next)) << "nor is a random number used";
}

TEST(Trace, SeveralModulesHaveNamesOfTheirOwn) {
  Graph graph;
  torch::nn::Linear net(3, 2);
  trace(graph, net, {torch::rand({2, 3})}, "generator");
  trace(graph, net, {torch::rand({2, 3})}, "critic");
  EXPECT_TRUE(graph.find("generator.weight").defined());
  EXPECT_TRUE(graph.find("critic.bias").defined());
  EXPECT_TRUE(graph.find("critic/input").defined());
}

struct BranchImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x.size(0) > 3 ? torch::tanh(x) : torch::sin(x); }
};
TORCH_MODULE(Branch);

struct MeanImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x * (1.0 / static_cast<double>(x.size(0))); }
};
TORCH_MODULE(Mean);

struct SlicesImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = x.clone();
    y.select(1, 0).zero_();
    return y;
  }
};
TORCH_MODULE(Slices);

TEST(Trace, WhatATraceCannotHoldIsRefused) {
  Graph graph;
  Branch branch;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, branch, {torch::rand({2, 3})});
              }),
              HasSubstr("aten::sin becomes aten::tanh"));
  Mean mean;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, mean, {torch::rand({2, 3})});
              }),
              HasSubstr("a number is 0.5 with a batch of 2"));
  Slices slices;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, slices, {torch::rand({2, 3})});
              }),
              HasSubstr("changes a part of a tensor in place"));
  torch::nn::Linear linear(3, 2);
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, linear, {torch::rand({0, 3})});
              }),
              HasSubstr("a batch of 0 samples"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                import_module(graph, "/nonexistent.pt", {torch::rand({2, 3})});
              }),
              HasSubstr("can't be read as a TorchScript file"));
}

struct SquareImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x.div(torch::full({}, x.size(0) * x.size(0))); }
};
TORCH_MODULE(Square);

struct LimitImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x.narrow(0, 0, std::min<int64_t>(x.size(0), 8)); }
};
TORCH_MODULE(Limit);

struct HiddenChangeImpl : torch::nn::Module {
  HiddenChangeImpl() : seen(register_buffer("seen", torch::zeros({1}))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    seen.data().add_(1);
    return x * 2;
  }
  torch::Tensor seen;
};
TORCH_MODULE(HiddenChange);

TEST(Trace, WhatFitsTwoSizesOfTheBatchByChanceIsRefused) {
  Graph graph;
  Square square;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, square, {torch::rand({2, 3})});
              }),
              HasSubstr("does something else when the batch is larger"));
  Limit limit;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, limit, {torch::rand({2, 3})});
              }),
              HasSubstr("does something else when the batch is larger"));
}

TEST(Trace, ChangesThatATraceDoesNotSeeAreRefused) {
  Graph graph;
  HiddenChange hidden;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, hidden, {torch::rand({2, 3})});
              }),
              HasSubstr("changes 'seen' where a trace does not see it"));
  torch::nn::Sequential cumulative(
      torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(3).momentum(c10::nullopt)));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                trace(graph, cumulative, {torch::rand({2, 3})});
              }),
              HasSubstr("'0' keeps the average of all batches"));
}

struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    register_module("first", linear);
    register_module("second", linear);
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear(linear(x)); }
  torch::nn::Linear linear{3, 3};
};
TORCH_MODULE(Twice);

TEST(Trace, AModuleMayBeOnTheStack) {
  Graph graph;
  TwiceImpl module;
  const auto traced = trace_function(graph, module,
                                     [&module](const std::vector<at::Tensor>& inputs) {
                                       return std::vector<at::Tensor>{module.forward(inputs[0])};
                                     },
                                     {torch::rand({2, 3})});
  EXPECT_EQ(traced.outputs.size(), 1U);
}

TEST(Trace, AModuleOfTwoNamesIsOneSetOfVariables) {
  Graph graph;
  Twice twice;
  trace(graph, twice, {torch::rand({2, 3})});
  EXPECT_EQ(graph.variables().size(), 2U);
  EXPECT_TRUE(graph.find("first.weight").defined());
}

struct FixedImpl : torch::nn::Module {
  FixedImpl() {
    register_module("fixed", fixed);
    register_module("trained", trained);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y;
    {
      const torch::NoGradGuard guard;
      y = fixed(x);
    }
    return trained(y);
  }
  torch::nn::Linear fixed{3, 3};
  torch::nn::Linear trained{3, 3};
};
TORCH_MODULE(Fixed);

TEST(Trace, WhatIsUsedWithoutADerivativeIsNotTrained) {
  Graph graph;
  Fixed net;
  trace(graph, net, {torch::rand({2, 3})});
  const auto is_trainable = [&graph](const char* name) {
    return graph.find(name).get()->arguments[2].value().toBool();
  };
  EXPECT_FALSE(is_trainable("fixed.weight"));
  EXPECT_TRUE(is_trainable("trained.weight"));
}

// ---- TorchScript files. What Python's torch.jit.save writes is what libtorch's own save does.

std::string saved_script(const std::string& name, const std::string& forward) {
  torch::jit::Module inner("inner");
  inner.register_parameter("weight", torch::ones({4, 3}), /*is_buffer=*/false);
  inner.register_buffer("bias", torch::zeros({4}));
  inner.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  torch::jit::Module module("module");
  module.register_module("inner", inner);
  module.define("def forward(self, x):\n" + forward);
  const std::string file = ::testing::TempDir() + name + std::to_string(getpid()) + ".pt";
  module.save(file);
  return file;
}

TEST(ImportModule, NodesAndVariablesHaveTheNamesOfTheModule) {
  Graph graph;
  const std::string file = saved_script(
      "import",
      "  y = torch.relu_(self.inner.forward(x))\n  return torch.cat([y.view(x.size(0), -1), x], 1)\n");
  const TracedModule imported = import_module(graph, file, {torch::rand({2, 3})}, "net");
  std::filesystem::remove(file);
  EXPECT_EQ(imported.outputs.front().shape().to_string(), "[N, 7]");
  EXPECT_EQ(graph.find("net.inner.weight").op(), "muster::variable");
  EXPECT_EQ(graph.find("net.inner/linear").op(), "aten::linear");
  EXPECT_EQ(graph.find("net.inner/relu").op(), "aten::relu");
  EXPECT_EQ(graph.variables().size(), 2U);
}

TEST(ImportModule, ControlFlowIsRefused) {
  Graph graph;
  const std::string file = saved_script(
      "flow", "  if bool(x.sum() > 0):\n    y = self.inner.forward(x)\n  else:\n    y = x\n  return y\n");
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                import_module(graph, file, {torch::rand({2, 3})});
              }),
              HasSubstr("prim::If is control flow that depends on data"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { import_module(graph, file, {}); }),
              HasSubstr("takes 1 arguments; 0 examples are given"));
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace muster
