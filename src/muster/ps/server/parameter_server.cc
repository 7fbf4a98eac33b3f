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
#include "muster/base/start_thread.h"
#include "muster/ps/server/acceptor.h"
#include "muster/ps/server/event_queue.h"
#include "muster/ps/server/leader.h"
#include "muster/ps/server/leader_link.h"
#include "muster/ps/server/readers.h"
#include "muster/ps/server/session_table.h"
#include "muster/ps/server/store.h"
#include "muster/ps/stopped.h"
#include "muster/shm/arena.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kReports = 100ms;
constexpr auto kLooks = 50ms;  // at links
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
        doorbell_arena_(Arena::create(size_t{1} << 16)),
        doorbell_(*new (doorbell_arena_->allocate(sizeof(Doorbell))) Doorbell),
        store_(options_.spec, layout_, adder()),
        events_(doorbell_) {
    if (options_.server == 0) {
      leader_.emplace(leader_options());
    } else {
      leader_link_.emplace(LeaderLink::Options{.endpoint = *options_.endpoint,
                                               .job_id = options_.job_id,
                                               .model_id = options_.model_id,
                                               .check = [this] { check(); }});
    }
    acceptor_.emplace(Acceptor::Options{.endpoint = options_.endpoint,
                                        .job_id = options_.job_id,
                                        .model_id = options_.model_id,
                                        .spec = options_.spec,
                                        .encrypted = options_.encrypted,
                                        .view = store_.view(),
                                        .arena = store_.arena(),
                                        .doorbell = doorbell_,
                                        .doorbell_arena = *doorbell_arena_,
                                        .initialised = initialised_,
                                        .spin_policy = spin_policy_,
                                        .events = events_});
    start(&Impl::work);
    if (leader_link_) start(&Impl::follow);
  }

  ~Impl() {
    stopping_.exchange(true);
    wake(doorbell_);
    for (auto& thread : threads_) thread.join();
  }

  void report_failure(int worker, int incarnation) { events_.put(EventQueue::Failure{worker, incarnation}); }

  Progress progress() const {
    const MutexLock lock(mutex_);
    return progress_;
  }

 private:
  using Action = std::variant<Command, Answer>;

  Leader::Options leader_options() {
    return {.policy = options_.spec.policy,
            .followers = {.endpoint = *options_.endpoint,
                          .job_id = options_.job_id,
                          .model_id = options_.model_id,
                          .servers = options_.spec.servers,
                          .adds_up_norms = store_.needs_norms(),
                          .join_timeout = options_.join_timeout,
                          .find_server = options_.find_server,
                          .check = [this] { check(); }},
            .waits = options_.waits,
            .name_of = [this](int worker) { return name_of(worker); }};
  }

  // Norms over all shards: every server adds up the same ones, since all carry out the same commands.
  std::function<void(std::span<double>)> adder() {
    if (options_.spec.servers == 1) return {};
    return [this](std::span<double> numbers) {
      if (leader_) {
        leader_->followers().add_up(numbers);
      } else {
        leader_link_->add_up(numbers);
      }
    };
  }

  void start(void (Impl::*body)()) {
    threads_.push_back(start_thread([this, body] {
      try {
        (this->*body)();
      } catch (const Stopped&) {
      } catch (const std::exception& error) {
        note_error(error.what());
      }
    }));
  }

  void check() const {
    if (stopping_.load()) throw Stopped{};
  }

  void note_error(const std::string& error) {
    const MutexLock lock(mutex_);
    if (progress_.error.empty()) progress_.error = error;
  }

  void follow() {
    leader_link_->follow([this](Command command) { events_.put(std::move(command)); });
  }

  // ---- The thread that works.

  void work() {
    if (leader_) leader_->followers().reach();
    try {
      for (;;) {
        bool is_quiet = false;
        wait_until(
            doorbell_, spin_policy_, [&] { return is_quiet || stopping_.load() || has_work(); },
            [&] { is_quiet = Clock::now() >= next_look_; });
        check();
        take_events();
        take_requests();
        const auto now = Clock::now();
        if (now >= next_look_) look_at_links(now);
        run_actions();
        report_progress(now);
      }
    } catch (const Error&) {
      next_report_ = {};  // the last report may be old
      report_progress(Clock::now());
      throw;
    }
  }

  bool has_work() const {
    return !events_.empty() || std::ranges::any_of(sessions_.all(), [](const auto& entry) {
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

  // A worker that asks what makes no sense is done with.
  void take_requests() {
    std::vector<int> confused;
    for (const auto& [worker, session] : sessions_.all()) {
      if (session->slot->posted.load() == session->seen) continue;
      try {
        take_request(*session);
      } catch (const InvalidArgument& error) {
        log_warning("worker/{} is given up: {}", worker, error.what());
        confused.push_back(worker);
      }
    }
    for (const int worker : confused) give_up(worker);
  }

  // Links between hosts may be gone for good.
  void look_at_links(Clock::time_point now) {
    next_look_ = now + kLooks;
    std::vector<int> gone;
    for (const auto& [worker, session] : sessions_.all()) {
      if (!session->remote) continue;
      const auto since = session->remote->gone_since();
      if (since && now - *since > options_.heartbeat_timeout) gone.push_back(worker);
    }
    for (const int worker : gone) give_up(worker);
    // When training is over, servers end one after the other.
    const bool trains = std::ranges::any_of(
        sessions_.all(), [this](const auto& entry) { return !left_.contains(entry.first); });
    if (trains && leader_) leader_->followers().check_links();
    // Without its leader it goes on answering, so that no worker is kept from finding that out itself.
    if (trains && leader_link_ && !leader_link_->is_there())
      note_error(
          fmt::format("parameter server 0, which decides, is gone: server {} can do nothing without it",
                      options_.server));
  }

  void give_up(int worker) {
    if (const Session* session = sessions_.find(worker)) acceptor_->give_up(*session);
    remove(worker);
  }

  void remove(int worker) {
    const auto session = sessions_.remove(worker);
    if (!session) return;
    // What was decided for it is no answer to what its next session asks.
    std::erase_if(actions_, [&](const Action& action) {
      const auto* answer = std::get_if<Answer>(&action);
      return answer != nullptr && answer->worker == worker;
    });
    // What it has read comes before all that is written from now on, for which nobody looks at its slot again.
    (void)session->slot->reading.load();
    acceptor_->close(session);
    fail_in_policy(worker);
  }

  void fail_in_policy(int worker) {
    if (leader_) add(leader_->fail(worker));
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
        if (leader_ || session.data.size() >= kMostGradients)
          raise<InvalidArgument>("it sends gradients that it does not push");
        session.data[request.push.sequence] = gradients_of(session, layout_);
        return reply(session, {.kind = Reply::Kind::kTaken});
      case Request::Kind::kLeave:
        reply(session, {.kind = Reply::Kind::kTaken});
        left_.insert(session.worker);
        left_lately_.push_back(session.worker);
        if (leader_) add(leader_->take(session.worker, session.incarnation, request));
        return;
      default:
        break;
    }
    if (!leader_) {
      log_warning("worker/{} asked this server what only the leader decides", session.worker);
      return reply(session, {.kind = Reply::Kind::kDone});
    }
    if (request.kind == Request::Kind::kPush) return take_push(session, request);
    add(leader_->take(session.worker, session.incarnation, request));
    if (request.kind == Request::Kind::kAway || request.kind == Request::Kind::kBack)
      reply(session, {.kind = Reply::Kind::kTaken});
  }

  void take_push(Session& session, const Request& request) {
    const uint64_t sequence = request.push.sequence;
    if (sequence <= session.pushed) raise<InvalidArgument>("it pushes gradient {} again", sequence);
    auto gradients = gradients_of(session, layout_);
    add(leader_->take(session.worker, session.incarnation, request));
    session.pushed = sequence;
    session.data[sequence] = std::move(gradients);
  }

  void initialise(const Session& session) {
    if (initialised_.load()) return;  // a chief that was restarted: training goes on from here
    store_.initialise(gradients_of(session, layout_));
    initialised_ = true;
    if (leader_) add(leader_->open());
  }

  // ---- What has been decided.

  void add(Decision decision) {
    for (auto& command : decision.commands) actions_.emplace_back(std::move(command));
    for (auto& answer : decision.answers) actions_.emplace_back(answer);
  }

  void run_actions() {
    while (!actions_.empty()) {
      send_answers(take_answers());
      if (actions_.empty()) return;
      const Command command = std::get<Command>(std::move(actions_.front()));
      actions_.pop_front();
      carry_out(command, take_answers());
    }
  }

  // Those that are next, until the next call.
  const std::vector<Answer>& take_answers() {
    answers_.clear();
    while (!actions_.empty() && std::holds_alternative<Answer>(actions_.front())) {
      answers_.push_back(std::get<Answer>(actions_.front()));
      actions_.pop_front();
    }
    return answers_;
  }

  void send_answers(const std::vector<Answer>& answers) {
    for (const Answer& answer : answers) {
      Session* session = sessions_.find(answer.worker);
      if (session == nullptr) continue;
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
  }

  void reply(Session& session, const Reply& reply) {
    session.slot->reply = reply;
    session.slot->answered.exchange(session.seen);
    wake(session.slot->doorbell);
  }

  // `answers` stand behind it.
  void carry_out(const Command& command, const std::vector<Answer>& answers) {
    std::vector<Store::Contribution> contributions;
    for (const auto& source : command.sources) {
      const Session* session = sessions_.holder_of(source);
      if (session == nullptr)
        raise<DataLoss>("gradient {} of {} is to be used, and parameter server {} does not have it",
                        source.sequence, name_of(source.worker), options_.server);
      contributions.push_back({{&session->data.at(source.sequence), source.weight}, source.worker});
    }
    if (command.kind == Command::Kind::kApply) {
      apply(command, contributions, answers);
    } else {
      if (command.kind == Command::Kind::kAccumulate) {
        for (const auto& contribution : contributions) store_.accumulate(command, contribution);
      }
      send_answers(answers);
    }
    sessions_.release(command);
  }

  // Who is answered behind an update may follow it while it is being made.
  void apply(const Command& command, const std::vector<Store::Contribution>& contributions,
             const std::vector<Answer>& answers) {
    if (leader_) say_who_has_left();
    store_.announce(command.version);
    wait_for_readers(
        slots(), command.version, doorbell_, spin_policy_, [this] { return stopping_.load(); },
        options_.reader_timeout);
    store_.begin(command.version);
    send_answers(answers);
    store_.apply(command, contributions, [this] { wake_workers(); });
    step_ = command.step;
    wake_workers();
  }

  // Also of those who have come just now. Who comes later sees what was announced.
  const std::vector<const SessionSlot*>& slots() {
    newcomers_ = events_.new_sessions();
    slots_.clear();
    for (const auto& [worker, session] : sessions_.all()) slots_.push_back(session->slot);
    for (const auto& session : newcomers_) slots_.push_back(session->slot);
    return slots_;
  }

  void wake_workers() {
    for (const auto& [worker, session] : sessions_.all()) wake(session->slot->doorbell);
  }

  // Only when training goes on: at its end all leave.
  void say_who_has_left() {
    for (const int worker : left_lately_)
      log_info("worker/{} has left after step {}: the others go on without it, and it has the model of then",
               worker, step_);
    left_lately_.clear();
  }

  std::string name_of(int worker) const {
    const auto at = static_cast<size_t>(worker);
    return at < options_.worker_names.size() ? options_.worker_names[at] : fmt::format("worker/{}", worker);
  }

  // ---- What others may know of it.

  void report_progress(Clock::time_point now) {
    if (leader_) step_ = leader_->step();
    const MutexLock lock(mutex_);
    progress_.step = step_;
    progress_.version = store_.version();
    progress_.over = is_over();
    if (leader_ && (leader_->entered() != reported_ || now > next_report_)) {
      progress_.report = leader_->report();
      reported_ = leader_->entered();
      next_report_ = now + kReports;
      leader_->report_waits();
    }
  }

  // A worker that died is not done: it may be started again. The leader, to which workers say it last, may
  // have commands for the followers until it ends.
  bool is_over() const {
    return left_.size() == static_cast<size_t>(options_.spec.policy.workers) &&
           (leader_ || !leader_link_->is_there());
  }

  const Options options_;
  const Placement placement_;
  const FlatLayout& layout_;
  const SpinPolicy spin_policy_;
  const std::shared_ptr<Arena> doorbell_arena_;  // workers ring it
  Doorbell& doorbell_;
  Store store_;
  EventQueue events_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> initialised_{false};
  std::optional<LeaderLink> leader_link_;  // of a follower

  // Of the thread that works.
  std::optional<Leader> leader_;  // of server 0
  SessionTable sessions_;
  std::vector<std::shared_ptr<Session>> newcomers_;  // while their slots are looked at
  std::set<int> left_;                               // who has taken its leave, and not come again
  std::vector<int> left_lately_;                     // since the last update
  std::vector<const SessionSlot*> slots_;
  std::deque<Action> actions_;
  std::vector<Answer> answers_;  // taken from the front of them
  int64_t step_ = 0;
  size_t reported_ = 0;  // how many had entered at the last report
  Clock::time_point next_report_;
  Clock::time_point next_look_;

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
