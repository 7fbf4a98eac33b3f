#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/session/work.h"
#include "bench/train/models.h"
#include "muster/monitored_session.h"
#include "muster/ops.h"
#include "muster/pipeline.h"
#include "muster/session.h"
#include "muster/sync_replicas.h"
#include "muster/trace.h"

namespace muster::detail::bench::session {
namespace {

// As peers/train_loop.cc and bench/train/muster_train.cc have it.
optim::SGD make_rule() {
  return optim::SGD({.lr = 0.01, .momentum = 0.9});
}

/// A model with its loss as nodes of a graph.
struct Classifier {
  Classifier(Graph& graph, const TrainModel& model) {
    std::vector<int64_t> shape = model.input;
    shape.insert(shape.begin(), 2);
    torch::nn::Sequential net = model.net;
    const TracedModule traced = trace(graph, net, {torch::zeros(shape)});
    inputs = traced.inputs[0];
    labels = graph.placeholder("labels", at::kLong, {kBatch});
    loss = ops::cross_entropy_loss(traced.outputs[0], labels);
  }

  Output inputs;
  Output labels;
  Output loss;
};

class LocalTraining : public TrainWorker {
 public:
  LocalTraining(const std::string& name, int64_t batch)
      : model_(make_model(name)),
        batches_(model_, batch, 0),
        net_(graph_, model_),
        train_(minimize(make_rule(), net_.loss)),
        initializer_(graph_.initializer()),
        session_("local", graph_),
        step_(session_.make_callable({net_.inputs, net_.labels}, {net_.loss}, {train_})) {
    session_.run({}, {}, {initializer_});
  }

  void begin_turn() override {}

  void step() override {
    const auto [inputs, labels] = batches_.next();
    loss_ = step_({inputs, labels}).front();
  }

  TrainTurn end_turn() override { return {.loss = loss_.item<double>()}; }

 private:
  const TrainModel model_;
  RandomBatches batches_;
  Graph graph_;
  const Classifier net_;
  const Node train_;
  const Node initializer_;
  Session session_;
  const Callable step_;
  torch::Tensor loss_;
};

// ---- A pipeline.

constexpr int kLayers = 8;  // of a stage
constexpr int64_t kWidth = 512;
constexpr int kMicroBatches = 8;
constexpr size_t kBatches = 4;

struct TwoStagesImpl : torch::nn::Module {
  TwoStagesImpl() {
    for (auto* stage : {&first, &second}) {
      for (int i = 0; i < kLayers; ++i) {
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

class PipelineTraining : public TrainWorker {
 public:
  PipelineTraining(const Server& server, const std::string& schedule, int64_t batch) {
    torch::manual_seed(1);
    TwoStages net;
    const TracedModule traced = trace(graph_, net, {torch::zeros({2, kWidth})});
    const Output inputs = traced.inputs[0];
    const Output wanted = graph_.placeholder("wanted", at::kFloat, {kBatch, kWidth});
    const Output loss = ops::mse_loss(traced.outputs[0], wanted);
    if (schedule == "one-task") {
      const Node train = minimize(make_rule(), loss);
      compile(server, {inputs, wanted}, loss, train);
    } else {
      place(graph_, {{"first*", "/job:worker/task:0"}, {"second*", "/job:worker/task:1"}});
      const Pipeline pipeline = minimize_in_pipeline(
          make_rule(), loss, {.micro_batches = kMicroBatches, .schedule = parse_schedule(schedule)});
      compile(server, {pipeline.batch(inputs), pipeline.batch(wanted)}, pipeline.loss, pipeline.train);
    }
    for (size_t i = 0; i < kBatches; ++i)
      batches_.push_back({torch::rand({batch, kWidth}), torch::rand({batch, kWidth})});
  }

  void begin_turn() override {}
  void step() override { loss_ = (*step_)(batches_[steps_++ % kBatches]).front(); }
  TrainTurn end_turn() override { return {.loss = loss_.item<double>()}; }

 private:
  static PipelineSchedule parse_schedule(const std::string& name) {
    if (name == "1f1b") return PipelineSchedule::k1F1B;
    if (name == "zero-bubble") return PipelineSchedule::kZeroBubble;
    throw std::invalid_argument("there is no schedule '" + name + "'");
  }

  void compile(const Server& server, const std::vector<Output>& feeds, const Output& loss,
               const Node& train) {
    const Node initializer = graph_.initializer();
    session_.emplace(server.target(), graph_);
    session_->run({}, {}, {initializer});
    step_.emplace(session_->make_callable(feeds, {loss}, {train}));
  }

  Graph graph_;
  std::optional<Session> session_;
  std::optional<Callable> step_;
  std::vector<std::vector<torch::Tensor>> batches_;
  size_t steps_ = 0;
  torch::Tensor loss_;
};

// ---- Synchronous replicas.

class Replica : public TrainWorker {
 public:
  Replica(const Server& server, const std::string& name, int64_t batch)
      : model_(make_model(name)), batches_(model_, batch, server.task()) {
    const auto& jobs = server.cluster().jobs();
    Output step;
    {
      const auto device = graph_.with_device(
          replica_device_setter({.ps_tasks = static_cast<int>(jobs.at("ps").size()),
                                 .worker_device = fmt::format("/job:worker/task:{}", server.task())}));
      net_.emplace(graph_, model_);
      step = minimize_synchronously(
          graph_, make_rule(), net_->loss,
          {.total_num_replicas = static_cast<int>(jobs.at("worker").size()), .replica = server.task()});
    }
    session_.emplace(server, graph_, MonitoredSession::Options{.step = step});
  }

  void begin_turn() override {}

  void step() override {
    const auto [inputs, labels] = batches_.next();
    loss_ = session_->run({net_->loss}, {{net_->inputs, inputs}, {net_->labels, labels}}).front();
  }

  TrainTurn end_turn() override { return {.loss = loss_.item<double>()}; }

 private:
  const TrainModel model_;
  RandomBatches batches_;
  Graph graph_;
  std::optional<Classifier> net_;
  std::optional<MonitoredSession> session_;
  torch::Tensor loss_;
};

}  // namespace

std::unique_ptr<TrainWorker> make_local_training(const std::string& model, int64_t batch) {
  return std::make_unique<LocalTraining>(model, batch);
}

std::unique_ptr<TrainWorker> make_pipeline(const Server& server, const std::string& schedule, int64_t batch) {
  return std::make_unique<PipelineTraining>(server, schedule, batch);
}

std::unique_ptr<TrainWorker> make_replica(const Server& server, const std::string& model, int64_t batch) {
  return std::make_unique<Replica>(server, model, batch);
}

}  // namespace muster::detail::bench::session
