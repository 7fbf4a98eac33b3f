// Derivatives of graphs against libtorch's own of the same computation, whole or node by node.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/error.h"
#include "muster/ops.h"
#include "muster/session.h"
#include "muster/trace.h"

namespace muster {
namespace {

// The same gradients, bit for bit, whether neighbours are joined or not, and as autograd gives for the
// module.
template <typename Holder>
void expect_gradients_of(Holder& net, const torch::Tensor& example, const torch::Tensor& input,
                         const torch::Tensor& labels) {
  Graph graph;
  const TracedModule traced = trace(graph, net, {example});
  const Output y = graph.placeholder("y", at::kLong, {kBatch});
  const Output loss = ops::nll_loss(ops::log_softmax(traced.outputs[0], 1), y);
  std::vector<Output> parameters;
  std::vector<torch::Tensor> tensors;
  for (const auto& entry : net->named_parameters()) {
    parameters.push_back(graph.output(entry.key()));
    tensors.push_back(entry.value());
  }
  const auto derived = gradients({loss}, parameters);
  const torch::Tensor expected_loss = torch::nll_loss(torch::log_softmax(net->forward(input), 1), labels);
  const auto expected = torch::autograd::grad({expected_loss}, tensors);
  std::vector<Output> fetches = derived;
  fetches.push_back(loss);
  for (const bool join : {true, false}) {
    Session session("local", graph, {.join_gradients = join});
    session.run({}, {}, {graph.initializer()});
    for (int run = 0; run < 2; ++run) {
      const auto found = session.run(fetches, {{traced.inputs[0], input}, {y, labels}});
      EXPECT_TRUE(found.back().equal(expected_loss.detach())) << "joined: " << join;
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(found[i].equal(expected[i])) << parameters[i].name() << ", joined: " << join;
    }
  }
}

TEST(GradientsOfModels, ConvolutionsWithPoolingAreThoseOfAutograd) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Conv2d(1, 4, 3), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                            torch::nn::Flatten(), torch::nn::Linear(4 * 36, 20), torch::nn::Tanh(),
                            torch::nn::Linear(20, 10));
  expect_gradients_of(net, torch::rand({2, 1, 14, 14}), torch::rand({5, 1, 14, 14}),
                      torch::randint(0, 10, {5}));
}

struct ResidualImpl : torch::nn::Module {
  ResidualImpl() {
    first = register_module("first", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{6}));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (int i = 0; i < 3; ++i) x = x + torch::gelu(first(norm(x)));  // tied weights, and skips
    return torch::matmul(x, first->weight);
  }
  torch::nn::Linear first{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Residual);

TEST(GradientsOfModels, TiedWeightsAndSkipsAreThoseOfAutograd) {
  torch::manual_seed(2);
  Residual net;
  expect_gradients_of(net, torch::rand({2, 6}), torch::rand({7, 6}), torch::randint(0, 6, {7}));
}

struct RecurrentImpl : torch::nn::Module {
  RecurrentImpl() {
    words = register_module("words", torch::nn::Embedding(20, 8));
    cells = register_module("cells", torch::nn::LSTM(torch::nn::LSTMOptions(8, 6).batch_first(true)));
    last = register_module("last", torch::nn::Linear(6, 5));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return last(std::get<0>(cells(words(ids))).select(1, -1));
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::LSTM cells{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Recurrent);

TEST(GradientsOfModels, EmbeddingsAndRecurrentCellsAreThoseOfAutograd) {
  torch::manual_seed(3);
  Recurrent net;
  expect_gradients_of(net, torch::randint(0, 20, {2, 4}), torch::randint(0, 20, {3, 4}),
                      torch::randint(0, 5, {3}));
}

TEST(GradientsOfModels, AttentionIsThatOfAutograd) {
  torch::manual_seed(4);
  torch::nn::Sequential net(
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)),
      torch::nn::Flatten(), torch::nn::Linear(8, 4));
  struct Unsqueezed : torch::nn::Module {
    explicit Unsqueezed(torch::nn::Sequential body) : inner(register_module("inner", std::move(body))) {}
    torch::Tensor forward(const torch::Tensor& x) {
      return inner[2]->as<torch::nn::Linear>()->forward(
          inner[0]->as<torch::nn::TransformerEncoderLayer>()->forward(x.unsqueeze(0)).squeeze(0));
    }
    torch::nn::Sequential inner;
  };
  const auto model = std::make_shared<Unsqueezed>(net);
  expect_gradients_of(model, torch::rand({3, 8}), torch::rand({5, 8}), torch::randint(0, 4, {5}));
}

