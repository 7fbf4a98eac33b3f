#include "muster/ps/server.h"

#include <poll.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <variant>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/net/arena.h"
#include "muster/net/secret.h"
#include "muster/optim/rules.h"
#include "muster/ps/order_link.h"
#include "muster/ps/parameter_store.h"
#include "muster/ps/remote_worker.h"
#include "muster/ps/wire.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;

constexpr auto kHandshake = 5s;
constexpr int kWelcomers = 4;    // so that one who comes and says nothing keeps nobody out
constexpr auto kReconnect = 1s;  // a link that breaks may come back within
constexpr int kMostThreads = 4;
constexpr size_t kMostGradients =
    2;  // of a worker that wait for an order: as many as a RemoteWorker has room for
constexpr auto kLook = 50ms;
constexpr uint32_t kMostSockets = 64;

struct Stopped {};

int cores() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

uint64_t random_number() {
  const std::string bytes = random_bytes(sizeof(uint64_t));
  uint64_t number = 0;
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(&number));
  return number;
}

}  // namespace

class ParameterServer::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        placement_(options_.plan.variables, options_.plan.servers, options_.plan.placement),
        slices_(placement_.slices(options_.server)),
        patience_(Patience::of(options_.plan.policy.workers + options_.plan.servers, cores())),
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
                .threads = std::min(kMostThreads, cores())},
               view_),
        boot_(random_number()) {
    if (is_first()) policy_.emplace(options_.plan.policy);
    const auto run = [this, task = log_task()](void (Impl::*body)()) {
      const ScopedLogTask scope(task);
      try {
        (this->*body)();
      } catch (const Stopped&) {
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        progress_.failure = error.what();
      }
    };
    threads_.emplace_back(run, &Impl::work);
    for (int i = 0; i < kWelcomers; ++i) threads_.emplace_back(run, &Impl::welcome_workers);
    threads_.emplace_back(run, &Impl::watch);
    if (!is_first()) threads_.emplace_back(run, &Impl::follow);
  }

  ~Impl() {
    stopping_.exchange(true);
    wake(door_.bell);
    for (auto& thread : threads_) thread.join();
  }

  void lose(int worker, int incarnation) {
    const std::lock_guard lock(mutex_);
    losses_.push_back({worker, incarnation});
    ring();
  }

  Progress progress() const {
    const std::lock_guard lock(mutex_);
    return progress_;
  }

 private:
  // A worker's place at this server.
  struct Seat {
    int worker = 0;
    int incarnation = 0;
    Desk* desk = nullptr;
    const std::byte* base = nullptr;  // of its places
    size_t capacity = 0;
    std::shared_ptr<Arena> arena;          // on this host; or
    std::shared_ptr<RemoteWorker> remote;  // on another
    uint64_t seen = 0;                     // requests
    uint64_t pushed = 0;                   // the last sequence
    std::map<uint64_t, SliceData> data;    // of pushes that have not been used up, by sequence
  };
  struct Loss {
    int worker = 0;
    int incarnation = 0;
  };
  using Deed = std::variant<Order, Answer>;

  bool is_first() const { return options_.server == 0; }

  void check() const {
    if (stopping_.load()) throw Stopped{};
  }

  // mutex_ is held, or nothing else would tell the thread that works.
  void ring() {
    ++inbox_;
    wake(door_.bell);
  }

  // ---- The thread that works.

  void work() {
    if (is_first()) reach_followers();
    for (;;) {
      wait_until(
          door_.bell, patience_, [this] { return stopping_.load() || has_work(); },
          [this] { notice_gone(); });
      check();
      take_inbox();
      take_requests();
      do_deeds();
      report_progress();
    }
  }

  // A worker that asks what makes no sense is done with.
  void take_requests() {
    std::vector<int> confused;
    for (auto& [worker, seat] : seats_) {
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
    return inbox_.load() != taken_ || std::any_of(seats_.begin(), seats_.end(), [](const auto& entry) {
             return entry.second->desk->posted.load() != entry.second->seen;
           });
  }

  void take_inbox() {
    std::vector<std::shared_ptr<Seat>> arrivals;
    std::vector<Loss> losses;
    std::vector<Order> orders;
    {
      const std::lock_guard lock(mutex_);
      taken_ = inbox_.load();
      arrivals.swap(arrivals_);
      losses.swap(losses_);
      orders.swap(orders_);
    }
    for (const auto& loss : losses) {
      const auto found = seats_.find(loss.worker);
      if (found == seats_.end()) {
        lose_in_policy(loss.worker);
      } else if (found->second->incarnation <= loss.incarnation) {
        remove(loss.worker);
      }
    }
    for (auto& seat : arrivals) {
      if (seats_.contains(seat->worker)) remove(seat->worker);
      seats_[seat->worker] = std::move(seat);
    }
    for (auto& order : orders) deeds_.emplace_back(std::move(order));
  }

  // Links of other hosts that are gone for good.
  void notice_gone() {
    std::vector<int> gone;
    for (const auto& [worker, seat] : seats_) {
      if (!seat->remote) continue;
      const auto since = seat->remote->gone_since();
      if (since && Clock::now() - *since > kReconnect) gone.push_back(worker);
    }
    for (const int worker : gone) remove(worker);
    if (!gone.empty()) do_deeds();
  }

  void remove(int worker) {
    const auto found = seats_.find(worker);
    if (found == seats_.end()) return;
    const auto seat = found->second;
    left_.insert_or_assign(worker, seat->incarnation);
    // What it pushed before still counts; its memory stays until then.
    if (!seat->data.empty()) estates_.push_back(seat);
    seats_.erase(found);
    {
      const std::lock_guard lock(mutex_);
      if (const auto watched = watched_.find(worker);
          watched != watched_.end() && watched->second.seat == seat)
        watched_.erase(watched);
      if (const auto remote = remotes_.find(worker);
          remote != remotes_.end() && remote->second.remote == seat->remote)
        remotes_.erase(remote);
    }
    if (seat->remote) seat->remote->close();
    std::erase_if(waiting_to_join_, [&](int waiting) { return waiting == worker; });
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
      decide(policy_->join(worker, seats_.at(worker)->incarnation));
    }
  }

  void decide(Decision decision) {
    for (auto& order : decision.orders) {
      for (auto& follower : followers_) send_order(follower, order, Deadline::after(kHandshake));
      deeds_.emplace_back(std::move(order));
    }
    for (auto& answer : decision.answers) deeds_.emplace_back(std::move(answer));
  }

  void do_deeds() {
    while (!deeds_.empty()) {
      if (const auto* answer = std::get_if<Answer>(&deeds_.front())) {
        give(*answer);
        deeds_.pop_front();
        continue;
      }
      const Order order = std::get<Order>(deeds_.front());
      if (!has_data(order)) return;
      deeds_.pop_front();
      carry_out(order);
    }
  }

  void give(const Answer& answer) {
    const auto seat = seats_.find(answer.worker);
    if (seat == seats_.end()) return;
    reply(*seat->second,
          {.kind = answer.kind == Answer::Kind::kDone ? Reply::Kind::kDone : Reply::Kind::kBegin,
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

  // The seat that has these gradients, be its worker still here or not.
  Seat* holder_of(const Source& source) {
    const auto has = [&](const Seat& seat) {
      return seat.worker == source.worker && seat.incarnation == source.incarnation &&
             seat.data.contains(source.sequence);
    };
    const auto found = seats_.find(source.worker);
    if (found != seats_.end() && has(*found->second)) return found->second.get();
    for (const auto& estate : estates_) {
      if (has(*estate)) return estate.get();
    }
    return nullptr;
  }

  // It will not come any more.
  bool is_gone(const Source& source) const {
    const auto seat = seats_.find(source.worker);
    if (seat != seats_.end()) return seat->second->incarnation > source.incarnation;
    const auto left = left_.find(source.worker);
    return left != left_.end() && left->second >= source.incarnation;
  }

  // On the servers that follow, an order may come before the gradients that it is about.
  bool has_data(const Order& order) {
    return std::all_of(order.sources.begin(), order.sources.end(), [this](const Source& source) {
      return holder_of(source) != nullptr || is_gone(source);
    });
  }

  void carry_out(const Order& order) {
    std::vector<ParameterStore::WeightedData> sources;
    std::vector<std::pair<Seat*, uint64_t>> used;
    for (const auto& source : order.sources) {
      Seat* seat = holder_of(source);
      if (seat == nullptr) {
        log_warning("worker {} died before its gradient reached this server: it is left out", source.worker);
        continue;
      }
      sources.push_back({&seat->data.at(source.sequence), source.weight});
      used.emplace_back(seat, source.sequence);
    }
    if (order.kind == Order::Kind::kAbsorb) {
      for (const auto& source : sources) store_.absorb(source);
    } else if (order.kind == Order::Kind::kApply) {
      apply(order, std::move(sources));
    }
    for (const auto& [seat, sequence] : used) {
      seat->data.erase(sequence);
      seat->desk->consumed.exchange(sequence);
      wake(seat->desk->bell);
    }
    std::erase_if(estates_, [&](const auto& estate) {
      return estate->data.empty() ||
             std::any_of(order.sources.begin(), order.sources.end(), [&](const Source& source) {
               return source.worker == estate->worker && source.incarnation > estate->incarnation;
             });
    });
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
    for (const auto& [worker, seat] : seats_) wake(seat->desk->bell);
  }

  // Of older versions, also of those who have come just now. Who comes later sees what was announced.
  void wait_for_readers(int64_t version) {
    std::vector<std::shared_ptr<Seat>> arrivals;
    {
      const std::lock_guard lock(mutex_);
      arrivals = arrivals_;
    }
    const auto reads = [version](const Seat& seat) {
      const int64_t reading = seat.desk->reading.load();
      return reading != 0 && reading <= version;
    };
    const auto nobody_reads = [&] {
      return std::none_of(seats_.begin(), seats_.end(),
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
    const std::lock_guard lock(mutex_);
    progress_.step = step_;
    progress_.version = version_;
    if (policy_ && joined_.size() != reported_) {
      progress_.report = policy_->report();
      reported_ = joined_.size();
    }
  }

  // ---- Those who come.

  void welcome_workers() {
    const std::string purpose = worker_purpose(options_.job_id, options_.plan_id);
    for (;;) {
      Connection connection = options_.endpoint->accept(purpose, Deadline::never(), [this] { check(); });
      try {
        welcome(std::move(connection));
      } catch (const Error& error) {
        log_warning("a worker could not be welcomed: {}", error.what());
      }
    }
  }

  void welcome(Connection connection) {
    const auto deadline = Deadline::after(kHandshake);
    const auto checks = [this] { check(); };
    Hello hello;
    connection.receive(&hello, sizeof(hello), deadline, checks);
    std::shared_ptr<Arena> arena;
    if (hello.shares_memory != 0) arena = Arena::open(connection.receive_descriptor(deadline));
    if (const std::string reason = why_not(hello); !reason.empty()) return turn_away(connection, reason);
    if (hello.shares_memory != 0) {
      welcome_here(std::move(connection), hello, std::move(arena), deadline);
    } else {
      welcome_remote(std::move(connection), hello, deadline);
    }
  }

  std::string why_not(const Hello& hello) {
    if (hello.version != kWireVersion) return "the parameter server is of another build of Muster";
    if (hello.plan != options_.plan.fingerprint())
      return "the parameter servers train another model, or in another way";
    if (hello.worker < 0 || hello.worker >= options_.plan.policy.workers)
      return fmt::format("this job has no worker {}", hello.worker);
    if (hello.sockets < 1 || hello.sockets > kMostSockets)
      return fmt::format("worker {} wants {} sockets; expected 1 to {}", hello.worker, hello.sockets,
                         kMostSockets);
    const std::lock_guard lock(mutex_);
    int& newest = newest_.try_emplace(hello.worker, hello.incarnation).first->second;
    if (hello.incarnation < newest)
      return fmt::format("worker {} was started again: this is an older one", hello.worker);
    newest = hello.incarnation;
    return "";
  }

  static void turn_away(Connection& connection, const std::string& reason) {
    log_warning("refused {}: {}", connection.peer(), reason);
    refuse(connection, reason);
  }

  void welcome_here(Connection connection, const Hello& hello, std::shared_ptr<Arena> arena,
                    Deadline deadline) {
    auto seat = std::make_shared<Seat>(Seat{.worker = hello.worker, .incarnation = hello.incarnation});
    seat->arena = std::move(arena);
    const size_t bytes = Desk::bytes(slices_.size());
    if (hello.desk % 64 != 0 || hello.desk > seat->arena->capacity() ||
        seat->arena->capacity() - hello.desk < bytes)
      return turn_away(connection, "the desk lies outside of the arena");
    seat->base = seat->arena->at(0);
    seat->capacity = seat->arena->capacity();
    seat->desk = reinterpret_cast<Desk*>(seat->arena->at(hello.desk));
    const Welcome welcome = {.initialised = initialised_.load() ? 1U : 0U,
                             .boot = boot_,
                             .store = arena_->offset_of(static_cast<void*>(&view_.begun())),
                             .door = door_arena_->offset_of(&door_)};
    connection.send(&welcome, sizeof(welcome), deadline);
    connection.send_descriptor(arena_->fd(), deadline);
    connection.send_descriptor(door_arena_->fd(), deadline);
    const std::lock_guard lock(mutex_);
    watched_[hello.worker] = {std::move(connection), seat};
    arrivals_.push_back(std::move(seat));
    ring();
  }

  void welcome_remote(Connection connection, const Hello& hello, Deadline deadline) {
    std::shared_ptr<RemoteWorker> remote;
    {
      const std::lock_guard lock(mutex_);
      const auto found = remotes_.find(hello.worker);
      if (found != remotes_.end() && found->second.incarnation == hello.incarnation)
        remote = found->second.remote;
    }
    const bool again = remote != nullptr;
    if (again) {
      remote->detach();  // what it has received is counted now
    } else {
      remote =
          std::make_shared<RemoteWorker>(RemoteWorker::Options{.name = fmt::format("worker {}", hello.worker),
                                                               .view = view_,
                                                               .door = door_,
                                                               .slices = slices_,
                                                               .wire = options_.plan.wire,
                                                               .patience = patience_});
    }
    const Welcome welcome = {.initialised = initialised_.load() ? 1U : 0U,
                             .boot = boot_,
                             .posted = remote->desk().posted.load(),
                             .answered = remote->desk().answered.load()};
    connection.send(&welcome, sizeof(welcome), deadline);
    std::vector<Connection> connections;
    connections.push_back(std::move(connection));
    for (uint32_t i = 1; i < hello.sockets; ++i)
      connections.push_back(options_.endpoint->accept(
          more_purpose(options_.job_id, options_.plan_id, hello, i), deadline, [this] { check(); }));
    if (!again) {
      auto seat = std::make_shared<Seat>(Seat{.worker = hello.worker,
                                              .incarnation = hello.incarnation,
                                              .desk = &remote->desk(),
                                              .base = remote->base(),
                                              .capacity = remote->capacity(),
                                              .remote = remote});
      const std::lock_guard lock(mutex_);
      remotes_[hello.worker] = {remote, hello.incarnation};
      arrivals_.push_back(std::move(seat));
      ring();
    }
    // Only now: it reads as soon as it is attached, and an update waits for those it knows of.
    remote->attach(std::make_unique<Stream>(std::move(connections), options_.encrypted));
  }

  // Notices the end of workers on this host.
  void watch() {
    for (;;) {
      check();
      std::vector<pollfd> waits;
      std::vector<std::shared_ptr<Seat>> who;
      {
        const std::lock_guard lock(mutex_);
        for (const auto& [worker, watched] : watched_) {
          waits.push_back({.fd = watched.connection.fd(), .events = POLLIN, .revents = 0});
          who.push_back(watched.seat);
        }
      }
      poll(waits.data(), waits.size(), static_cast<int>(std::chrono::milliseconds(kLook).count()));
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < waits.size(); ++i) {
        if (waits[i].revents == 0) continue;
        const auto found = watched_.find(who[i]->worker);
        if (found == watched_.end() || found->second.seat != who[i]) continue;
        watched_.erase(found);  // whatever it says, it should not
        losses_.push_back({who[i]->worker, who[i]->incarnation});
        ring();
      }
    }
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
      try {
        for (;;) {
          Order order = receive_order(first, [this] { check(); });
          const std::lock_guard lock(mutex_);
          orders_.push_back(std::move(order));
          ring();
        }
      } catch (const PeerLost&) {
        log_debug("the first server is gone");
      }
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
  const uint64_t boot_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> initialised_{false};

  // Of the thread that works.
  std::optional<UpdatePolicy> policy_;  // of the first server
  std::map<int, std::shared_ptr<Seat>> seats_;
  std::vector<std::shared_ptr<Seat>>
      estates_;              // of workers that are gone, with gradients that are not used yet
  std::map<int, int> left_;  // the last incarnation of workers that are gone
  std::set<int> joined_;
  std::vector<int> waiting_to_join_;
  std::deque<Deed> deeds_;
  std::vector<Connection> followers_;
  int64_t step_ = 0;
  int64_t version_ = 0;
  size_t reported_ = 0;
  uint64_t taken_ = 0;  // of the inbox

  struct Watched {
    Connection connection;
    std::shared_ptr<Seat> seat;
  };
  struct Remote {
    std::shared_ptr<RemoteWorker> remote;
    int incarnation = 0;
  };
  mutable std::mutex mutex_;
  std::atomic<uint64_t> inbox_{0};  // grows with what follows, protected by mutex_
  std::vector<std::shared_ptr<Seat>> arrivals_;
  std::vector<Loss> losses_;
  std::vector<Order> orders_;
  std::map<int, Watched> watched_;  // protected by mutex_
  std::map<int, Remote> remotes_;   // protected by mutex_
  std::map<int, int> newest_;       // incarnation of each worker that has come; protected by mutex_
  Progress progress_;               // protected by mutex_

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
