#include "muster/session.h"

#include <map>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/mutex.h"
#include "muster/graph/graph_node.h"
#include "muster/runtime/executor.h"
#include "muster/runtime/program.h"

namespace muster {

struct Callable::State {
  explicit State(std::shared_ptr<const detail::Program> program) : executor(std::move(program)) {}

  detail::Executor executor;
};

std::vector<at::Tensor> Callable::operator()(const std::vector<at::Tensor>& feeds) const {
  return state_->executor.run(feeds);
}

struct Session::State {
  using Key =
      std::vector<std::pair<const detail::GraphNode*, int>>;  // feeds, fetches and targets, with gaps between

  const Graph* graph = nullptr;
  detail::CompileOptions options;
  detail::Container container;
  detail::Mutex mutex;
  std::map<Key, Callable> callables MUSTER_GUARDED_BY(mutex);
};

Session::Session(const std::string& target, const Graph& graph, Options options)
    : state_(std::make_unique<State>()) {
  if (target != "local")
    detail::raise<InvalidArgument>("'{}' is no target of a session: expected \"local\"", target);
  state_->graph = &graph;
  state_->options = {.fold_constants = options.fold_constants,
                     .share_subexpressions = options.share_subexpressions,
                     .join_gradients = options.join_gradients};
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Callable Session::make_callable(const std::vector<Output>& feeds, const std::vector<Output>& fetches,
                                const std::vector<Node>& targets) {
  const detail::Signature signature{.feeds = feeds, .fetches = fetches, .targets = targets};
  return Callable(std::make_shared<Callable::State>(
      std::make_shared<detail::Program>(signature, state_->container, state_->options)));
}

std::vector<at::Tensor> Session::run(const std::vector<Output>& fetches, const Feeds& feeds,
                                     const std::vector<Node>& targets) {
  State::Key key;
  for (const auto& [output, value] : feeds) key.emplace_back(output.get(), output.index());
  key.emplace_back(nullptr, -1);
  for (const auto& output : fetches) key.emplace_back(output.get(), output.index());
  key.emplace_back(nullptr, -1);
  for (const auto& node : targets) key.emplace_back(node.get(), 0);

  std::vector<at::Tensor> values;
  for (const auto& [output, value] : feeds) values.push_back(value);
  const Callable callable = [&] {
    const detail::MutexLock lock(state_->mutex);
    const auto found = state_->callables.find(key);
    if (found != state_->callables.end()) return found->second;
    std::vector<Output> fed;
    for (const auto& [output, value] : feeds) fed.push_back(output);
    return state_->callables.emplace(std::move(key), make_callable(fed, fetches, targets)).first->second;
  }();
  return callable(values);
}

}  // namespace muster
