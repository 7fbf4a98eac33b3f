#include "muster/job/job_context.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/text.h"
#include "muster/collective/communicator_options.h"
#include "muster/net/host.h"
#include "muster/net/interface.h"

namespace muster::detail {
namespace {

// How long the chief stays for the others to hear why the job has ended; one that was stopped never does.
constexpr auto kLastWords = std::chrono::seconds(5);
constexpr size_t kPiece = size_t{16} << 20;         // Of a long value.
constexpr size_t kLargestValue = size_t{32} << 20;  // Half of what the coordinator takes in one message.

Deadline deadline_of(std::optional<std::chrono::milliseconds> limit) {
  return limit ? Deadline::after(*limit) : Deadline::never();
}

// Under launchers that know of no secret, the job's id keeps accidents apart, but not intruders.
std::string secret_of(const Config& config, const Identity& identity) {
  return config.secret.empty() ? "without a secret: " + identity.job_id : config.secret;
}

void check_size(const std::string& name, size_t bytes) {
  if (bytes > kLargestValue)
    raise<InvalidArgument>("'{}' has {}, and all tasks can share at most {} at once: send it by a collective",
                           name, format_bytes(bytes), format_bytes(kLargestValue));
}

WaitLimit limit_of(const std::optional<std::chrono::milliseconds>& limit) {
  return limit ? WaitLimit::kChosen : WaitLimit::kNone;
}

std::string server_key(int server) {
  return fmt::format("muster/server/{}", server);
}

}  // namespace

// Whoever is in one uses the context.
class JobContext::Call {
 public:
  explicit Call(JobContext& job) : job_(job) {
    job_.check_process();
    const MutexLock lock(job_.mutex_);
    ++job_.calls_;
  }
  ~Call() {
    const MutexLock lock(job_.mutex_);
    if (--job_.calls_ == 0) job_.has_ended_.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  JobContext& job_;
};

namespace {

// Also where nothing will be encrypted by them, as in a job that makes no connections.
void check_tls_files(const Config& config) {
  for (const auto& [flag, path] : {std::pair{"--tls-cert", &config.tls_cert},
                                   {"--tls-key", &config.tls_key},
                                   {"--tls-ca", &config.tls_ca}}) {
    if (!path->empty() && access(path->c_str(), R_OK) != 0)
      raise<InvalidArgument>("{} {} can't be read: {}", flag, *path, describe_errno(errno));
  }
}

}  // namespace

JobContext::JobContext(Config config)
    : process_(getpid()), config_(std::move(config)), identity_(find_identity(config_)) {
  set_log_level(config_.log_level);
  // `muster run`, which tells its tasks all three, names the task in front of each line.
  const bool is_named = identity_.launcher == "Muster" && !config_.coordinator.empty();
  set_log_task(is_named ? "" : identity_.task.short_name());
  log_debug("started by {}; settings:\n{}", identity_.launcher, config_.to_string());
  check_settings(config_, identity_.tasks);
  check_tls_files(config_);
  if (identity_.alone()) {
    const Host host = Host::local();
    tasks_ = {{.task = identity_.task,
               .address = "",
               .host_name = host.name,
               .host_identity = host.identity,
               .pid = getpid()}};
  } else {
    if (identity_.hosts_coordinator) host_coordinator();
    waits_.set_doing_otherwise([this] { return last_collective(); });
    enter();
  }
  warn_about_settings();
}

void JobContext::warn_about_settings() const {
  if (!is_chief()) return;  // once a job
  if (identity_.alone()) {
    if (const auto flags = config_.without_effect_alone(); !flags.empty())
      log_warning(
          "this program runs alone: without other tasks, {} had no effect; `muster run --workers 2` starts "
          "two",
          fmt::join(flags, ", "));
    return;
  }
  const auto elsewhere = [this](const TaskInfo& task) {
    return task.host_identity != tasks_.front().host_identity;
  };
  if (std::any_of(tasks_.begin(), tasks_.end(), elsewhere)) return;
  for (const auto& sentence : config_.without_effect_on_one_host()) log_warning("{}", sentence);
}

JobContext::~JobContext() {
  drop_communicator();
  end_calls();
  member_.reset();
  // The reason of an abort must reach the others before we go.
  if (coordinator_) coordinator_->wait_idle(Deadline::after(kLastWords));
}

void JobContext::end_calls() {
  if (!member_) return;
  member_->close();
  MutexLock lock(mutex_);
  while (calls_ > 0) has_ended_.wait(lock);
}

bool JobContext::is_called() {
  const MutexLock lock(mutex_);
  return calls_ > 0;
}

bool JobContext::is_of_a_fork() const {
  return getpid() != process_;
}

void JobContext::check_process() const {
  if (!is_of_a_fork()) return;
  raise<InvalidArgument>(
      "this process (pid {}) is a fork of {} (pid {}): it has none of that one's threads and connections, "
      "and can't train or wait for other tasks; let it exec another program, or do work of its own and end "
      "with _exit()",
      getpid(), identity_.task.short_name(), process_);
}

// Whoever aborts it waits in it no longer.
void JobContext::drop_communicator() {
  std::shared_ptr<Communicator> going;
  std::optional<Member::Ended> ended;
  {
    const MutexLock lock(mutex_);
    going = std::move(communicator_);
    ended = ended_;
  }
  if (going && ended) going->abort(ended->reason);
}

void JobContext::host_coordinator() {
  std::vector<Address> listen = identity_.coordinator;
  for (auto& address : listen) {
    // A name may resolve to a loopback address on its own host, where nobody else would find us.
    if (!is_loopback(address.host)) address.host = "::";
  }
  if (config_.secret.empty() && !is_loopback(identity_.coordinator.front().host)) {
    log_warning(
        "the job has no secret: whoever can reach this host can enter it. Set MUSTER_SECRET to the same text "
        "for every task");
  }
  coordinator_ = std::make_unique<Coordinator>(Coordinator::Options{
      .listen = listen,
      .job_id = identity_.job_id,
      .secret = secret_of(config_, identity_),
      .tasks = identity_.tasks,
      .heartbeat_timeout = config_.heartbeat_timeout,
      .failure_policy = config_.uses_servers() ? FailurePolicy::kGoOn : FailurePolicy::kAbort,
      .stall_warning = config_.stall_warning,
      .wait_timeout = config_.collective_timeout});
}

void JobContext::enter() {
  if (!coordinator_ && identity_.is_chief()) {
    for (const auto& sentence : config_.without_effect_on_the_launcher()) log_warning("{}", sentence);
  }
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
                      .waits = &waits_,
                      .on_ended = [this](const Member::Ended& ended) { on_ended(ended); },
                      .on_task_failed = [this](const TaskInfo& task) { report_failed_task(task); }},
      deadline);
  try {
    tasks_ = member_->wait_assembled(deadline);
  } catch (const DeadlineExceeded&) {
    // The coordinator adds who is missing.
    member_->abort(fmt::format("not all tasks entered the job within {} (--join-timeout)",
                               format_seconds(config_.join_timeout)));
    try {
      tasks_ = member_->wait_assembled(Deadline::after(kLastWords));
    } catch (const Error& whole_reason) {
      throw DeadlineExceeded(whole_reason.what());
    }
  }
}

