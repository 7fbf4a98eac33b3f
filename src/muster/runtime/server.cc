#include "muster/server.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "muster/base/config.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/base/random.h"
#include "muster/cluster/cluster_spec.h"
#include "muster/cluster/identity.h"
#include "muster/net/reserved_port.h"
#include "muster/runtime/master.h"
#include "muster/runtime/runtime_stream.h"
#include "muster/runtime/server_secret.h"
#include "muster/runtime/step_status.h"
#include "muster/runtime/worker.h"

namespace muster {

namespace {

detail::ClusterSpec checked(const ClusterSpec::Jobs& jobs) {
  std::map<std::string, detail::ClusterSpec::Tasks> addresses;
  for (const auto& [job, tasks] : jobs) {
    for (size_t i = 0; i < tasks.size(); ++i)
      addresses[job].emplace(static_cast<int>(i), detail::Address::parse(tasks[i]));
  }
  return detail::ClusterSpec(std::move(addresses));
}

Server::Options with_secret(Server::Options options) {
  options.secret = detail::secret_for_server(options.secret);
  return options;
}

}  // namespace

ClusterSpec::ClusterSpec(const Jobs& jobs) : jobs_(jobs) {
  static_cast<void>(checked(jobs));
}

ClusterSpec ClusterSpec::parse(std::string_view text) {
  Jobs jobs;
  const auto spec = detail::ClusterSpec::parse(text);
  for (const auto& [job, tasks] : spec.jobs()) {
    for (const auto& [index, address] : tasks) {
      if (index != static_cast<int>(jobs[job].size()))
        detail::raise<InvalidArgument>("the job '{}' has no task {}: a cluster of servers has no gaps", job,
                                       jobs[job].size());
      jobs[job].push_back(address.to_string());
    }
  }
  return ClusterSpec(jobs);
}

struct Server::State {
  State(ClusterSpec known_cluster, const detail::TaskName& name, Options options)
      : cluster(std::move(known_cluster)), task(name), secret(std::move(options.secret)) {
    const detail::ClusterSpec spec = checked(cluster.jobs());
    const detail::Address& address = spec.address(task);
    const auto tasks = spec.tasks();
    const auto number = std::find(tasks.begin(), tasks.end(), task) - tasks.begin();
    worker.emplace(detail::Worker::Options{.task = task,
                                           .number = static_cast<uint32_t>(number),
                                           .host = address.host,
                                           .secret = secret,
                                           .shares_memory = options.shared_memory,
                                           .memory_limit = options.memory_limit});
    streams.emplace(
        detail::RuntimeStreams::Options{
            .address = address, .secret = secret, .self = worker->self(), .silence = options.client_silence},
        detail::RuntimeStreams::Handler{
            .requested = [this](uint64_t stream,
                                const runtime::Request& request) { handle(stream, request); },
            .ended =
                [this](uint64_t stream) {
                  wait_until_ready();
                  master->end(stream);
                  worker->end_session(stream);
                  leave(stream);
                }});
    target = fmt::format("grpc://{}", streams->address().to_string());
    master.emplace(detail::Master::Options{
        .cluster = spec, .self = task, .secret = secret, .streams = &*streams, .worker = &*worker});
    {
      const detail::MutexLock lock(mutex);
      is_ready = true;
      changed.notify_all();
    }
    detail::remember_secret(target, secret);
  }

  ~State() {
    detail::forget_secret(target);
    stop();
    streams->shutdown();
    master->stop();
    worker->stop();
    threads.stop();
  }

  void wait_until_ready() {
    detail::MutexLock lock(mutex);
    while (!is_ready) changed.wait(lock);
  }

  void handle(uint64_t stream, const runtime::Request& request) {
    wait_until_ready();
    enter(stream);
    if (request.has_register_()) {
      worker->expect_part(stream, request.register_().transfer());
      threads.run([this, stream, request] { add_part(stream, request); });
    } else if (request.has_stop()) {
      runtime::Reply reply;
      reply.set_id(request.id());
      streams->reply(stream, reply);
      stop();
    } else {
      master->handle(stream, request);
    }
  }

  void add_part(uint64_t stream, const runtime::Request& request) {
    runtime::Reply reply;
    reply.set_id(request.id());
    try {
      worker->add_part(stream, request.register_(), Deadline::after(std::chrono::minutes(10)));
    } catch (const std::exception& error) {
      const auto status = detail::StepStatus::of(error);
      reply.set_code(static_cast<uint32_t>(status.code));
      reply.set_message(status.text);
    }
    streams->reply(stream, reply);
  }

  void stop() {
    const detail::MutexLock lock(mutex);
    is_stopped = true;
    changed.notify_all();
  }

