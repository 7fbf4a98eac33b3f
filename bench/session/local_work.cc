#include <atomic>
#include <stdexcept>

#include <torch/library.h>
#include <torch/torch.h>

#include "bench/session/work.h"
#include "muster/ops.h"
#include "muster/session.h"

namespace muster::detail::bench::session {
namespace {

constexpr int kOperators = 100;

class Operators : public TimedWork {
 public:
  Operators() : session_("local", graph_), run_(compile()) {}

  void run() override { result_ = run_(input_).front(); }
  bool verify() override { return torch::equal(result_, torch::full({4}, 1.0F + kOperators / 2.0F)); }

 private:
  Callable compile() {
    const Output x = graph_.placeholder("x", at::kFloat, {4});
    const Output one = graph_.constant(torch::ones({4}));
    Output y = x;
    for (int i = 0; i < kOperators / 2; ++i) y = ops::mul(ops::add(y, one), one);
    return session_.make_callable({x}, {y});
  }

  Graph graph_;
  Session session_;
  const Callable run_;
  const std::vector<torch::Tensor> input_ = {torch::ones({4})};
  torch::Tensor result_;
};

// ---- Nodes that do nothing.

// A group leaves no instruction in a program, so these are operators of our own: the cheapest nodes that the
// executor really runs.
// They count themselves when somebody wants to know that they did run.
std::atomic<size_t>* executed = nullptr;

void do_nothing(const c10::OperatorHandle&, torch::jit::Stack*) {
  if (executed != nullptr) ++*executed;
}

TORCH_LIBRARY(muster_bench, library) {
  library.def("nothing() -> ()", torch::CppFunction::makeFromBoxedFunction<&do_nothing>());
  library.def("same(Tensor x) -> Tensor", torch::CppFunction::makeFromBoxedFunction<&do_nothing>());
}

struct EmptyShape {
  size_t width = 1;
  size_t depth = 1;
  bool has_data = false;  // edges are values; otherwise they are control dependencies
};

EmptyShape parse_shape(const std::string& text) {
  size_t end = 0;
  EmptyShape shape;
  shape.width = std::stoul(text, &end);
  if (end >= text.size() || text[end] != 'x') throw std::invalid_argument("not a shape: " + text);
  const std::string rest = text.substr(end + 1);
  shape.depth = std::stoul(rest, &end);
  const std::string edges = rest.substr(end);
  if (edges != " control" && edges != " data") throw std::invalid_argument("not a shape: " + text);
  shape.has_data = edges == " data";
  return shape;
}

// A node without effect would be computed once for all that are like it, or beforehand.
const Session::Options kAsWritten = {.fold_constants = false, .share_subexpressions = false};

class EmptyNodes : public TimedWork {
 public:
  explicit EmptyNodes(const EmptyShape& shape)
      : session_("local", graph_, kAsWritten), run_(compile(shape)), nodes_(shape.width * shape.depth) {}

  void run() override { run_(input_); }

  bool verify() override {
    std::atomic<size_t> count = 0;
    executed = &count;
    run();
    executed = nullptr;
    return count == nodes_;
  }

 private:
  // Each node comes after two of the level before, or takes the value of one.
  Callable compile(const EmptyShape& shape) {
    const Output x = graph_.placeholder("x", at::kFloat, {4});
    std::vector<Node> level;
    for (size_t i = 0; i < shape.width; ++i) level.push_back(node(shape, x, {}));
    for (size_t depth = 1; depth < shape.depth; ++depth) {
      std::vector<Node> next;
      for (size_t i = 0; i < shape.width; ++i)
        next.push_back(node(shape, level[i], {level[i], level[(i + 1) % shape.width]}));
      level = std::move(next);
    }
    return session_.make_callable({x}, {}, level);
  }

  Node node(const EmptyShape& shape, const Node& before, const std::vector<Node>& after) {
    if (shape.has_data) return graph_.add("muster_bench::same", {before.output()});
    const auto scope = graph_.control_dependencies(after);
    return graph_.add("muster_bench::nothing");
  }

  Graph graph_;
  Session session_;
  const Callable run_;
  const size_t nodes_;
  const std::vector<torch::Tensor> input_ = {torch::ones({4})};
};

}  // namespace

std::unique_ptr<TimedWork> make_operators() {
  return std::make_unique<Operators>();
}

std::unique_ptr<TimedWork> make_empty_nodes(const std::string& shape) {
  return std::make_unique<EmptyNodes>(parse_shape(shape));
}

}  // namespace muster::detail::bench::session