// Other workers must not wait for this one's gradients while it waits for them here. A program may go on
// after a wait that came to its limit, or in which a worker was lost.
template <typename Wait>
auto JobContext::wait_away(const Wait& wait) {
  if (!waits_.is_main() || models_.empty()) return wait(nullptr);
  const Member::Absence absence = {.away =
                                       [this] {
                                         for (auto* model : models_) model->away();
                                       },
                                   .back =
                                       [this] {
                                         for (auto* model : models_) model->back();
                                       }};
  const auto go_on = [this] {
    for (auto* model : models_) model->go_on();
  };
  try {
    auto result = wait(&absence);
    go_on();
    return result;
  } catch (const DeadlineExceeded&) {
    go_on();
    throw;
  } catch (const PeerLost&) {
    go_on();
    throw;
  }
}

void JobContext::barrier(const std::string& name, const std::string& job,
                         std::optional<std::chrono::milliseconds> limit) {
  if (!member_) return;
  const Call call(*this);
  ScopedWait wait(&waits_, [&] {
    return WaitFor{.what = fmt::format("barrier '{}'", name), .barrier = name, .limit = limit_of(limit)};
  });
  wait.show();
  wait_away([&](const Member::Absence* absence) {
    return member_->gather(name, "", deadline_of(limit), job, absence);
  });
}

