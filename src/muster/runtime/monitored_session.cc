#include "muster/monitored_session.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/task_name.h"
#include "muster/deadline.h"
#include "muster/graph/graph_node.h"
#include "muster/runtime/replica_functions.h"
#include "muster/runtime/runtime_stream.h"
#include "muster/runtime/server_secret.h"

namespace muster {

namespace {

constexpr const char* kGlobalStep = "global_step";
constexpr const char* kEnded = "muster/ended_workers";
constexpr auto kLookEvery = std::chrono::milliseconds(50);
constexpr auto kWaitForOthers = std::chrono::seconds(30);
constexpr auto kStallWarning = std::chrono::seconds(10);
constexpr auto kAnswer = std::chrono::seconds(2);

Output counter(Graph& graph, const char* name, std::source_location where) {
  const Node found = graph.find(name);
  if (found.defined()) return found.output();
  return graph.variable(name, at::zeros({}, at::TensorOptions(at::kLong)), /*trainable=*/false, where);
}

}  // namespace

Output global_step(Graph& graph, std::source_location where) {
  return counter(graph, kGlobalStep, where);
}

Output count_step(Graph& graph, const Node& train, std::source_location where) {
  const Output step = global_step(graph, where);
  const auto after = graph.control_dependencies({train});
  return graph.assign_add(step, graph.constant(at::ones({}, at::TensorOptions(at::kLong)), "one", where),
                          where);
}

struct MonitoredSession::State {
  State(const Server& known_server, Graph& known_graph, const Options& given)
      : server(known_server), graph(known_graph), options(given) {
    if (!options.step.defined())
      throw InvalidArgument(
          "a MonitoredSession needs Options::step: what count_step() or "
          "minimize_synchronously() gave");
    enter = detail::node_that_enters(options.step);
    is_chief = server.job() == "worker" && server.task() == 0;
    refuse_variables_without_a_job();
    const bool has_servers = server.cluster().jobs().contains("ps");
    const auto device = graph.with_device(has_servers ? "/job:ps/task:0" : "/job:worker/task:0");
    ended = counter(graph, kEnded, std::source_location::current());
    more_ended = graph.assign_add(ended, graph.constant(at::ones({}, at::TensorOptions(at::kLong))));
    variables = graph.variables();
    for (const auto& variable : variables) have_values.push_back(graph.is_initialized(variable));
    session.emplace(server.target(), graph, options.session);
    prepare();
    step = session->run({global_step(graph)}).front().item<int64_t>();
  }

  // Each worker would have its own, on the task that its session is connected to.
  void refuse_variables_without_a_job() const {
    const auto workers = server.cluster().jobs().find("worker");
    if (workers == server.cluster().jobs().end() || workers->second.size() < 2) return;
    for (const auto& variable : graph.variables()) {
      if (!detail::TaskName::parse(variable.node().device()).job)
        detail::raise<InvalidArgument>(
            "the variable '{}' (made at {}) is placed nowhere, so that each worker would have one of its "
            "own: "
            "make it under graph.with_device(muster::replica_device_setter(...))",
            variable.node().name(), variable.node().where());
    }
  }

  // The variables without a value, by their numbers.
  std::vector<size_t> missing() {
    const auto found = session->run(have_values);
    std::vector<size_t> numbers;
    for (size_t i = 0; i < found.size(); ++i) {
      if (!found[i].item<bool>()) numbers.push_back(i);
    }
    return numbers;
  }

  std::string names_of(const std::vector<size_t>& numbers) const {
    constexpr size_t kShown = 8;
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(numbers.size(), kShown); ++i)
      names.push_back("'" + variables[numbers[i]].node().name() + "'");
    return fmt::format("{}{}", fmt::join(names, ", "),
                       numbers.size() > kShown ? fmt::format(" and {} more", numbers.size() - kShown) : "");
  }

  // The chief gives values to variables that have none; the others wait for it.
  void prepare() {
    auto left = missing();
    if (is_chief && !left.empty()) {
      const bool was_restored = options.restore && options.restore(*session);
      if (was_restored) left = missing();
      if (!left.empty()) {
        if (was_ready || (was_restored && left.size() < variables.size()))
          detail::log_warning(
              "the variables {} are initialised anew: they were lost with their task, and no "
              "checkpoint has them",
              names_of(left));
        std::vector<Node> targets;
        for (const size_t i : left) targets.emplace_back(graph.data().initializers[i]);
        session->run({}, {}, targets);
      }
    }
    auto warning = Deadline::after(kStallWarning);
    const auto deadline = Deadline::after(options.patience);
    while (!(left = missing()).empty()) {
      if (deadline.expired())
        detail::raise<DeadlineExceeded>("the chief, worker/0, did not give values to the variables {} in {}",
                                        names_of(left), format_seconds(options.patience));
      if (warning.expired()) {
        detail::log_warning("worker/{} waits for the chief, worker/0, to initialise the variables {}",
                            server.task(), names_of(left));
        warning = Deadline::never();
      }
      std::this_thread::sleep_for(kLookEvery);
    }
    if (enter.defined()) session->run({}, {}, {enter});
    was_ready = true;
    for (const auto& hook : options.hooks) {
      if (hook.begin) hook.begin(*session);
    }
  }