// Derivatives by differences, in float64.
TEST(GradientsByDifferences, AreTheSameWhereverTheTapeIsCut) {
  torch::manual_seed(5);
  Graph graph;
  const Output w = graph.variable("w", torch::rand({3, 3}, at::kDouble));
  const Output v = graph.placeholder("v", at::kDouble, {3, 3});
  const Output h = ops::tanh(ops::matmul(w, v)).named("h");
  const Output side = ops::argmax(h, 1);  // not differentiable, and in the way
  const Output y =
      ops::sum(ops::mul(ops::sin(ops::add(h, ops::unsqueeze(side, 1))), ops::exp(ops::matmul(h, w))));
  const auto d = gradients({y}, {w, v, h});
  for (const bool join : {true, false}) {
    Session session("local", graph, {.join_gradients = join});
    session.run({}, {}, {graph.initializer()});
    const torch::Tensor point = torch::rand({3, 3}, at::kDouble);
    const auto found = session.run(d, {{v, point}});
    const double step = 1e-6;
    for (int i = 0; i < 9; ++i) {
      const auto moved = [&](double by) {
        torch::Tensor other = point.clone();
        other.view({9})[i] += by;
        return session.run({y}, {{v, other}})[0].item<double>();
      };
      EXPECT_NEAR((moved(step) - moved(-step)) / (2 * step), found[1].view({9})[i].item<double>(), 1e-6)
          << i << ", joined: " << join;
      const torch::Tensor inner = session.run({h}, {{v, point}})[0];
      const auto moved_inside = [&](double by) {
        torch::Tensor other = inner.clone();
        other.view({9})[i] += by;
        return session.run({y}, {{h, other}, {v, point}})[0].item<double>();
      };
      EXPECT_NEAR((moved_inside(step) - moved_inside(-step)) / (2 * step),
                  found[2].view({9})[i].item<double>(), 1e-6)
          << "of a result between, " << i << ", joined: " << join;
    }
  }
}

// y is used twice, so that its gradient is a sum, which the second call takes from the first one.
TEST(Gradients, MayGoOnWithASumOfAnotherCall) {
  torch::manual_seed(7);
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {kBatch, 3});
  const Output w = graph.variable("w", torch::rand({3, 3}));
  const Output y = ops::matmul(x, w);
  const Output loss = ops::add(ops::sum(ops::mul(y, ops::sigmoid(y))), ops::mean(ops::abs(y)));
  const Output direct = gradients({loss}, {w}).front();
  const Output of_y = gradients({loss}, {y}).front();
  const Output in_two = gradients({y}, {w}, {of_y}).front();
  const torch::Tensor point = torch::rand({5, 3});
  for (const bool join : {true, false}) {
    Session session("local", graph, {.join_gradients = join});
    session.run({}, {}, {graph.initializer()});
    const torch::Tensor expected = session.run({direct}, {{x, point}}).front();
    EXPECT_TRUE(session.run({in_two}, {{x, point}}).front().allclose(expected)) << join;
    const auto all = session.run({direct, of_y, in_two}, {{x, point}});
    EXPECT_TRUE(all[0].allclose(expected)) << join;
    EXPECT_TRUE(all[2].allclose(expected)) << join;
    EXPECT_TRUE(point.t().matmul(all[1]).allclose(expected)) << join;
  }
}