void JobContext::put(const std::string& key, const std::string& value) {
  check_size(key, value.size());
  if (member_) {
    const Call call(*this);
    member_->put(key, value, Deadline::never());
  } else {
    values_[key] = value;
  }
}

std::string JobContext::get(const std::string& key, std::optional<std::chrono::milliseconds> limit,
                            const std::string& from) {
  if (member_) {
    const Call call(*this);
    ScopedWait wait(&waits_, [&] {
      return WaitFor{.what = fmt::format("get of '{}'", key),
                     .tasks = from.empty() ? std::vector<std::string>{} : std::vector{from},
                     .key = key,
                     .limit = limit_of(limit)};
    });
    wait.show();
    return wait_away(
        [&](const Member::Absence* absence) { return member_->get(key, deadline_of(limit), absence); });
  }
  const auto found = values_.find(key);
  if (found == values_.end())
    raise<DeadlineExceeded>("nobody put the key '{}', and in a job of one task nobody else will", key);
  return found->second;
}

// The size goes last: whoever finds it finds all pieces.
void JobContext::put_long(const std::string& key, const std::string& value) {
  for (size_t at = 0; at < value.size(); at += kPiece)
    put(fmt::format("{}/{}", key, at), value.substr(at, kPiece));
  put(key + "/size", std::to_string(value.size()));
}

std::string JobContext::get_long(const std::string& key, std::optional<std::chrono::milliseconds> limit,
                                 const std::string& from) {
  const auto size = static_cast<size_t>(*parse_integer(get(key + "/size", limit, from)));
  std::string value;
  for (size_t at = 0; at < size; at += kPiece) value += get(fmt::format("{}/{}", key, at));
  return value;
}

// Whoever serves waits for nothing else, whichever thread calls this.
void JobContext::wait_for_workers() {
  if (!member_) return;
  const Call call(*this);
  ScopedWait wait(&waits_, [this] {
    return WaitFor{.what = "the end of the workers", .tasks = worker_names(), .limit = WaitLimit::kForever};
  });
  wait.set_main();
  wait.show();
  member_->wait_finished(Deadline::never());
}

std::vector<std::string> JobContext::worker_names() const {
  std::vector<std::string> names;
  for (const auto& task : tasks_) {
    if (task.task.job == "worker") names.push_back(task.task.short_name());
  }
  return names;
}

std::vector<std::string> JobContext::gather(const std::string& name, const std::string& value) {
  check_size(name, value.size() * static_cast<size_t>(workers()));
  if (!member_) return {value};
  const Call call(*this);
  ScopedWait wait(&waits_,
                  [&] { return WaitFor{.what = fmt::format("gather '{}'", name), .barrier = name}; });
  wait.show();
  return wait_away([&](const Member::Absence* absence) {
    return member_->gather(name, value, Deadline::never(), "worker", absence);
  });
}

int JobContext::rank() const {
  if (identity_.task.job != "worker")
    raise<InvalidArgument>("{} is not a worker, and has no rank", identity_.task.short_name());
  return static_cast<int>(std::ranges::count_if(tasks_, [this](const TaskInfo& other) {
    return other.task.job == "worker" && other.task < identity_.task;
  }));
}

bool JobContext::has_ended() {
  const MutexLock lock(mutex_);
  return ended_.has_value();
}

bool JobContext::wait_ended(Deadline deadline) {
  MutexLock lock(mutex_);
  while (member_ && !ended_ && !deadline.expired()) has_ended_.wait_until(lock, deadline.time_point());
  return ended_.has_value();
}

void JobContext::note_failed_training(const std::string& why) {
  const MutexLock lock(mutex_);
  if (failed_training_.empty()) failed_training_ = why;
}

std::string JobContext::failed_training() {
  const MutexLock lock(mutex_);
  return failed_training_;
}

