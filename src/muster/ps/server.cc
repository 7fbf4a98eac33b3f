#include "muster/ps/server.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <variant>

#include "muster/base/cpu.h"
#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/mutex.h"
#include "muster/net/arena.h"
#include "muster/optim/rules.h"
#include "muster/ps/inbox.h"
#include "muster/ps/order_link.h"
#include "muster/ps/parameter_store.h"
#include "muster/ps/reception.h"
#include "muster/ps/seats.h"
#include "muster/ps/stopped.h"
#include "muster/ps/wire.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kSending = 5s;    // an order
constexpr auto kReconnect = 1s;  // a link that breaks may come back within
constexpr auto kReports = 100ms;
constexpr int kMostThreads = 4;
constexpr size_t kMostGradients =
    2;  // of a worker that wait for an order: as many as a RemoteWorker has room for

}  // namespace

class ParameterServer::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        placement_(options_.plan.variables, options_.plan.servers, options_.plan.placement),
        slices_(placement_.slices(options_.server)),
        patience_(Patience::of(options_.plan.policy.workers + options_.plan.servers, available_cores())),
        arena_(Arena::create()),
        door_arena_(Arena::create(size_t{1} << 16)),
        view_(placement_, options_.server,
              static_cast<std::byte*>(arena_->allocate(StoreView::bytes(placement_, options_.server)))),
        door_(*new (door_arena_->allocate(sizeof(Door))) Door),
        store_({.placement = placement_,
                .server = options_.server,
                .rule = parse_rule(options_.plan.rule),
                .clip_norm = options_.plan.clip_norm,
                .check_finite = options_.plan.stop_at_nan,
                .threads = std::min(kMostThreads, available_cores())},
               view_),
        inbox_(door_) {
    if (is_first()) policy_.emplace(options_.plan.policy);
    reception_.emplace(Reception::Options{.endpoint = options_.endpoint,
                                          .job_id = options_.job_id,
                                          .plan_id = options_.plan_id,
                                          .plan = options_.plan,
                                          .encrypted = options_.encrypted,
                                          .slices = slices_,
                                          .view = view_,
                                          .arena = *arena_,
                                          .door = door_,
                                          .door_arena = *door_arena_,
                                          .initialised = initialised_,
                                          .patience = patience_,
                                          .inbox = inbox_});
    start(&Impl::work);
    if (!is_first()) start(&Impl::follow);
  }

  ~Impl() {
    stopping_.exchange(true);
    wake(door_.bell);
    for (auto& thread : threads_) thread.join();
  }

  void lose(int worker, int incarnation) { inbox_.put(Inbox::Loss{worker, incarnation}); }

  Progress progress() const {
    const MutexLock lock(mutex_);
    return progress_;
  }

 private:
  using Deed = std::variant<Order, Answer>;

  bool is_first() const { return options_.server == 0; }

  void start(void (Impl::*body)()) {
    threads_.emplace_back([this, body, task = log_task()] {
      const ScopedLogTask scope(task);
      try {
        (this->*body)();
      } catch (const Stopped&) {
      } catch (const std::exception& error) {
        const MutexLock lock(mutex_);
        progress_.failure = error.what();
      }
    });
  }

  void check() const {
    if (stopping_.load()) throw Stopped{};
  }

  // ---- The thread that works.

  void work() {
    if (is_first()) reach_followers();
    for (;;) {
      wait_until(
          door_.bell, patience_, [this] { return stopping_.load() || has_work(); },
          [this] { look_around(); });
      check();
      read_letters();
      take_requests();
      do_deeds();
      report_progress();
    }
  }

  // A worker that asks what makes no sense is done with.
  void take_requests() {
    std::vector<int> confused;
    for (const auto& [worker, seat] : seats_.all()) {
      if (seat->desk->posted.load() == seat->seen) continue;
      try {
        take_request(*seat);
      } catch (const InvalidArgument& error) {
        log_warning("worker {} is given up: {}", worker, error.what());
        confused.push_back(worker);
      }
    }
    for (const int worker : confused) remove(worker);
  }

  bool has_work() const {
    return !inbox_.empty() || std::any_of(seats_.all().begin(), seats_.all().end(), [](const auto& entry) {
      return entry.second->desk->posted.load() != entry.second->seen;
    });
  }

  void read_letters() {
    Inbox::Letters letters = inbox_.take();
    for (const auto& loss : letters.losses) {
      const Seat* seat = seats_.find(loss.worker);
      if (seat == nullptr) {
        lose_in_policy(loss.worker);
      } else if (seat->incarnation <= loss.incarnation) {
        remove(loss.worker);
      }
    }
    for (auto& seat : letters.arrivals) {
      remove(seat->worker);
      left_.erase(seat->worker);
      seats_.add(std::move(seat));
    }
    for (auto& order : letters.orders) deeds_.emplace_back(std::move(order));
  }

  // While there is nothing to do: links of other hosts may be gone for good.
  void look_around() {
    std::vector<int> gone;
    for (const auto& [worker, seat] : seats_.all()) {
      if (!seat->remote) continue;
      const auto since = seat->remote->gone_since();
      if (since && Clock::now() - *since > kReconnect) gone.push_back(worker);
    }
    for (const int worker : gone) remove(worker);
    if (!gone.empty()) do_deeds();
    report_progress();
  }

  void remove(int worker) {
    const auto seat = seats_.remove(worker);
    if (!seat) return;
    reception_->close(seat);
    std::erase(waiting_to_join_, worker);
    lose_in_policy(worker);
  }

  // Also one that never joined: the others would wait for it.
  void lose_in_policy(int worker) {
    joined_.erase(worker);
    if (policy_) decide(policy_->lose(worker));
  }

  SliceData data_of(const Seat& seat) const {
    SliceData data(slices_.size(), nullptr);
    for (size_t i = 0; i < slices_.size(); ++i) {
      const uint64_t place = seat.desk->places()[i];
      if (place == 0) continue;
      if (place % sizeof(float) != 0 || place > seat.capacity ||
          seat.capacity - place < slices_[i].count * sizeof(float)) {
        log_warning("worker {} says that a gradient lies where none can: it is left out", seat.worker);
        continue;
      }
      data[i] = reinterpret_cast<const float*>(seat.base + place);
    }
    return data;
  }

  void take_request(Seat& seat) {
    seat.seen = seat.desk->posted.load();
    const Request request = seat.desk->request;
    if (!is_request(request)) raise<InvalidArgument>("it asks for what does not exist");
    switch (request.kind) {
      case Request::Kind::kInitialise:
        if (!seat.data.empty()) raise<InvalidArgument>("it initialises with gradients that are in use");
        initialise(seat);
        seat.desk->consumed.exchange(request.push.sequence);
        return reply(seat, {.kind = Reply::Kind::kTaken});
      case Request::Kind::kData:
        if (policy_ || seat.data.size() >= kMostGradients)
          raise<InvalidArgument>("it sends gradients that it does not push");
        seat.data[request.push.sequence] = data_of(seat);
        return reply(seat, {.kind = Reply::Kind::kTaken});
      case Request::Kind::kLeave:
        reply(seat, {.kind = Reply::Kind::kTaken});
        left_.insert(seat.worker);
        if (policy_ && joined_.erase(seat.worker) > 0) decide(policy_->leave(seat.worker));
        return;
      default:
        break;
    }
    if (!policy_) {
      log_warning("worker {} asked this server what only the first one decides", seat.worker);
      return reply(seat, {.kind = Reply::Kind::kDone});
    }
    if (request.kind == Request::Kind::kJoin) {
      waiting_to_join_.push_back(seat.worker);
      return admit_waiting();
    }
    if (!joined_.contains(seat.worker)) return reply(seat, {.kind = Reply::Kind::kDone});
    if (request.kind == Request::Kind::kPush) {
      if (request.push.sequence <= seat.pushed)
        raise<InvalidArgument>("it pushes gradient {} again", request.push.sequence);
      decide(policy_->push(seat.worker, request.push));
      seat.pushed = request.push.sequence;
      seat.data[seat.pushed] = data_of(seat);
    } else {
      decide(policy_->rest(seat.worker));
    }
  }

  void initialise(const Seat& seat) {
    if (initialised_.load()) return;  // a chief that was restarted: training goes on from here
    store_.initialise(data_of(seat));
    initialised_ = true;
    admit_waiting();
  }

  // Nobody begins before there are parameters.
  void admit_waiting() {
    if (!initialised_.load()) return;
    for (const int worker : std::exchange(waiting_to_join_, {})) {
      joined_.insert(worker);
      decide(policy_->join(worker, seats_.find(worker)->incarnation));
    }
  }

  void decide(Decision decision) {
    for (auto& order : decision.orders) {
      for (auto& follower : followers_) tell(follower, order);
      deeds_.emplace_back(std::move(order));
    }
    for (auto& answer : decision.answers) deeds_.emplace_back(std::move(answer));
  }

  void tell(Connection& follower, const Order& order) {
    try {
      send_order(follower, order, Deadline::after(kSending));
    } catch (const PeerLost& error) {
      raise<DataLoss>(
          "parameter server {} is gone, and has lost its parameters: there is no checkpoint to restore them "
          "from ({})",
          1 + (&follower - followers_.data()), error.what());
    }
  }

  void do_deeds() {
    while (!deeds_.empty()) {
      if (const auto* answer = std::get_if<Answer>(&deeds_.front())) {
        give(*answer);
        deeds_.pop_front();
        continue;
      }
      const Order order = std::get<Order>(deeds_.front());
      if (!seats_.are_ready(order)) return;
      deeds_.pop_front();
      carry_out(order);
    }
  }

  void give(const Answer& answer) {
    Seat* seat = seats_.find(answer.worker);
    if (seat == nullptr) return;
    reply(*seat, {.kind = answer.kind == Answer::Kind::kDone ? Reply::Kind::kDone : Reply::Kind::kBegin,
                  .mode = answer.mode,
                  .verdict = answer.verdict,
                  .step = answer.step,
                  .version = answer.version,
                  .staleness = answer.staleness,
                  .loss = answer.loss,
                  .total = answer.total});
  }

  void reply(Seat& seat, const Reply& text) {
    seat.desk->reply = text;
    seat.desk->answered.exchange(seat.seen);
    wake(seat.desk->bell);
  }

  void carry_out(const Order& order) {
    std::vector<ParameterStore::WeightedData> sources;
    for (const auto& source : order.sources) {
      const Seat* seat = seats_.holder_of(source);
      if (seat == nullptr) {
        log_warning("worker {} died before its gradient reached this server: it is left out", source.worker);
        continue;
      }
      sources.push_back({&seat->data.at(source.sequence), source.weight});
    }
    if (order.kind == Order::Kind::kAbsorb) {
      for (const auto& source : sources) store_.absorb(source);
    } else if (order.kind == Order::Kind::kApply) {
      apply(order, std::move(sources));
    }
    seats_.release(order);
  }

  void apply(const Order& order, std::vector<ParameterStore::WeightedData> sources) {
    view_.announced().exchange(order.version);
    wait_for_readers(order.version);
    view_.begun().exchange(order.version);
    // Who waits for this update may follow it while it is being made.
    while (!deeds_.empty() && std::holds_alternative<Answer>(deeds_.front())) {
      give(std::get<Answer>(deeds_.front()));
      deeds_.pop_front();
    }
    store_.apply({.sources = std::move(sources),
                  .divisor = order.divisor,
                  .lr = order.lr,
                  .gradient_scale = order.gradient_scale,
                  .version = order.version},
                 [this](size_t) { wake_workers(); });
    step_ = order.step;
    version_ = order.version;
    wake_workers();
  }

  void wake_workers() {
    for (const auto& [worker, seat] : seats_.all()) wake(seat->desk->bell);
  }

  // Of older versions, also of those who have come just now. Who comes later sees what was announced.
  void wait_for_readers(int64_t version) {
    const auto arrivals = inbox_.arrivals();
    const auto reads = [version](const Seat& seat) {
      const int64_t reading = seat.desk->reading.load();
      return reading != 0 && reading <= version;
    };
    const auto nobody_reads = [&] {
      return std::none_of(seats_.all().begin(), seats_.all().end(),
                          [&](const auto& entry) { return reads(*entry.second); }) &&
             std::none_of(arrivals.begin(), arrivals.end(), [&](const auto& seat) { return reads(*seat); });
    };
    if (nobody_reads()) return;
    const auto until = Clock::now() + options_.reader_patience;
    wait_until(
        door_.bell, patience_, [&] { return nobody_reads() || Clock::now() > until || stopping_.load(); },
        [] {});
  }

  void report_progress() {
    if (is_first()) step_ = policy_->step();
    const MutexLock lock(mutex_);
    progress_.step = step_;
    progress_.version = version_;
    progress_.over = is_over();
    if (const auto now = Clock::now(); policy_ && (joined_.size() != reported_ || now > next_report_)) {
      progress_.report = policy_->report();
      reported_ = joined_.size();
      next_report_ = now + kReports;
    }
  }

  // A worker that died is not done: it may be started again. The first server, to which workers say it last,
  // may have orders for the others until it ends.
  bool is_over() const {
    return left_.size() == static_cast<size_t>(options_.plan.policy.workers) &&
           (is_first() || !has_leader_.load());
  }

  // ---- The other servers.

  void reach_followers() {
    for (int server = 1; server < options_.plan.servers; ++server) {
      const auto deadline = Deadline::after(1min);
      const ServerAddress where = options_.find_server(server, deadline);
      const std::string purpose = orders_purpose(options_.job_id, options_.plan_id);
      followers_.push_back(where.local_name.empty()
                               ? options_.endpoint->connect(where.address, purpose, deadline)
                               : options_.endpoint->connect_local(where.local_name, purpose, deadline));
    }
  }

  void follow() {
    for (;;) {
      Connection first = options_.endpoint->accept(orders_purpose(options_.job_id, options_.plan_id),
                                                   Deadline::never(), [this] { check(); });
      has_leader_ = true;
      try {
        for (;;) inbox_.put(receive_order(first, [this] { check(); }));
      } catch (const PeerLost&) {
        log_debug("the first server is gone");
      }
      has_leader_ = false;
    }
  }

  const Options options_;
  const Placement placement_;
  const std::vector<Slice>& slices_;
  const Patience patience_;
  const std::shared_ptr<Arena> arena_;       // of the parameters: workers only read it
  const std::shared_ptr<Arena> door_arena_;  // of the door: workers ring there
  StoreView view_;
  Door& door_;
  ParameterStore store_;
  Inbox inbox_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> initialised_{false};
  std::atomic<bool> has_leader_{true};  // a follower: the first server may have orders for it

  // Of the thread that works.
  std::optional<UpdatePolicy> policy_;  // of the first server
  Seats seats_;
  std::set<int> joined_;
  std::set<int> left_;  // who has taken its leave, and not come again
  std::vector<int> waiting_to_join_;
  std::deque<Deed> deeds_;
  std::vector<Connection> followers_;
  int64_t step_ = 0;
  int64_t version_ = 0;
  size_t reported_ = 0;  // how many had joined at the last report
  Clock::time_point next_report_;

  mutable Mutex mutex_;
  Progress progress_ MUSTER_GUARDED_BY(mutex_);

  std::optional<Reception> reception_;
  std::vector<std::thread> threads_;
};

ParameterServer::ParameterServer(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
ParameterServer::~ParameterServer() = default;

void ParameterServer::lose(int worker, int incarnation) {
  impl_->lose(worker, incarnation);
}

ParameterServer::Progress ParameterServer::progress() const {
  return impl_->progress();
}

}  // namespace muster