TEST(Gradients, OfSeveralCallsShareOneRun) {
  Graph graph;
  const Output w = graph.variable("w", torch::tensor({1.F, 2.F}));
  const Output h = ops::mul(w, w);
  const Output a = ops::sum(h);
  const Output b = ops::sum(ops::mul(h, w));
  const Output da = gradients({a}, {w}).front();
  const Output db = gradients({b}, {w}).front();
  const Output both = gradients({a, b}, {w}, {graph.constant(2), graph.constant(3)}).front();
  for (const bool join : {true, false}) {
    Session session("local", graph, {.join_gradients = join});
    session.run({}, {}, {graph.initializer()});
    const auto found = session.run({da, db, both});
    EXPECT_TRUE(found[0].equal(torch::tensor({2.F, 4.F})));
    EXPECT_TRUE(found[1].equal(torch::tensor({3.F, 12.F})));
    EXPECT_TRUE(found[2].equal(torch::tensor({13.F, 44.F})));
    EXPECT_TRUE(session.run({db})[0].equal(torch::tensor({3.F, 12.F})));
  }
}

TEST(Gradients, WhatIsCutOffHasNone) {
  Graph graph;
  const Output w = graph.variable("w", torch::tensor({1.F, 2.F}));
  const Output y = ops::sum(ops::mul(ops::detach(w), w));
  const Output none =
      gradients({ops::sum(ops::mul(ops::detach(w), graph.placeholder("x", at::kFloat, {2})))}, {w}).front();
  const Node train = apply_gradients(optim::SGD({.lr = 1}), {none}, {w});
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  EXPECT_TRUE(session.run({gradients({y}, {w}).front()})[0].equal(torch::tensor({1.F, 2.F})));
  session.run({}, {{graph.output("x"), torch::ones({2})}}, {train});
  EXPECT_TRUE(session.run({w})[0].equal(torch::tensor({1.F, 2.F})));
  EXPECT_TRUE(session.run({none}, {{graph.output("x"), torch::ones({2})}})[0].equal(torch::zeros({2})))
      << "fetched, it is zeros";
}

TEST(Gradients, AFeedThatCutsOneOffIsRefused) {
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  const Output h = ops::tanh(w).named("h");
  const Output d = gradients({ops::sum(h)}, {w}).front();
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  try {
    session.run({d}, {{h, torch::ones({2})}});
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("'h:0' can't be fed here"));
  }
}

// ---- Training.

TEST(Training, OfATracedModuleIsThatOfLibtorch) {
  torch::manual_seed(6);
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).bias(false)),
                            torch::nn::BatchNorm2d(4), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                            torch::nn::Flatten(), torch::nn::Linear(4 * 36, 10));
  const auto expect_same = [&net](const optim::Optimizer& optimizer, torch::optim::Optimizer& reference) {
    Graph graph;
    const TracedModule traced = trace(graph, net, {torch::rand({2, 1, 8, 8})});
    const Output y = graph.placeholder("y", at::kLong, {kBatch});
    const Output loss = ops::cross_entropy_loss(traced.outputs[0], y);
    const Node train = minimize(optimizer, loss);
    Session session("local", graph);
    session.run({}, {}, {graph.initializer()});
    const Callable step = session.make_callable({traced.inputs[0], y}, {loss}, {train});
    for (int i = 0; i < 20; ++i) {
      const torch::Tensor images = torch::rand({6, 1, 8, 8});
      const torch::Tensor labels = torch::randint(0, 10, {6});
      reference.zero_grad();
      const torch::Tensor expected = torch::nn::functional::cross_entropy(net->forward(images), labels);
      expected.backward();
      reference.step();
      EXPECT_NEAR(step({images, labels})[0].item<float>(), expected.item<float>(), 1e-5);
    }
    const auto names = graph.variables();
    const auto values = session.run(names);
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string name = names[i].node().name();
      const auto parameters = net->named_parameters();
      const torch::Tensor expected =
          parameters.contains(name) ? parameters[name] : net->named_buffers()[name];
      EXPECT_TRUE(values[i].allclose(expected, 1e-4, 1e-6)) << name << ", " << optimizer.to_string();
    }
  };
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  expect_same(optim::SGD({.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3}), sgd);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
  expect_same(optim::Adam({.lr = 1e-3}), adam);
}