std::string JobContext::why_stopped() {
  const MutexLock lock(mutex_);
  if (!ended_ || ended_->by == identity_.task) return "";
  if (ended_->aborted && !ended_->by) return "stopped, because the job was aborted";
  // The chief of a job without our launcher says what that would say.
  const bool is_said = ended_->by && ended_->by->job != "launcher" && !(coordinator_ && ended_->said);
  if (!is_said) return fmt::format("stopped: {}", ended_->reason);
  const auto known = std::ranges::find(tasks_, *ended_->by, &TaskInfo::task);
  return fmt::format("stopped, because {} failed",
                     known == tasks_.end() ? ended_->by->short_name() : known->describe());
}

std::shared_ptr<Endpoint> JobContext::endpoint() {
  if (!endpoint_) endpoint_ = std::make_shared<Endpoint>(data_port());
  return endpoint_;
}

void JobContext::announce_server() {
  put(server_key(index()), fmt::format("{}\n{}\n{}", endpoint()->address().to_string(),
                                       endpoint()->local_name(), Host::local().identity));
}

ServerAddress JobContext::find_server(int server, Deadline deadline) {
  if (!member_) raise<InvalidArgument>("a program alone has no parameter servers: start it with muster run");
  const Call call(*this);
  ScopedWait wait(&waits_, [&] {
    return WaitFor{.what = fmt::format("looking for ps/{}", server),
                   .tasks = {fmt::format("ps/{}", server)},
                   .key = server_key(server),
                   .limit = WaitLimit::kOwn};
  });
  wait.show();
  const auto words = split(member_->get(server_key(server), deadline), '\n');
  MUSTER_CHECK(words.size() == 3);
  const bool here = config_.shared_memory && words[2] == Host::local().identity;
  return {Address::parse(words[0]), here ? words[1] : ""};
}

bool JobContext::server_has_failed(int server) const {
  return member_ && member_->has_failed(TaskName::of("ps", server));
}

TableClient& JobContext::tables() {
  if (tables_) return *tables_;
  if (servers() == 0 || !servers_serve())
    throw InvalidArgument(
        "embedding tables need parameter servers: muster run --ps 1, or more, with --strategy ps-async or "
        "another of "
        "the ps- strategies");
  std::vector<ServerAddress> addresses;
  const auto deadline = Deadline::after(config_.join_timeout);
  for (int i = 0; i < servers(); ++i) addresses.push_back(find_server(i, deadline));
  tables_ = std::make_unique<TableClient>(
      TableClientOptions{.endpoint = endpoint(),
                         .servers = std::move(addresses),
                         .job_id = id(),
                         .worker = rank(),
                         .incarnation = config_.restart_count,
                         .timeout = config_.collective_timeout,
                         .server_wait = config_.server_wait,
                         .has_failed = [this](int server) { return server_has_failed(server); },
                         .waits = &waits_,
                         .check = [this] { check(); }});
  return *tables_;
}

void JobContext::on_task_failed(std::function<void(const TaskInfo& task)> callback) {
  const MutexLock lock(mutex_);
  on_task_failed_ = std::move(callback);
  for (const auto& task : failed_) {
    if (on_task_failed_) on_task_failed_(task);
  }
}

void JobContext::report_failed_task(const TaskInfo& task) {
  const MutexLock lock(mutex_);
  failed_.push_back(task);
  if (on_task_failed_) on_task_failed_(task);
}

void JobContext::check() {
  look_at_wait();
  const MutexLock lock(mutex_);
  if (ended_) throw Aborted(ended_->reason);
}

Endpoint::Options JobContext::data_port() const {
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

// What all ranks must have been told alike: they would send each other other bytes than are expected.
std::string JobContext::collective_settings() const {
  return fmt::format("--engine {} --algorithm {} --wire {} --sockets {} --bucket {}", config_.engine,
                     config_.algorithm, config_.wire, config_.sockets, config_.bucket);
}

// Each text begins with them, in a line of its own.
void JobContext::take_same_settings(std::vector<std::string>& texts) const {
  const auto names = worker_names();
  std::string first;
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t end = texts[i].find('\n');
    MUSTER_CHECK(end != std::string::npos);
    const std::string settings = texts[i].substr(0, end);
    texts[i].erase(0, end + 1);
    if (i == 0) first = settings;
    if (settings != first)
      raise<InvalidArgument>("the workers were started with different settings: {} with {}, {} with {}",
                             names[0], first, names[i], settings);
  }
}

