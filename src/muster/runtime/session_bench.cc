// What a session costs beside the same operators in a loop.

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "muster/net/reserved_port.h"
#include "muster/ops.h"
#include "muster/pipeline.h"
#include "muster/server.h"
#include "muster/session.h"
#include "muster/trace.h"

namespace muster {
namespace {

constexpr int kOperators = 100;

// 100 operators on four floats: compiled, and called one after the other.
void TinyOperatorsInASession(benchmark::State& state) {
  Graph graph;
  const Output x = graph.placeholder("x", at::kFloat, {4});
  const Output one = graph.constant(torch::ones({4}));
  Output y = x;
  for (int i = 0; i < kOperators / 2; ++i) y = ops::mul(ops::add(y, one), one);
  Session session("local", graph);
  const Callable run = session.make_callable({x}, {y});
  const std::vector<torch::Tensor> input = {torch::ones({4})};
  for (auto _ : state) benchmark::DoNotOptimize(run(input));
}
BENCHMARK(TinyOperatorsInASession)->MinTime(1);

void TinyOperatorsInALoop(benchmark::State& state) {
  const torch::NoGradGuard guard;
  const torch::Tensor input = torch::ones({4});
  const torch::Tensor one = torch::ones({4});
  for (auto _ : state) {
    torch::Tensor y = input;
    for (int i = 0; i < kOperators / 2; ++i) y = at::mul(at::add(y, one), one);
    benchmark::DoNotOptimize(y);
  }
}
BENCHMARK(TinyOperatorsInALoop)->MinTime(1);

torch::nn::Sequential conv_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Conv2d(1, 16, 5), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                               torch::nn::Conv2d(16, 32, 5), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                               torch::nn::Flatten(), torch::nn::Linear(512, 128), torch::nn::ReLU(),
                               torch::nn::Linear(128, 10));
}

// A step of training on a batch of digits, which is another one each time.
struct Digits {
  torch::Tensor images = torch::rand({20 * 64, 1, 28, 28});
  torch::Tensor labels = torch::randint(0, 10, {20 * 64});
  int64_t next = 0;

  std::vector<torch::Tensor> batch() {
    next = (next + 1) % 20;
    return {images.slice(0, next * 64, (next + 1) * 64), labels.slice(0, next * 64, (next + 1) * 64)};
  }
};

void DigitsInASession(benchmark::State& state) {
  Graph graph;
  auto net = conv_net();
  const TracedModule traced = trace(graph, net, {torch::zeros({2, 1, 28, 28})});
  const Output labels = graph.placeholder("labels", at::kLong, {kBatch});
  const Output loss = ops::cross_entropy_loss(traced.outputs[0], labels);
  const Node train = minimize(optim::SGD({.lr = 0.01, .momentum = 0.9}), loss);
  Session session("local", graph);
  session.run({}, {}, {graph.initializer()});
  const Callable step = session.make_callable({traced.inputs[0], labels}, {loss}, {train});
  Digits digits;
  for (auto _ : state) benchmark::DoNotOptimize(step(digits.batch()));
}
BENCHMARK(DigitsInASession)->MinTime(3);

void DigitsInALoop(benchmark::State& state) {
  auto net = conv_net();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  Digits digits;
  for (auto _ : state) {
    const auto batch = digits.batch();
    optimizer.zero_grad();
    torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(batch[0]), batch[1]);
    loss.backward();
    optimizer.step();
    benchmark::DoNotOptimize(loss);
  }
}
BENCHMARK(DigitsInALoop)->MinTime(3);

