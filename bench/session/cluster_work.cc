#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <torch/torch.h>

#include "bench/session/work.h"
#include "muster/ops.h"
#include "muster/session.h"

namespace muster::detail::bench::session {
namespace {

std::string device_of(size_t task) {
  return fmt::format("/job:worker/task:{}", task);
}

class EmptyStep : public TimedWork {
 public:
  explicit EmptyStep(const Server& server)
      : nothing_(nodes(server.cluster().jobs().at("worker").size())),
        session_(server.target(), graph_),
        step_(session_.make_callable({}, {}, nothing_)) {}

  void run() override { step_(); }
  bool verify() override { return true; }  // there is no result

 private:
  std::vector<Node> nodes(size_t tasks) {
    std::vector<Node> all;
    for (size_t task = 0; task < tasks; ++task) {
      const auto device = graph_.with_device(device_of(task));
      all.push_back(graph_.group({}));
    }
    return all;
  }

  Graph graph_;
  const std::vector<Node> nothing_;
  Session session_;
  const Callable step_;
};

// The tensor is a variable of task 0 and is changed before each step. Task 1 adds one. Task 0 adds up one
// element of each page of what comes back.
class Transfer : public TimedWork {
 public:
  Transfer(const Server& server, int64_t bytes) : count_(bytes / static_cast<int64_t>(sizeof(float))) {
    Output x, there, back;
    Node change;
    {
      const auto device = graph_.with_device(device_of(0));
      x = graph_.variable("x", torch::zeros({count_}));
      change = graph_.assign(x, ops::add(x, graph_.constant(1.0)));
    }
    {
      const auto device = graph_.with_device(device_of(1));
      there = ops::add(x, graph_.constant(1.0));
    }
    {
      const auto device = graph_.with_device(device_of(0));
      const std::vector<int64_t> dimensions = {0};
      back = ops::sum(ops::slice(there, 0, 0, count_, kPage), dimensions, /*keepdim=*/false, at::kDouble);
    }
    const Node initializer = graph_.initializer();
    session_.emplace(server.target(), graph_);
    session_->run({}, {}, {initializer});
    change_.emplace(session_->make_callable({}, {}, {change}));
    step_.emplace(session_->make_callable({}, {back}));
  }

  void prepare() override {
    (*change_)();
    ++changes_;
  }

  void run() override { sum_ = (*step_)().front(); }

  bool verify() override {
    const auto pages = static_cast<double>((count_ + kPage - 1) / kPage);
    return sum_.item<double>() == pages * static_cast<double>(changes_ + 1);
  }

 private:
  static constexpr int64_t kPage = 4096 / sizeof(float);

  const int64_t count_;
  Graph graph_;
  std::optional<Session> session_;
  std::optional<Callable> change_;
  std::optional<Callable> step_;
  torch::Tensor sum_;
  int64_t changes_ = 0;
};

// Chains of a thousand operators, the first half of each on task 0 and the other one on task 1; then the sum
// of all.
class LargeGraph : public TimedWork {
 public:
  LargeGraph(const Server& server, int64_t nodes)
      : target_(server.target()), chains_(std::max<int64_t>(1, nodes / kChain)) {}

  void prepare() override {
    session_.reset();
    graph_.reset();
  }

  void run() override {
    graph_.emplace();
    const Output x = graph_->placeholder("x", at::kFloat, {4});
    std::vector<Output> ends;
    for (int64_t i = 0; i < chains_; ++i) {
      const Output one = graph_->constant(torch::ones({4}));  // its own: no two chains compute the same
      ends.push_back(chain(device_of(1), chain(device_of(0), x, one), one));
    }
    Output total;
    {
      const auto device = graph_->with_device(device_of(0));
      total = ops::sum(ops::stack(ends));
    }
    session_.emplace(target_, *graph_);
    sum_ = session_->run({total}, {{x, torch::zeros({4})}}).front();
  }

  // Each chain adds the number of its operators to each of four zeros.
  bool verify() override {
    return sum_.item<double>() == 4.0 * static_cast<double>(kChain) * static_cast<double>(chains_);
  }

 private:
  static constexpr int64_t kChain = 1000;

  Output chain(const std::string& device, Output y, const Output& one) {
    const auto scope = graph_->with_device(device);
    for (int64_t i = 0; i < kChain / 2; ++i) y = ops::add(y, one);
    return y;
  }

  const std::string target_;
  const int64_t chains_;
  std::optional<Graph> graph_;
  std::optional<Session> session_;
  torch::Tensor sum_;
};

}  // namespace

std::unique_ptr<TimedWork> make_empty_step(const Server& server) {
  return std::make_unique<EmptyStep>(server);
}

std::unique_ptr<TimedWork> make_transfer(const Server& server, int64_t bytes) {
  return std::make_unique<Transfer>(server, bytes);
}

std::unique_ptr<TimedWork> make_large_graph(const Server& server, int64_t nodes) {
  return std::make_unique<LargeGraph>(server, nodes);
}

}  // namespace muster::detail::bench::session