Communicator& JobContext::communicator() {
  {
    const MutexLock lock(mutex_);
    if (communicator_) return *communicator_;
  }
  Communicator::Options options = {.rank = rank(),
                                   .size = workers(),
                                   .name = "workers",
                                   .engine = config_.engine,
                                   .algorithm = parse_algorithm(config_.algorithm),
                                   .shared_memory = config_.shared_memory,
                                   .sockets = config_.sockets,
                                   .timeout = config_.collective_timeout,
                                   .stall_warning = config_.stall_warning,
                                   .rendezvous_timeout = config_.collective_timeout,
                                   .waits = &waits_,
                                   .tasks = worker_names(),
                                   .check = [this] { check(); }};
  if (config_.wire != "same") options.wire_dtype = parse_dtype(config_.wire);
  if (member_) {
    options.rendezvous = [this](const std::string& mine, Deadline deadline) {
      const std::string name = "muster/rendezvous of workers";
      ScopedWait wait(&waits_, [&] {
        return WaitFor{.what = "communicator()", .barrier = name, .limit = WaitLimit::kOwn};
      });
      wait.show();
      auto texts = member_->gather(name, collective_settings() + '\n' + mine, deadline, "worker");
      if (texts.size() != static_cast<size_t>(workers()))
        raise<PeerLost>(
            "{} of {} workers meet in communicator(): the others have ended or failed, or met "
            "before this one was started again",
            texts.size(), workers());
      take_same_settings(texts);
      return texts;
    };
    options.endpoint = endpoint();
  }
  auto made = std::make_shared<Communicator>(options);
  const MutexLock lock(mutex_);
  communicator_ = std::move(made);
  if (ended_) communicator_->abort(ended_->reason);
  return *communicator_;
}

bool JobContext::has_communicated() const {
  const MutexLock lock(mutex_);
  return communicator_ != nullptr;
}

// Whoever waits for others in the communicator may not learn of it otherwise. That a rank died it finds by
// itself, since the rank's connections close, with what it was doing; the coordinator may be quicker.
void JobContext::on_ended(const Member::Ended& ended) {
  std::shared_ptr<Communicator> communicator;
  {
    const MutexLock lock(mutex_);
    ended_ = ended;
    has_ended_.notify_all();
    communicator = communicator_;
  }
  if (!communicator) return;
  const bool a_rank_died = ended.died && ended.by && ended.by->job == "worker" && *ended.by != identity_.task;
  if (a_rank_died && config_.engine == "native")
    communicator->wait_broken(Deadline::after(config_.heartbeat_timeout));
  communicator->abort(ended.reason);
}

std::string JobContext::last_collective() {
  std::shared_ptr<Communicator> communicator;
  {
    const MutexLock lock(mutex_);
    communicator = communicator_;
  }
  const auto lines = communicator ? split(communicator->history(), '\n') : std::vector<std::string>{};
  return lines.size() < 2 ? "" : fmt::format("after collective {}", lines[lines.size() - 2]);
}

void JobContext::abort(const std::string& reason) {
  if (member_) member_->abort(reason);
}

// What the program has not waited for must reach the others, or be said.
void JobContext::finish_communicator() {
  std::shared_ptr<Communicator> communicator;
  {
    const MutexLock lock(mutex_);
    communicator = communicator_;
  }
  if (communicator) communicator->finish();
}

void JobContext::finish() {
  finish_communicator();
  drop_communicator();
  if (!member_) return;
  if (is_called())
    log_warning(
        "the body of the program has returned while another thread of it {}: that call throws Aborted",
        waits_.describe());
  member_->leave(Deadline::after(config_.heartbeat_timeout));
  if (!coordinator_) return;
  coordinator_->wait_idle(Deadline::never());
  if (const auto aborted = coordinator_->aborted()) throw Aborted("the job was aborted: " + aborted->reason);
}

}  // namespace muster::detail
