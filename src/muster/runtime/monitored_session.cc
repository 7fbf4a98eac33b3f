#include "muster/monitored_session.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
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
#include "muster/optim/rule_text.h"
#include "muster/runtime/replica_functions.h"
#include "muster/runtime/runtime_stream.h"
#include "muster/runtime/server_secret.h"
#include "muster/runtime/stall_warning.h"

namespace muster {

namespace {

constexpr const char* kGlobalStep = "global_step";
constexpr const char* kEnded = "muster/ended_workers";
constexpr auto kLookEvery = std::chrono::milliseconds(50);
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
          "a MonitoredSession needs Options::step: what count_step() or minimize_synchronously() gave");
    enter = detail::node_that_enters(options.step);
    is_chief = server.job() == "worker" && server.task() == 0;
    hooks = options.hooks;
    if (is_chief) hooks.insert(hooks.end(), options.chief_hooks.begin(), options.chief_hooks.end());
    refuse_variables_without_a_job();
    const bool has_servers = server.cluster().jobs().contains("ps");
    const auto device = graph.with_device(has_servers ? "/job:ps/task:0" : "/job:worker/task:0");
    ended = counter(graph, kEnded, std::source_location::current());
    more_ended = graph.assign_add(ended, graph.constant(at::ones({}, at::TensorOptions(at::kLong))));
    variables = graph.variables();
    for (const auto& variable : variables) have_values.push_back(graph.is_initialized(variable));
    make_marks();
    if (is_chief && options.restore) make_restoring();
    if (enter.defined()) {
      enter_targets = on_all_tasks_after(enter);
      enter_targets.push_back(enter);
      step_targets = on_all_tasks_after(options.step);
    }
    auto session_options = options.session;
    if (session_options.wait_for_tasks.count() == 0) session_options.wait_for_tasks = options.patience;
    session.emplace(server.target(), graph, session_options);
    with_patience([] { return std::vector<at::Tensor>(); });
  }

  // A variable of this worker's own on each task that has variables: where it is lost, so are the others.
  void make_marks() {
    std::set<std::string> devices;
    for (const auto& variable : variables) {
      const std::string& place = variable.node().device();
      if (!devices.insert(place).second) continue;
      const auto device = graph.with_device(place);
      const at::Tensor yes = at::ones({}, at::TensorOptions(at::kBool));
      const Output mark =
          graph.variable(fmt::format("muster/{}_{}_was_here/{}", server.job(), server.task(), marks.size()),
                         yes, /*trainable=*/false);
      mark_all.emplace_back(graph.assign(mark, graph.constant(yes)));
      have_marks.push_back(graph.is_initialized(mark));
      marks.push_back(mark);
    }
  }

  // What gives each variable a value of a checkpoint.
  void make_restoring() {
    for (const auto& variable : variables) {
      const std::string& name = variable.node().name();
      if (name.starts_with("muster/") || !variable.dtype()) continue;
      const Output value = graph.placeholder("muster/restored/" + name, *variable.dtype(), variable.shape());
      const Node assign(graph.assign(variable, value));
      restoring.emplace(name, Restoring{.value = value, .assign = assign});
    }
  }

  // A node on each task that has variables, which runs after another one. A run that waits for other replicas
  // has done its work on most tasks, and would not hear that one of them is lost: the chief would wait for a
  // replica that waits for the chief to give lost variables values.
  std::vector<Node> on_all_tasks_after(const Node& node) {
    const auto after = graph.control_dependencies({node});
    std::vector<Node> nodes;
    for (const auto& mark : marks) nodes.emplace_back(graph.is_initialized(mark));
    return nodes;
  }

  // Each worker would have its own, on the task that its session is connected to.
  void refuse_variables_without_a_job() const {
    const auto workers = server.cluster().jobs().find("worker");
    if (workers == server.cluster().jobs().end() || workers->second.size() < 2) return;
    for (const auto& variable : graph.variables()) {
      if (!detail::TaskName::parse(variable.node().device()).job)
        detail::raise<InvalidArgument>(
            "the variable '{}' (made at {}) is placed nowhere, so that each worker would have one of its "
            "own: make it under graph.with_device(muster::replica_device_setter(...))",
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

  // Whether a task was lost since all was prepared, as far as one can see. The chief may have given values to
  // its variables already; nobody but this worker gives one to a mark.
  bool is_any_lost() {
    if (!was_ready) return false;
    try {
      const auto found = session->run(have_marks);
      return std::any_of(found.begin(), found.end(), [](const at::Tensor& has) { return !has.item<bool>(); });
    } catch (const PeerLost&) {
      return true;
    }
  }

  // Whether there was a checkpoint.
  bool restore() {
    const auto values = options.restore();
    if (!values) return false;
    Session::Feeds feeds;
    std::vector<Node> targets;
    std::vector<std::string> unknown;
    for (const auto& [name, value] : *values) {
      const auto found = restoring.find(name);
      if (found == restoring.end()) {
        unknown.push_back("'" + name + "'");
        continue;
      }
      feeds.emplace_back(found->second.value, value);
      targets.push_back(found->second.assign);
    }
    if (!unknown.empty())
      detail::log_warning("Options::restore gives values for {}, which the graph does not have",
                          fmt::join(unknown, ", "));
    session->run({}, feeds, targets);
    warn_of_states();
    return true;
  }

  // What optimizers remember is no variable.
  void warn_of_states() {
    if (std::exchange(has_warned_of_states, true)) return;
    for (const auto& node : graph.data().nodes) {
      const auto kind = node.op->kind();
      if (kind != detail::OperatorKind::kUpdate && kind != detail::OperatorKind::kCarryOut) continue;
      const std::string& rule = node.arguments[2].value().toStringRef();
      if (detail::parse_rule(rule)->states() == 0) continue;
      detail::log_warning(
          "Options::restore gives variables their values, and not what the optimizer remembers of them ({}): "
          "that begins anew",
          rule);
      return;
    }
  }

  // The chief's. What a checkpoint does not have is missing after two restores: after one, a task may have
  // been lost again.
  void give_values(std::vector<size_t> left) {
    bool was_restored = false;
    if (options.restore) {
      std::vector<size_t> before;
      do {
        before = left;
        was_restored = restore();
        left = missing();
      } while (was_restored && !left.empty() && left != before);
    }
    if (left.empty()) return;
    std::vector<size_t> told = left;
    std::erase_if(told, [this](size_t i) { return variables[i].node().name().starts_with("muster/"); });
    if ((was_ready || was_restored) && !told.empty())
      detail::log_warning("the variables {} are initialised anew: {}no checkpoint has them", names_of(told),
                          was_ready ? "they were lost with their task, and " : "");
    std::vector<Node> targets;
    for (const size_t i : left) targets.emplace_back(graph.data().initializers[i]);
    session->run({}, {}, targets);
  }

  // The chief gives values to variables that have none; the others wait for it.
  void prepare(Deadline deadline) {
    session->run({}, {}, mark_all);
    detail::StallWarning warning(stall_warning);
    std::vector<size_t> left;
    while (!(left = missing()).empty()) {
      if (deadline.expired())
        detail::raise<DeadlineExceeded>("the chief, worker/0, did not give values to the variables {} in {}",
                                        names_of(left), format_seconds(options.patience));
      if (is_chief) {
        give_values(std::move(left));
        continue;
      }
      if (warning.is_due())
        detail::log_warning("worker/{} waits for the chief, worker/0, to initialise the variables {}",
                            server.task(), names_of(left));
      std::this_thread::sleep_for(kLookEvery);
    }
    if (enter.defined()) session->run({}, {}, enter_targets);
    step = session->run({global_step(graph)}).front().item<int64_t>();
    was_ready = true;
    for (const auto& hook : hooks) {
      if (hook.begin) hook.begin(*session);
    }
  }

  // Does it when all is prepared; and again, when tasks that were lost are back, however often that is, until
  // the patience has passed since the first of them was lost.
  std::vector<at::Tensor> with_patience(const std::function<std::vector<at::Tensor>()>& work) {
    bool is_ready = was_ready;
    std::optional<Deadline> deadline;
    std::string said;
    const auto may_wait = [&](const Error& loss, const char* for_what) {
      is_ready = false;
      if (!deadline) deadline = Deadline::after(options.patience);
      if (std::exchange(said, loss.what()) != loss.what())
        detail::log_warning("{}; waiting for {}", loss.what(), for_what);
      return !deadline->expired();
    };
    while (true) {
      try {
        if (!is_ready) {
          prepare(deadline.value_or(Deadline::after(options.patience)));
          if (deadline) detail::log_info("all tasks are there again: going on");
        }
        return work();
      } catch (const PeerLost& error) {
        if (!may_wait(error, "it to come back")) throw;
      } catch (const InvalidArgument& error) {
        // A task that was lost and is back has no values any more.
        if (!is_any_lost() || !may_wait(error, "values: a task was started again")) throw;
      }
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  // What a hook does after a run may meet the loss of a task, too. Variables have other values then, and it is
  // for the hook to begin anew: it is not called again for this step.
  void call_once(const std::function<void()>& hook) {
    bool was_called = false;
    with_patience([&] {
      if (!std::exchange(was_called, true)) hook();
      return std::vector<at::Tensor>();
    });
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

  // Each worker counts itself once, and a cluster may have trained before.
  void wait_for_others() {
    const auto workers = static_cast<int64_t>(server.cluster().jobs().at("worker").size());
    const auto deadline = Deadline::after(options.patience);
    detail::StallWarning warning(stall_warning);
    while (true) {
      const int64_t ended_now = session->run({ended}).front().item<int64_t>() % workers;
      if (ended_now == 0 || !is_any_other_worker_there()) return;
      if (deadline.expired()) {
        detail::log_warning("{} of {} workers have not said that they have ended: stopping without them",
                            workers - ended_now, workers);
        return;
      }
      if (warning.is_due())
        detail::log_warning("worker/0 has ended, and waits for {} of {} workers before it stops the servers",
                            workers - ended_now, workers);
      std::this_thread::sleep_for(kLookEvery);
    }
  }

  void stop_all_servers() {
    const auto servers = static_cast<int>(server.cluster().jobs().at("ps").size());
    for (int task = 0; task < servers; ++task) {
      try {
        Server::stop(server.target("ps", task), {.secret = options.session.secret});
      } catch (const PeerLost&) {
        // It has gone by itself.
      } catch (const Error& error) {
        detail::log_warning("ps/{} could not be stopped: {}", task, error.what());
      }
    }
  }

  const Server& server;
  Graph& graph;
  const Options options;
  std::vector<SessionHook> hooks;
  const std::chrono::milliseconds stall_warning = detail::stall_warning_of_job();
  bool is_chief = false;
  bool was_ready = false;
  bool is_stopped = false;
  bool is_closed = false;
  bool has_warned_of_states = false;
  int64_t step = 0;
  Node enter;  // takes the first token of a replica, where the step needs them
  std::vector<Node> enter_targets;
  std::vector<Node> step_targets;  // of each run
  Output ended;
  Output more_ended;
  std::vector<Output> variables;
  std::vector<Output> have_values;
  std::vector<Output> marks;
  std::vector<Node> mark_all;
  std::vector<Output> have_marks;
  struct Restoring {
    Output value;
    Node assign;
  };
  std::map<std::string, Restoring> restoring;  // by the names of variables
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
  std::vector<size_t> ends;  // of what each hook asks for
  for (const auto& hook : state_->hooks) {
    if (hook.before_run) {
      const auto asked = hook.before_run(state_->step);
      all.insert(all.end(), asked.begin(), asked.end());
    }
    ends.push_back(all.size());
  }
  all.push_back(state_->options.step);
  std::vector<const SessionHook*> noting;
  for (const auto& hook : state_->hooks) {
    if (hook.wants_timeline && hook.wants_timeline(state_->step)) noting.push_back(&hook);
  }
  Timeline timeline;
  auto results = state_->with_patience([&] {
    return state_->session->run(all, feeds, state_->step_targets, noting.empty() ? nullptr : &timeline);
  });
  const auto step = results.back().item<int64_t>();
  state_->step = step;
  for (const auto* hook : noting) {
    if (hook->timeline) hook->timeline(step, timeline);
  }
  const auto at = [&results](size_t i) { return results.begin() + static_cast<std::ptrdiff_t>(i); };
  const std::vector<at::Tensor> fetched(results.begin(), at(fetches.size()));
  size_t begin = fetches.size();
  for (size_t i = 0; i < ends.size(); ++i) {
    std::vector<at::Tensor> given = fetched;
    given.insert(given.end(), at(begin), at(ends[i]));
    begin = ends[i];
    const auto& hook = state_->hooks[i];
    if (hook.after_run) state_->call_once([&] { hook.after_run(step, given); });
  }
  return fetched;
}

std::vector<at::Tensor> MonitoredSession::evaluate(const std::vector<Output>& fetches,
                                                   const Session::Feeds& feeds) {
  return state_->with_patience([&] { return state_->session->run(fetches, feeds); });
}

void MonitoredSession::close() {
  if (std::exchange(state_->is_closed, true)) return;
  // Whatever fails, the servers are stopped: nobody else does.
  std::exception_ptr failure;
  const auto attempt = [&failure](const std::function<void()>& part) {
    try {
      part();
    } catch (const std::exception& error) {
      if (failure) detail::log_warning("when a session ended: {}", error.what());
      if (!failure) failure = std::current_exception();
    }
  };
  for (const auto& hook : state_->hooks) {
    if (hook.end) attempt([&] { hook.end(*state_->session, state_->step); });
  }
  attempt([&] { state_->session->run({}, {}, {state_->more_ended}); });
  if (state_->is_chief && state_->options.stop_servers && state_->server.cluster().jobs().contains("ps")) {
    attempt([&] { state_->wait_for_others(); });
    state_->stop_all_servers();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace muster