// From nothing to the first result of a chain of so many nodes.
void FirstRunOfAChain(benchmark::State& state) {
  for (auto _ : state) {
    Graph graph;
    const Output x = graph.placeholder("x", at::kFloat, {4});
    const Output one = graph.constant(torch::ones({4}));
    Output y = x;
    for (int64_t i = 0; i < state.range(0); ++i) y = ops::add(y, one);
    Session session("local", graph);
    benchmark::DoNotOptimize(session.run({y}, {{x, torch::ones({4})}}));
  }
}
BENCHMARK(FirstRunOfAChain)
    ->Arg(10'000)
    ->Arg(100'000)
    ->Arg(1'000'000)
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

// Tasks of a cluster in this process: what is measured is how they talk, as between processes of one host.
class BenchCluster {
 public:
  explicit BenchCluster(int64_t tasks) {
    std::vector<detail::ReservedPort> ports;
    std::vector<std::string> addresses;
    for (int64_t i = 0; i < tasks; ++i) {
      ports.emplace_back("127.0.0.1");
      addresses.push_back(fmt::format("127.0.0.1:{}", ports.back().port()));
    }
    const ClusterSpec spec(ClusterSpec::Jobs{{"task", addresses}});
    for (int64_t i = 0; i < tasks; ++i)
      servers_.push_back(
          std::make_unique<Server>(spec, "task", static_cast<int>(i), Server::Options{.secret = "bench"}));
  }

  const std::string& target() const { return servers_.front()->target(); }

 private:
  std::vector<std::unique_ptr<Server>> servers_;
};

// A step in which each task does nothing.
void EmptyStepOverTasks(benchmark::State& state) {
  const BenchCluster cluster(state.range(0));
  Graph graph;
  std::vector<Node> nothing;
  for (int64_t i = 0; i < state.range(0); ++i) {
    const auto device = graph.with_device(fmt::format("/job:task/task:{}", i));
    nothing.push_back(graph.group({}));
  }
  Session session(cluster.target(), graph);
  const Callable step = session.make_callable({}, {}, nothing);
  for (auto _ : state) step();
}
BENCHMARK(EmptyStepOverTasks)->Arg(1)->Arg(2)->Arg(8)->UseRealTime()->Unit(benchmark::kMicrosecond);

// A tensor that goes to another task and comes back.
void ThereAndBack(benchmark::State& state) {
  const BenchCluster cluster(2);
  Graph graph;
  const Output x = graph.variable("x", torch::rand({state.range(0) / 4}));
  Output there;
  {
    const auto device = graph.with_device("/job:task/task:1");
    there = ops::alias(x);
  }
  const Output back = ops::sum(ops::slice(ops::alias(there), 0, 0, 1));
  Session session(cluster.target(), graph);
  session.run({}, {}, {graph.initializer()});
  const Callable step = session.make_callable({}, {back});
  for (auto _ : state) benchmark::DoNotOptimize(step());
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0));
}
BENCHMARK(ThereAndBack)->Arg(4)->Arg(64 << 20)->UseRealTime()->Unit(benchmark::kMicrosecond);

// Two equal stages that compute for long, as a pipeline of 8 micro-batches on two tasks, and as one batch on
// one. To be run with OMP_NUM_THREADS=1: a stage has one core.
constexpr int64_t kWidth = 512;
constexpr int64_t kSamples = 4096;

struct TwoStagesImpl : torch::nn::Module {
  TwoStagesImpl() {
    for (auto* stage : {&first, &second}) {
      for (int i = 0; i < 8; ++i) {
        (*stage)->push_back(torch::nn::Linear(kWidth, kWidth));
        (*stage)->push_back(torch::nn::ReLU());
      }
    }
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second->forward(first->forward(x)); }

  torch::nn::Sequential first, second;
};
TORCH_MODULE(TwoStages);

struct DeepNet {
  explicit DeepNet(Graph& graph) {
    torch::manual_seed(1);
    TwoStages net;
    traced = trace(graph, net, {torch::zeros({2, kWidth})});
    labels = graph.placeholder("labels", at::kFloat, {kBatch, kWidth});
    loss = ops::mse_loss(traced.outputs[0], labels);
  }

  TracedModule traced;
  Output labels;
  Output loss;
};

void run_deep_net(benchmark::State& state, const std::string& target, Graph& graph, const Output& input,
                  const Output& labels, const Output& loss, const Node& train) {
  Session session(target, graph, {.secret = "bench"});
  session.run({}, {}, {graph.initializer()});
  const Callable step = session.make_callable({input, labels}, {loss}, {train});
  const std::vector<torch::Tensor> batch = {torch::rand({kSamples, kWidth}), torch::rand({kSamples, kWidth})};
  for (auto _ : state) benchmark::DoNotOptimize(step(batch));
}

void DeepNetOnOneTask(benchmark::State& state) {
  const BenchCluster cluster(1);
  Graph graph;
  const DeepNet net(graph);
  const Node train = minimize(optim::SGD({.lr = 0.01}), net.loss);
  run_deep_net(state, cluster.target(), graph, net.traced.inputs[0], net.labels, net.loss, train);
}
BENCHMARK(DeepNetOnOneTask)->UseRealTime()->MinTime(3)->Unit(benchmark::kMillisecond);

void DeepNetInAPipeline(benchmark::State& state) {
  const BenchCluster cluster(2);
  Graph graph;
  const DeepNet net(graph);
  place(graph, {{"first*", "/job:task/task:0"}, {"second*", "/job:task/task:1"}});
  const Pipeline pipeline =
      minimize_in_pipeline(optim::SGD({.lr = 0.01}), net.loss,
                           {.micro_batches = 8, .schedule = static_cast<PipelineSchedule>(state.range(0))});
  run_deep_net(state, cluster.target(), graph, pipeline.batch(net.traced.inputs[0]),
               pipeline.batch(net.labels), pipeline.loss, pipeline.train);
}
BENCHMARK(DeepNetInAPipeline)->DenseRange(0, 2)->UseRealTime()->MinTime(3)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster
