#include "muster/ps/server/parameter_server.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <variant>

#include <fmt/format.h>

#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/net/arena.h"
#include "muster/net/thread_pool.h"
#include "muster/optim/rule_text.h"
#include "muster/optim/shard_update.h"
#include "muster/ps/server/acceptor.h"
#include "muster/ps/server/event_queue.h"
#include "muster/ps/server/followers.h"
#include "muster/ps/server/leader_link.h"
#include "muster/ps/server/session_table.h"
#include "muster/ps/session_protocol.h"
#include "muster/ps/stopped.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kReports = 100ms;
constexpr int kMostThreads = 4;
constexpr size_t kWorthAPool = size_t{512} * 1024;  // bytes: waking another thread for fewer saves nothing
constexpr size_t kMostGradients =
    2;  // of a worker, that wait for a command: a RemoteWorker has room for them

}  // namespace

class ParameterServer::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        placement_(options_.spec.variables, options_.spec.servers, options_.spec.placement),
        layout_(placement_.layout(options_.server)),
        spin_policy_(SpinPolicy::of(options_.spec.policy.workers + options_.spec.servers, available_cores())),
        arena_(Arena::create()),
        doorbell_arena_(Arena::create(size_t{1} << 16)),
        view_(layout_, static_cast<std::byte*>(arena_->allocate(StoreView::bytes(layout_)))),
        doorbell_(*new (doorbell_arena_->allocate(sizeof(Doorbell))) Doorbell),
        pool_(layout_.bytes() < kWorthAPool ? 1 : std::min(kMostThreads, available_cores())),
        shard_({.layout = layout_,
                .rule = parse_rule(options_.spec.rule),
                .parameters = view_.parameters(),
                .clip_norm = options_.spec.clip_norm,
                .run = [this](size_t count, const auto& work) { pool_.run(count, work); },
                .add_up_shards = adder()}),
        events_(doorbell_) {
    if (is_leader()) {
      policy_.emplace(options_.spec.policy);
      followers_.emplace(Followers::Options{.endpoint = *options_.endpoint,
                                            .job_id = options_.job_id,
                                            .model_id = options_.model_id,
                                            .servers = options_.spec.servers,
                                            .adds_up_norms = shard_.in_passes(),
                                            .join_timeout = options_.join_timeout,
                                            .find_server = options_.find_server,
                                            .check = [this] { check(); }});
    } else {
      leader_.emplace(LeaderLink::Options{.endpoint = *options_.endpoint,
                                          .job_id = options_.job_id,
                                          .model_id = options_.model_id,
                                          .check = [this] { check(); }});
    }
    acceptor_.emplace(Acceptor::Options{.endpoint = options_.endpoint,
                                        .job_id = options_.job_id,
                                        .model_id = options_.model_id,
                                        .spec = options_.spec,
                                        .encrypted = options_.encrypted,
                                        .view = view_,
                                        .arena = *arena_,
                                        .doorbell = doorbell_,
                                        .doorbell_arena = *doorbell_arena_,
                                        .initialised = initialised_,
                                        .spin_policy = spin_policy_,
                                        .events = events_});
    start(&Impl::work);
    if (!is_leader()) start(&Impl::follow);
  }

  ~Impl() {
    stopping_.exchange(true);
    wake(doorbell_);
    for (auto& thread : threads_) thread.join();
    if (options_.waits != nullptr) options_.waits->set_held(this, {});
  }

  void report_failure(int worker, int incarnation) { events_.put(EventQueue::Failure{worker, incarnation}); }

  Progress progress() const {
    const MutexLock lock(mutex_);
    return progress_;
  }

 private:
  using Action = std::variant<Command, Answer>;

  struct Contribution {
    ShardUpdate::Source source;
    int worker = 0;
  };

  bool is_leader() const { return options_.server == 0; }

  // Norms over all shards: every server adds up the same ones, since all carry out the same commands.
  std::function<void(std::span<double>)> adder() {
    if (options_.spec.servers == 1) return {};
    return [this](std::span<double> numbers) {
      if (followers_) {
        followers_->add_up(numbers);
      } else {
        leader_->add_up(numbers);
      }
    };
  }

  void start(void (Impl::*body)()) {
    threads_.emplace_back([this, body, task = log_task()] {
      const ScopedLogTask scope(task);
      try {
        (this->*body)();
      } catch (const Stopped&) {
      } catch (const std::exception& error) {
        note_error(error.what());
      }
    });
  }

  void check() const {
    if (stopping_.load()) throw Stopped{};
  }

  // ---- The thread that works.

  void work() {
    if (followers_) followers_->reach();
    try {
      for (;;) {
        wait_until(
            doorbell_, spin_policy_, [this] { return stopping_.load() || has_work(); },
            [this] { check_links(); });
        check();
        take_events();
        take_requests();
        run_actions();
        report_progress();
      }
    } catch (const Error&) {
      report_progress(/*now=*/true);  // the last report may be old
      throw;
    }
  }

  // A worker that asks what makes no sense is done with.
  void take_requests() {
    std::vector<int> confused;
    for (const auto& [worker, session] : sessions_.all()) {
      if (session->slot->posted.load() == session->seen) continue;
      try {
        take_request(*session);
      } catch (const InvalidArgument& error) {
        log_warning("worker {} is given up: {}", worker, error.what());
        confused.push_back(worker);
      }
    }
    for (const int worker : confused) give_up(worker);
  }

  bool has_work() const {
    return !events_.empty() ||
           std::any_of(sessions_.all().begin(), sessions_.all().end(), [](const auto& entry) {
             return entry.second->slot->posted.load() != entry.second->seen;
           });
  }

  void take_events() {
    EventQueue::Events events = events_.take();
    for (const auto& failure : events.failures) {
      const Session* session = sessions_.find(failure.worker);
      if (session == nullptr) {
        fail_in_policy(failure.worker);
      } else if (session->incarnation <= failure.incarnation) {
        give_up(failure.worker);
      }
    }
    for (const auto& session : events.new_sessions) {
      remove(session->worker);
      left_.erase(session->worker);
      sessions_.add(session);
    }
    for (auto& command : events.commands) actions_.emplace_back(std::move(command));
  }

  // While there is nothing to do: links of other hosts may be gone for good.
  void check_links() {
    std::vector<int> gone;
    for (const auto& [worker, session] : sessions_.all()) {
      if (!session->remote) continue;
      const auto since = session->remote->gone_since();
      if (since && Clock::now() - *since > options_.heartbeat_timeout) gone.push_back(worker);
    }
    for (const int worker : gone) give_up(worker);
    if (!gone.empty()) run_actions();
    if (trains()) check_servers();
    report_progress();
  }

  // When training is over, servers end one after the other.
  bool trains() const {
    return std::ranges::any_of(sessions_.all(),
                               [this](const auto& entry) { return !left_.contains(entry.first); });
  }

  // A follower without its leader goes on answering: so workers are not kept from finding that out themselves.
  void check_servers() {
    if (followers_) followers_->check_links();
    if (leader_ && !leader_->is_there())
      note_error(
          fmt::format("parameter server 0, which decides, is gone: server {} can do nothing without it",
                      options_.server));
  }

  void note_error(const std::string& error) {
    const MutexLock lock(mutex_);
    if (progress_.error.empty()) progress_.error = error;
  }

  void give_up(int worker) {
    if (const Session* session = sessions_.find(worker)) acceptor_->give_up(*session);
    remove(worker);
  }

  void remove(int worker) {
    const auto session = sessions_.remove(worker);
    if (!session) return;
    // What it has read comes before all that is written from now on, for which nobody looks at its slot again.
    (void)session->slot->reading.load();
    acceptor_->close(session);
    std::erase(waiting_to_enter_, worker);
    fail_in_policy(worker);
  }

  // Also one that never entered: the others would wait for it.
  void fail_in_policy(int worker) {
    entered_.erase(worker);
    if (policy_) decide(policy_->fail(worker));
  }

  void take_request(Session& session) {
    session.seen = session.slot->posted.load();
    const Request request = session.slot->request;
    if (!is_request(request)) raise<InvalidArgument>("it asks for what does not exist");
    switch (request.kind) {
      case Request::Kind::kInitialise:
        if (!session.data.empty()) raise<InvalidArgument>("it initialises with gradients that are in use");
        initialise(session);
        session.slot->consumed.exchange(request.push.sequence);
        return reply(session, {.kind = Reply::Kind::kTaken});
      case Request::Kind::kData:
        if (policy_ || session.data.size() >= kMostGradients)
          raise<InvalidArgument>("it sends gradients that it does not push");
        session.data[request.push.sequence] = gradients_of(session, layout_);
        return reply(session, {.kind = Reply::Kind::kTaken});
      case Request::Kind::kLeave:
        reply(session, {.kind = Reply::Kind::kTaken});
        left_.insert(session.worker);
        left_lately_.push_back(session.worker);
        if (policy_ && entered_.erase(session.worker) > 0) decide(policy_->leave(session.worker));
        return;
      default:
        break;
    }
    if (!policy_) {
      log_warning("worker {} asked this server what only the leader decides", session.worker);
      return reply(session, {.kind = Reply::Kind::kDone});
    }
    if (request.kind == Request::Kind::kEnter) {
      waiting_to_enter_.push_back(session.worker);
      return admit_waiting();
    }
    if (!entered_.contains(session.worker)) return reply(session, {.kind = Reply::Kind::kDone});
    if (request.kind == Request::Kind::kAway || request.kind == Request::Kind::kBack) {
      const bool away = request.kind == Request::Kind::kAway;
      decide(away ? policy_->away(session.worker) : policy_->back(session.worker));
      return reply(session, {.kind = Reply::Kind::kTaken});
    }
    if (request.kind == Request::Kind::kResume) return decide(policy_->resume(session.worker));
    if (request.kind == Request::Kind::kPush) {
      if (request.push.sequence <= session.pushed)
        raise<InvalidArgument>("it pushes gradient {} again", request.push.sequence);
      decide(policy_->push(session.worker, request.push));
      session.pushed = request.push.sequence;
      session.data[session.pushed] = gradients_of(session, layout_);
    } else {
      decide(policy_->finish_epoch(session.worker));
    }
  }

  void initialise(const Session& session) {
    if (initialised_.load()) return;  // a chief that was restarted: training goes on from here
    shard_.initialise(gradients_of(session, layout_));
    initialised_ = true;
    admit_waiting();
  }

  // Nobody begins before there are parameters.
  void admit_waiting() {
    if (!initialised_.load()) return;
    for (const int worker : std::exchange(waiting_to_enter_, {})) {
      entered_.insert(worker);
      decide(policy_->enter(worker, sessions_.find(worker)->incarnation));
    }
  }

  void decide(Decision decision) {
    for (auto& command : decision.commands) {
      if (followers_) followers_->send(command);
      actions_.emplace_back(std::move(command));
    }
    for (auto& answer : decision.answers) actions_.emplace_back(answer);
  }

  void run_actions() {
    while (!actions_.empty()) {
      if (const auto* answer = std::get_if<Answer>(&actions_.front())) {
        send_answer(*answer);
        actions_.pop_front();
        continue;
      }
      const Command command = std::get<Command>(std::move(actions_.front()));
      actions_.pop_front();
      carry_out(command);
    }
  }

  void send_answer(const Answer& answer) {
    Session* session = sessions_.find(answer.worker);
    if (session == nullptr) return;
    reply(*session, {.kind = answer.kind == Answer::Kind::kDone ? Reply::Kind::kDone : Reply::Kind::kBegin,
                     .mode = answer.mode,
                     .outcome = answer.outcome,
                     .step = answer.step,
                     .version = answer.version,
                     .samples = answer.samples,
                     .staleness = answer.staleness,
                     .loss = answer.loss,
                     .total = answer.total});
  }

  void reply(Session& session, const Reply& reply) {
    session.slot->reply = reply;
    session.slot->answered.exchange(session.seen);
    wake(session.slot->doorbell);
  }

  // Only when training goes on: at its end all leave.
  void say_who_has_left() {
    for (const int worker : left_lately_)
      log_info("worker/{} has left after step {}: the others go on without it, and it has the model of then",
               worker, step_);
    left_lately_.clear();
  }

  void carry_out(const Command& command) {
    std::vector<Contribution> sources;
    for (const auto& source : command.sources) {
      const Session* session = sessions_.holder_of(source);
      if (session == nullptr)
        raise<DataLoss>("gradient {} of {} is to be used, and parameter server {} does not have it",
                        source.sequence, name_of(source.worker), options_.server);
      sources.push_back({{&session->data.at(source.sequence), source.weight}, source.worker});
    }
    if (command.kind == Command::Kind::kAccumulate) {
      for (const auto& [source, worker] : sources) {
        if (!shard_.accumulate(source)) not_finite_of_ = worker;
      }
    } else if (command.kind == Command::Kind::kApply) {
      if (policy_) say_who_has_left();
      apply(command, sources);
    }
    sessions_.release(command);
  }

  void apply(const Command& command, const std::vector<Contribution>& contributions) {
    if (command.version != version_ + 1)
      raise<DataLoss>("update {} is to be made, and parameter server {} is at {}: some were lost",
                      command.version, options_.server, version_);
    view_.announced().exchange(command.version);
    wait_for_readers(command.version);
    view_.begun().exchange(command.version);
    // Who waits for this update may follow it while it is being made.
    while (!actions_.empty() && std::holds_alternative<Answer>(actions_.front())) {
      send_answer(std::get<Answer>(actions_.front()));
      actions_.pop_front();
    }
    ShardUpdate::Update update = {.divisor = command.divisor,
                                  .lr = command.lr,
                                  .gradient_scale = command.gradient_scale,
                                  .asynchronous = command.asynchronous};
    for (const auto& [source, worker] : contributions) update.sources.push_back(source);
    const auto result = shard_.apply(update, [&](size_t chunk) {
      view_.version(chunk).exchange(command.version);
      wake_workers();
    });
    if (result.not_finite) stop_at_nan(command, contributions, *result.not_finite);
    step_ = command.step;
    version_ = command.version;
    wake_workers();
  }

  [[noreturn]] void stop_at_nan(const Command& command, const std::vector<Contribution>& contributions,
                                size_t slice) const {
    int whose = not_finite_of_;
    for (const auto& [source, worker] : contributions) {
      const void* data = (*source.gradients)[slice];
      if (data != nullptr && !all_finite(layout_[slice].dtype, data, layout_.slices()[slice].count))
        whose = worker;
    }
    raise<DataLoss>(
        "the gradient of {}{} is infinite or not a number, in update {} (--on-nan skip would leave it out)",
        layout_[slice].name, whose < 0 ? "" : fmt::format(" from worker/{}", whose), command.version);
  }

  void wake_workers() {
    for (const auto& [worker, session] : sessions_.all()) wake(session->slot->doorbell);
  }

  // Of older versions, also of those who have come just now. Who comes later sees what was announced. A slow
  // reader is waited for as long as it gets on: it would begin again and again otherwise.
  void wait_for_readers(int64_t version) {
    const auto newcomers = events_.new_sessions();
    struct Readers {
      int count = 0;
      uint64_t progress = 0;
      bool operator==(const Readers&) const = default;
    };
    const auto readers = [&] {
      Readers found;
      const auto add = [&](const SessionSlot& slot) {
        const int64_t reading = slot.reading.load();
        if (reading == 0 || reading > version) return;
        ++found.count;
        found.progress += slot.chunks_read.load(std::memory_order_relaxed);
      };
      for (const auto& [worker, session] : sessions_.all()) add(*session->slot);
      for (const auto& session : newcomers) add(*session->slot);
      return found;
    };
    Readers last = readers();
    if (last.count == 0) return;
    auto until = Clock::now() + options_.reader_timeout;
    const auto waits_enough = [&] {
      const Readers now = readers();
      if (now.count == 0 || stopping_.load()) return true;
      if (now == last) return Clock::now() > until;
      last = now;
      until = Clock::now() + options_.reader_timeout;
      return false;
    };
    wait_until(doorbell_, spin_policy_, waits_enough, [] {});
  }

  void report_progress(bool now = false) {
    if (is_leader()) step_ = policy_->step();
    const MutexLock lock(mutex_);
    progress_.step = step_;
    progress_.version = version_;
    progress_.over = is_over();
    const auto time = Clock::now();
    if (policy_ && (now || entered_.size() != reported_ || time > next_report_)) {
      progress_.report = policy_->report();
      reported_ = entered_.size();
      next_report_ = time + kReports;
      report_waits();
    }
  }

  // Whom those wait for who have no answer.
  void report_waits() {
    if (options_.waits == nullptr) return;
    ++looks_;
    std::vector<Wait> held;
    const auto add = [&](const UpdatePolicy::Need& need) {
      Wait& wait = held.emplace_back(Wait{.of = name_of(need.worker), .looks = looks_});
      wait.wait_for = {
          .what = need.what, .tasks = {}, .enough = need.enough, .subject = model_subject(options_.model_id)};
      for (const int other : need.of) wait.wait_for.tasks.push_back(name_of(other));
    };
    for (const auto& need : policy_->needs()) add(need);
    for (const int worker : waiting_to_enter_) add({worker, "the first parameters", {0}});
    options_.waits->set_held(this, std::move(held));
  }

  std::string name_of(int worker) const {
    const auto at = static_cast<size_t>(worker);
    return at < options_.worker_names.size() ? options_.worker_names[at] : fmt::format("worker/{}", worker);
  }

  // A worker that died is not done: it may be started again. The leader, to which workers say it last, may
  // have commands for the followers until it ends.
  bool is_over() const {
    return left_.size() == static_cast<size_t>(options_.spec.policy.workers) &&
           (!leader_ || !leader_->is_there());
  }

  void follow() {
    leader_->follow([this](Command command) { events_.put(std::move(command)); });
  }

  const Options options_;
  const Placement placement_;
  const FlatLayout& layout_;
  const SpinPolicy spin_policy_;
  const std::shared_ptr<Arena> arena_;           // of the parameters: workers only read it
  const std::shared_ptr<Arena> doorbell_arena_;  // of the doorbell: workers ring it
  StoreView view_;
  Doorbell& doorbell_;
  ThreadPool pool_;
  ShardUpdate shard_;
  EventQueue events_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> initialised_{false};
  std::optional<LeaderLink> leader_;  // of a follower

  // Of the thread that works.
  std::optional<UpdatePolicy> policy_;  // of the leader
  SessionTable sessions_;
  std::set<int> entered_;
  std::set<int> left_;            // who has taken its leave, and not come again
  std::vector<int> left_lately_;  // since the last update
  std::vector<int> waiting_to_enter_;
  std::deque<Action> actions_;
  std::optional<Followers> followers_;  // of the leader
  int64_t step_ = 0;
  int64_t version_ = 0;
  int not_finite_of_ = -1;  // the worker whose gradient was not, if it was accumulated
  uint64_t looks_ = 0;      // how often it was said whom workers wait for
  size_t reported_ = 0;     // how many had entered at the last report
  Clock::time_point next_report_;

  mutable Mutex mutex_;
  Progress progress_ MUSTER_GUARDED_BY(mutex_);

  std::optional<Acceptor> acceptor_;
  std::vector<std::thread> threads_;
};

ParameterServer::ParameterServer(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
ParameterServer::~ParameterServer() = default;

void ParameterServer::report_failure(int worker, int incarnation) {
  impl_->report_failure(worker, incarnation);
}

ParameterServer::Progress ParameterServer::progress() const {
  return impl_->progress();
}

}  // namespace muster::detail
