#include "muster/session.h"

#include <map>
#include <optional>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/mutex.h"
#include "muster/graph/graph_node.h"
#include "muster/runtime/local_session.h"
#include "muster/runtime/remote_session.h"

namespace muster {

std::vector<at::Tensor> Callable::operator()(const std::vector<at::Tensor>& feeds, Timeline* timeline) const {
  return state_->run(feeds, timeline);
}

struct Session::State {
  using Key =
      std::vector<std::pair<const detail::GraphNode*, int>>;  // feeds, fetches and targets, with gaps between

  const Graph* graph = nullptr;
  std::unique_ptr<detail::SessionBackend> backend;
  detail::Mutex mutex;
  std::map<Key, Callable> callables MUSTER_GUARDED_BY(mutex);
};

Session::Session(const std::string& target, const Graph& graph, Options options)
    : state_(std::make_unique<State>()) {
  state_->graph = &graph;
  if (target == "local") {
    state_->backend = std::make_unique<detail::LocalSession>(std::move(options));
  } else {
    state_->backend = std::make_unique<detail::RemoteSession>(target, graph, std::move(options));
  }
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Callable Session::make_callable(const std::vector<Output>& feeds, const std::vector<Output>& fetches,
                                const std::vector<Node>& targets) {
  const detail::Signature signature{.feeds = feeds, .fetches = fetches, .targets = targets};
  detail::check_signature(signature, state_->graph->data());
  return Callable(state_->backend->prepare(signature));
}

std::vector<at::Tensor> Session::run(const std::vector<Output>& fetches, const Feeds& feeds,
                                     const std::vector<Node>& targets, Timeline* timeline) {
  State::Key key;
  for (const auto& [output, value] : feeds) key.emplace_back(output.get(), output.index());
  key.emplace_back(nullptr, -1);
  for (const auto& output : fetches) key.emplace_back(output.get(), output.index());
  key.emplace_back(nullptr, -1);
  for (const auto& node : targets) key.emplace_back(node.get(), 0);

  std::vector<at::Tensor> values;
  for (const auto& [output, value] : feeds) values.push_back(value);
  const auto find = [&]() -> std::optional<Callable> {
    const detail::MutexLock lock(state_->mutex);
    const auto found = state_->callables.find(key);
    if (found == state_->callables.end()) return std::nullopt;
    return found->second;
  };
  if (const auto callable = find()) return (*callable)(values, timeline);
  // Nobody else waits for it; where two threads make the same, one of them is kept.
  std::vector<Output> fed;
  for (const auto& [output, value] : feeds) fed.push_back(output);
  Callable callable = make_callable(fed, fetches, targets);
  {
    const detail::MutexLock lock(state_->mutex);
    callable = state_->callables.emplace(std::move(key), std::move(callable)).first->second;
  }
  return callable(values, timeline);
}

}  // namespace muster