  // Runs, and waits for tasks that are lost.
  std::vector<at::Tensor> run(const std::vector<Output>& fetches, const Session::Feeds& feeds) {
    std::optional<Deadline> deadline;
    while (true) {
      try {
        if (deadline) {
          prepare();
          detail::log_info("all tasks are there again: going on");
        }
        return session->run(fetches, feeds);
      } catch (const PeerLost& error) {
        if (!deadline) {
          deadline = Deadline::after(options.patience);
          detail::log_warning("{}; waiting for it to come back", error.what());
        }
        if (deadline->expired()) throw;
      } catch (const InvalidArgument&) {
        // A task that was lost and is back has no values any more.
        if (deadline || missing().empty()) throw;
        deadline = Deadline::after(options.patience);
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  // One that has died says nothing, and has no server any more.
  bool is_any_other_worker_there() const {
    const auto workers = static_cast<int>(server.cluster().jobs().at("worker").size());
    for (int task = 0; task < workers; ++task) {
      if (task == server.task()) continue;
      const std::string target = server.target("worker", task);
      try {
        const detail::RuntimeClient client(detail::address_of_target(target),
                                           detail::secret_for_client(target, options.session.secret),
                                           Deadline::after(kAnswer));
        return true;
      } catch (const PeerLost&) {
        continue;
      } catch (const DeadlineExceeded&) {
        return true;  // slow
      }
    }
    return false;
  }

  void wait_for_others() {
    const auto& jobs = server.cluster().jobs();
    const auto workers = static_cast<int64_t>(jobs.at("worker").size());
    const auto deadline = Deadline::after(kWaitForOthers);
    int64_t count = 0;
    while ((count = session->run({ended}).front().item<int64_t>()) < workers) {
      if (!is_any_other_worker_there()) return;
      if (deadline.expired()) {
        detail::log_warning("{} of {} workers have not said that they have ended: stopping without them",
                            workers - count, workers);
        return;
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  const Server& server;
  Graph& graph;
  const Options options;
  bool is_chief = false;
  bool was_ready = false;
  bool is_stopped = false;
  bool is_closed = false;
  int64_t step = 0;
  Node enter;  // takes the first token of a replica, where the step needs them
  Output ended;
  Output more_ended;
  std::vector<Output> variables;
  std::vector<Output> have_values;
  std::optional<Session> session;
};

MonitoredSession::MonitoredSession(const Server& server, Graph& graph, const Options& options)
    : state_(std::make_unique<State>(server, graph, options)) {}

MonitoredSession::~MonitoredSession() {
  try {
    close();
  } catch (const std::exception& error) {
    detail::log_warning("a session has ended, and could not say so: {}", error.what());
  }
}

bool MonitoredSession::is_chief() const {
  return state_->is_chief;
}

bool MonitoredSession::should_stop() const {
  return state_->is_stopped || (state_->options.last_step > 0 && state_->step >= state_->options.last_step);
}

int64_t MonitoredSession::step() const {
  return state_->step;
}

void MonitoredSession::stop() {
  state_->is_stopped = true;
}

Session& MonitoredSession::session() {
  return *state_->session;
}

std::vector<at::Tensor> MonitoredSession::run(const std::vector<Output>& fetches,
                                              const Session::Feeds& feeds) {
  std::vector<Output> all = fetches;
  all.push_back(state_->options.step);
  auto results = state_->run(all, feeds);
  state_->step = results.back().item<int64_t>();
  results.pop_back();
  for (const auto& hook : state_->options.hooks) {
    if (hook.after_run) hook.after_run(state_->step, results);
  }
  return results;
}

void MonitoredSession::close() {
  if (std::exchange(state_->is_closed, true)) return;
  for (const auto& hook : state_->options.hooks) {
    if (hook.end) hook.end(*state_->session, state_->step);
  }
  state_->session->run({}, {}, {state_->more_ended});
  const auto& jobs = state_->server.cluster().jobs();
  if (!state_->is_chief || !state_->options.stop_servers || !jobs.contains("ps")) return;
  state_->wait_for_others();
  const std::string secret = state_->options.session.secret;
  for (int task = 0; task < static_cast<int>(jobs.at("ps").size()); ++task)
    Server::stop(state_->server.target("ps", task), {.secret = secret});
}

}  // namespace muster