// Dropout drops when it trains; for evaluation the module is traced once more.
TEST(Training, AModuleThatIsTracedAgainUsesTheSameVariables) {
  torch::manual_seed(8);
  torch::nn::Sequential net(torch::nn::Linear(4, 64), torch::nn::BatchNorm1d(64), torch::nn::Dropout(0.5),
                            torch::nn::Linear(64, 2));
  Graph graph;
  const TracedModule training = trace(graph, net, {torch::rand({2, 4})});
  const Output y = graph.placeholder("y", at::kFloat, {kBatch, 2});
  const Output loss = ops::mse_loss(training.outputs[0], y);
  const Node train = minimize(optim::SGD({.lr = 0.1}), loss);
  net->eval();
  const TracedModule evaluation = trace(graph, net, {torch::rand({2, 4})});
  EXPECT_EQ(graph.variables().size(), 4U + 2 + 3) << "weights and biases, of the norm too, and what it keeps";
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  const torch::Tensor x = torch::rand({8, 4});
  for (int i = 0; i < 5; ++i) session.run({}, {{training.inputs[0], x}, {y, torch::ones({8, 2})}}, {train});
  for (auto& parameter : net->named_parameters())
    parameter.value().data().copy_(session.run({graph.output(parameter.key())}).front());
  for (auto& buffer : net->named_buffers())
    buffer.value().copy_(session.run({graph.output(buffer.key())}).front());
  const torch::Tensor found = session.run({evaluation.outputs[0]}, {{evaluation.inputs[0], x}}).front();
  EXPECT_TRUE(found.allclose(net->forward(x), 1e-4, 1e-6));
  torch::nn::Sequential other(torch::nn::Linear(4, 64));
  EXPECT_THROW(trace(graph, other, {torch::rand({2, 4})}), InvalidArgument) << "its names are taken";
}

TEST(Training, TheRateOfAStepMayBeFed) {
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  const Output lr = graph.placeholder("lr", at::kFloat, {});
  const Node train = minimize(optim::SGD({.lr = 100}), ops::sum(w), lr);
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  session.run({}, {{lr, torch::tensor(0.25F)}}, {train});
  EXPECT_TRUE(session.run({w})[0].equal(torch::full({2}, 0.75F)));
  EXPECT_THROW(session.run({}, {{lr, torch::tensor(NAN)}}, {train}), InvalidArgument);
  EXPECT_TRUE(session.run({w})[0].equal(torch::full({2}, 0.75F)));
}

TEST(Training, OfWhatIsDetachedIsRefused) {
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  EXPECT_THROW(minimize(optim::SGD({.lr = 1}), ops::sum(ops::detach(w))), InvalidArgument);
}

TEST(Training, WhatIsNotTrainableStaysAsItIs) {
  Graph graph;
  const Output w = graph.variable("w", torch::ones({2}));
  const Output fixed = graph.variable("fixed", torch::ones({2}), /*trainable=*/false);
  const Node train = minimize(optim::SGD({.lr = 1}), ops::sum(ops::mul(w, fixed)));
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  session.run({}, {}, {train});
  const auto values = session.run({w, fixed});
  EXPECT_TRUE(values[0].equal(torch::zeros({2})));
  EXPECT_TRUE(values[1].equal(torch::ones({2})));
}

}  // namespace
}  // namespace muster
