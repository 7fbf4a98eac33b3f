#include "muster/train/job.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/net/host.h"
#include "muster/net/interface.h"

namespace muster {
namespace {

constexpr auto kLastWords = std::chrono::seconds(2);
constexpr auto kOwnFindings = std::chrono::milliseconds(200);

Deadline deadline_of(std::optional<std::chrono::milliseconds> limit) {
  return limit ? Deadline::after(*limit) : Deadline::never();
}

// Under launchers that know of no secret, the job's id keeps accidents apart, but not intruders.
std::string secret_of(const Config& config, const Identity& identity) {
  return config.secret.empty() ? "without a secret: " + identity.job_id : config.secret;
}

std::string server_key(int server) {
  return fmt::format("muster/server/{}", server);
}

}  // namespace

Job::Job(Config config) : config_(std::move(config)), identity_(find_identity(config_)) {
  set_log_level(config_.log_level);
  set_log_task(identity_.task.short_name());
  log_debug("started by {}; settings:\n{}", identity_.launcher, config_.to_string());
  if (identity_.alone()) {
    const Host host = Host::local();
    tasks_ = {{.task = identity_.task,
               .address = "",
               .host_name = host.name,
               .host_identity = host.identity,
               .pid = getpid()}};
    return;
  }
  if (identity_.hosts_coordinator) host_coordinator();
  join();
}

Job::~Job() {
  drop_communicator();
  member_.reset();
  // The reason of an abort must reach the others before we go.
  if (coordinator_) coordinator_->wait_idle(Deadline::after(kLastWords));
}

void Job::drop_communicator() {
  std::unique_ptr<Communicator> going;
  {
    const MutexLock lock(mutex_);
    going = std::move(communicator_);
  }
}

void Job::host_coordinator() {
  std::vector<Address> listen = identity_.coordinator;
  for (auto& address : listen) {
    // A name may resolve to a loopback address on its own host, where nobody else would find us.
    if (!is_loopback(address.host)) address.host = "::";
  }
  if (config_.secret.empty() && !is_loopback(identity_.coordinator.front().host)) {
    log_warning(
        "the job has no secret: whoever can reach this host can join it. Set MUSTER_SECRET to the same text "
        "for every task");
  }
  coordinator_ = std::make_unique<Coordinator>(Coordinator::Options{
      .listen = listen,
      .job_id = identity_.job_id,
      .secret = secret_of(config_, identity_),
      .tasks = identity_.tasks,
      .heartbeat_timeout = config_.heartbeat_timeout,
      .loss_policy = config_.strategy.starts_with("ps-") ? LossPolicy::kGoOn : LossPolicy::kAbort});
}

void Job::join() {
  const auto deadline = Deadline::after(config_.join_timeout);
  auto coordinator = identity_.coordinator;
  if (coordinator_)
    coordinator = {{is_loopback(coordinator.front().host) ? coordinator.front().host : "127.0.0.1",
                    coordinator_->address().port}};
  std::string address;
  if (!identity_.cluster.empty() && !identity_.is_observer()) {
    address = identity_.cluster.address(identity_.task).to_string();
  } else {
    const std::string host = config_.interface.empty()
                                 ? address_towards(identity_.coordinator.front())
                                 : choose_interface(list_interfaces(), config_.interface).address;
    port_.emplace(host);
    address = Address{host, port_->port()}.to_string();
  }
  member_ = std::make_unique<Member>(
      Member::Options{.coordinator = coordinator,
                      .job_id = identity_.job_id,
                      .secret = secret_of(config_, identity_),
                      .task = identity_.task,
                      .tasks = identity_.tasks,
                      .address = address,
                      .observer = identity_.is_observer(),
                      .incarnation = config_.restart_count,
                      .on_failure = [this](const std::string& reason) { on_membership_lost(reason); },
                      .on_lost = [this](const TaskInfo& task) { on_task_lost(task); }},
      deadline);
  tasks_ = member_->wait_assembled(deadline);
}

void Job::barrier(const std::string& name, const std::string& job,
                  std::optional<std::chrono::milliseconds> limit) {
  if (member_) member_->barrier(name, deadline_of(limit), job);
}

void Job::put(const std::string& key, const std::string& value) {
  if (member_) {
    member_->put(key, value, Deadline::never());
  } else {
    values_[key] = value;
  }
}

std::string Job::get(const std::string& key, std::optional<std::chrono::milliseconds> limit) {
  if (member_) return member_->get(key, deadline_of(limit));
  const auto found = values_.find(key);
  if (found == values_.end())
    raise<DeadlineExceeded>("nobody put the key '{}', and in a job of one task nobody else will", key);
  return found->second;
}

void Job::wait_for_workers() {
  if (member_) member_->wait_finished(Deadline::never());
}

std::vector<std::string> Job::gather(const std::string& name, const std::string& value) {
  return member_ ? member_->gather(name, value, Deadline::never(), "worker") : std::vector{value};
}

std::shared_ptr<Endpoint> Job::endpoint() {
  if (!endpoint_) endpoint_ = std::make_shared<Endpoint>(data_port());
  return endpoint_;
}

void Job::announce_server() {
  put(server_key(worker()), fmt::format("{}\n{}\n{}", endpoint()->address().to_string(),
                                        endpoint()->local_name(), Host::local().identity));
}

ServerAddress Job::find_server(int server, Deadline deadline) {
  if (!member_) raise<InvalidArgument>("a program alone has no parameter servers: start it with muster run");
  const auto words = split(member_->get(server_key(server), deadline), '\n');
  MUSTER_CHECK(words.size() == 3);
  const bool here = config_.shared_memory && words[2] == Host::local().identity;
  return {Address::parse(words[0]), here ? words[1] : ""};
}

TableClient& Job::tables() {
  if (tables_) return *tables_;
  if (servers() == 0)
    throw InvalidArgument("embedding tables need parameter servers: muster run --ps 1, or more");
  std::vector<ServerAddress> addresses;
  const auto deadline = Deadline::after(config_.join_timeout);
  for (int i = 0; i < servers(); ++i) addresses.push_back(find_server(i, deadline));
  tables_ = std::make_unique<TableClient>(TableClientOptions{.endpoint = endpoint(),
                                                             .servers = std::move(addresses),
                                                             .job_id = id(),
                                                             .worker = worker(),
                                                             .incarnation = config_.restart_count,
                                                             .server_wait = config_.server_wait,
                                                             .check = [this] { check(); }});
  return *tables_;
}

void Job::on_lost(std::function<void(const TaskInfo& task)> callback) {
  const MutexLock lock(mutex_);
  on_lost_ = std::move(callback);
  for (const auto& task : lost_) {
    if (on_lost_) on_lost_(task);
  }
}

void Job::on_task_lost(const TaskInfo& task) {
  const MutexLock lock(mutex_);
  lost_.push_back(task);
  if (on_lost_) on_lost_(task);
}

void Job::check() {
  const MutexLock lock(mutex_);
  if (ended_) throw Aborted(*ended_);
}

int64_t Job::global_steps(int64_t batches_of_a_worker) const {
  const bool arrivals =
      config_.strategy == "ps-async" || (config_.strategy == "ps-ssp" && config_.staleness > 0);
  if (arrivals) return batches_of_a_worker * workers();
  if (config_.strategy == "ps-sync" && config_.replicas_to_aggregate > 0)
    return std::max<int64_t>(1, batches_of_a_worker * workers() / config_.replicas_to_aggregate);
  return batches_of_a_worker;
}

Endpoint::Options Job::data_port() const {
  Endpoint::Options options = {.host = "127.0.0.1", .port = 0, .secret = secret_of(config_, identity_)};
  options.tls = {config_.tls_cert, config_.tls_key, config_.tls_ca};
  for (const auto& task : tasks_) {
    if (task.task != identity_.task || task.address.empty()) continue;
    const Address address = Address::parse(task.address);
    options.host = address.host;
    options.port = address.port;
    // Where nobody gave the coordinator an address of its own, it has the chief's.
    if (coordinator_ && coordinator_->address().port == options.port) options.port = 0;
  }
  return options;
}

Communicator& Job::communicator() {
  {
    const MutexLock lock(mutex_);
    if (communicator_) return *communicator_;
  }
  if (identity_.task.job != "worker")
    raise<InvalidArgument>("{} is not a worker: only workers are in the communicator",
                           identity_.task.to_string());
  Communicator::Options options = {.rank = 0,
                                   .size = workers(),
                                   .name = "workers",
                                   .engine = config_.engine,
                                   .algorithm = parse_algorithm(config_.algorithm),
                                   .shared_memory = config_.shared_memory,
                                   .sockets = config_.sockets,
                                   .timeout = config_.collective_timeout,
                                   .stall_warning = config_.stall_warning,
                                   .meet_timeout = config_.join_timeout};
  if (config_.wire != "same") options.wire = parse_dtype(config_.wire);
  if (member_) {
    for (const auto& task : tasks_) {
      if (task.task == identity_.task) break;
      options.rank += task.task.job == "worker" ? 1 : 0;
    }
    options.exchange = [this](const std::string& mine, Deadline deadline) {
      return member_->gather("muster/workers meet", mine, deadline, "worker");
    };
    options.endpoint = endpoint();
  }
  auto made = std::make_unique<Communicator>(std::move(options));
  const MutexLock lock(mutex_);
  communicator_ = std::move(made);
  if (ended_) communicator_->abort(*ended_);
  return *communicator_;
}

// Whoever waits for others in the communicator may not learn of it otherwise. A rank that died it finds by
// itself, with what it was doing, though the coordinator may be a moment quicker.
void Job::on_membership_lost(const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    ended_ = reason;
    if (!communicator_) return;
  }
  std::this_thread::sleep_for(kOwnFindings);
  const MutexLock lock(mutex_);
  if (communicator_) communicator_->abort(reason);
}

void Job::abort(const std::string& reason) {
  if (member_) member_->abort(reason);
}

void Job::finish() {
  drop_communicator();
  if (!member_) return;
  member_->leave(Deadline::after(config_.heartbeat_timeout));
  if (!coordinator_) return;
  coordinator_->wait_idle(Deadline::never());
  if (const auto aborted = coordinator_->aborted()) throw Aborted("the job was aborted: " + aborted->reason);
}

}  // namespace muster