  void enter(uint64_t stream) {
    const detail::MutexLock lock(mutex);
    clients.insert(stream);
  }

  void leave(uint64_t stream) {
    const detail::MutexLock lock(mutex);
    clients.erase(stream);
    alone_since = std::chrono::steady_clock::now();
    changed.notify_all();
  }

  // Within a job that a launcher has started, a client that ends without a word of it leaves servers waiting.
  void join() {
    detail::MutexLock lock(mutex);
    while (!is_stopped) {
      if (stall_warning.count() == 0 || !alone_since) {
        changed.wait(lock);
      } else if (!clients.empty() || std::chrono::steady_clock::now() < *alone_since + stall_warning) {
        changed.wait_until(lock, Deadline::after(stall_warning).time_point());
      } else {
        detail::log_warning(
            "{}: all clients have gone since {}, and this server waits until it is stopped: the last client "
            "may do so by Server::stop(), as a MonitoredSession does at its last step",
            task.to_string(), format_seconds(stall_warning));
        stall_warning = {};
      }
    }
  }

  const ClusterSpec cluster;
  const detail::TaskName task;
  const std::string secret;
  detail::Mutex mutex;
  detail::ConditionVariable changed;
  bool is_ready MUSTER_GUARDED_BY(mutex) = false;
  bool is_stopped MUSTER_GUARDED_BY(mutex) = false;
  std::set<uint64_t> clients MUSTER_GUARDED_BY(mutex);  // and masters, by their streams
  std::optional<std::chrono::steady_clock::time_point> alone_since MUSTER_GUARDED_BY(mutex);
  std::chrono::milliseconds stall_warning MUSTER_GUARDED_BY(mutex){
      0};              // after which join() says so; 0: never
  std::string target;  // constant after construction, as those below
  std::optional<detail::Worker> worker;
  std::optional<detail::RuntimeStreams> streams;
  std::optional<detail::Master> master;
  detail::WorkThreads threads;
};

Server::Server(const ClusterSpec& cluster, const std::string& job, int task, Options options)
    : Server(std::make_unique<State>(cluster, detail::TaskName::of(job, task), with_secret(options))) {}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() = default;
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;

Server Server::create_local() {
  const detail::ReservedPort port("127.0.0.1");
  return Server(std::make_unique<State>(ClusterSpec{{"local", {fmt::format("127.0.0.1:{}", port.port())}}},
                                        detail::TaskName::of("local", 0),
                                        Options{.secret = detail::random_token()}));
}

Server Server::of_environment(Options options) {
  detail::Config config;
  config.read_environment(detail::Environment::of_process());
  if (!config.tls_cert.empty())
    throw InvalidArgument(
        "what sessions and servers of graphs send is not encrypted, whatever --tls-cert says: leave "
        "--tls-cert, "
        "--tls-key and --tls-ca out, and use a network that you trust, or a tunnel");
  options.shared_memory = options.shared_memory && config.shared_memory;
  const detail::Identity identity = detail::find_identity(config);
  if (identity.cluster.empty())
    throw InvalidArgument(
        "nobody says which task of which cluster this process is: start it with `muster run`, or set "
        "TF_CONFIG, or MUSTER_CLUSTER and MUSTER_TASK; to `muster server` also --cluster, --job and --task "
        "say it");
  Server server(ClusterSpec::parse(identity.cluster.to_json()), *identity.task.job, *identity.task.task,
                options);
  const detail::MutexLock lock(server.state_->mutex);
  server.state_->stall_warning = config.stall_warning;
  return server;
}

const ClusterSpec& Server::cluster() const {
  return state_->cluster;
}

const std::string& Server::job() const {
  return *state_->task.job;
}

int Server::task() const {
  return *state_->task.task;
}

std::string Server::target(const std::string& job, int task) const {
  const auto found = state_->cluster.jobs().find(job);
  if (found == state_->cluster.jobs().end() || task < 0 || task >= static_cast<int>(found->second.size()))
    detail::raise<InvalidArgument>("the cluster has no task {} of a job '{}'", task, job);
  return fmt::format("grpc://{}", found->second[static_cast<size_t>(task)]);
}

const std::string& Server::target() const {
  return state_->target;
}

void Server::join() {
  state_->join();
}

void Server::stop() {
  state_->stop();
}

void Server::stop(const std::string& target, Options options) {
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  detail::RuntimeClient client(detail::address_of_target(target),
                               detail::secret_for_client(target, options.secret), deadline);
  runtime::Request request;
  request.mutable_stop();
  try {
    client.wait(client.send(std::move(request)), deadline);
  } catch (const PeerLost&) {
    // It has stopped before its answer went out.
  }
}

}  // namespace muster
