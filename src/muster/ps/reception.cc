#include "muster/ps/reception.h"

#include <poll.h>

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/net/secret.h"
#include "muster/ps/stopped.h"

namespace muster {
namespace {

using namespace std::chrono_literals;

constexpr auto kHandshake = 5s;
constexpr int kWelcomers = 4;  // so that one who comes and says nothing keeps nobody out
constexpr auto kLook = 50ms;
constexpr uint32_t kMostSockets = 64;

void turn_away(Connection& connection, const std::string& reason) {
  log_warning("refused {}: {}", connection.peer(), reason);
  refuse(connection, reason);
}

}  // namespace

Reception::Reception(Options options) : options_(std::move(options)), boot_(random_number()) {
  for (int i = 0; i < kWelcomers; ++i) start(&Reception::welcome_workers);
  start(&Reception::watch);
}

Reception::~Reception() {
  stopping_ = true;
  for (auto& thread : threads_) thread.join();
}

void Reception::start(void (Reception::*body)()) {
  threads_.emplace_back([this, body, task = log_task()] {
    const ScopedLogTask scope(task);
    try {
      (this->*body)();
    } catch (const Stopped&) {
    } catch (...) {
      options_.inbox.put(std::current_exception());
    }
  });
}

void Reception::check() const {
  if (stopping_.load()) throw Stopped{};
}

void Reception::close(const std::shared_ptr<Seat>& seat) {
  {
    const MutexLock lock(mutex_);
    const auto watched = watched_.find(seat->worker);
    if (watched != watched_.end() && watched->second.seat == seat) watched_.erase(watched);
    const auto remote = remotes_.find(seat->worker);
    if (remote != remotes_.end() && remote->second.remote == seat->remote) remotes_.erase(remote);
  }
  if (seat->remote) seat->remote->close();
}

void Reception::welcome_workers() {
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

void Reception::welcome(Connection connection) {
  const auto deadline = Deadline::after(kHandshake);
  Hello hello;
  connection.receive(&hello, sizeof(hello), deadline, [this] { check(); });
  std::shared_ptr<Arena> arena;
  if (hello.shares_memory != 0) arena = Arena::open(connection.receive_descriptor(deadline));
  if (const std::string reason = why_not(hello); !reason.empty()) return turn_away(connection, reason);
  if (hello.shares_memory != 0) {
    welcome_here(std::move(connection), hello, std::move(arena), deadline);
  } else {
    welcome_remote(std::move(connection), hello, deadline);
  }
}

std::string Reception::why_not(const Hello& hello) {
  if (hello.version != kWireVersion) return "the parameter server is of another build of Muster";
  if (hello.plan != options_.plan.fingerprint())
    return "the parameter servers train another model, or in another way";
  if (hello.worker < 0 || hello.worker >= options_.plan.policy.workers)
    return fmt::format("this job has no worker {}", hello.worker);
  if (hello.sockets < 1 || hello.sockets > kMostSockets)
    return fmt::format("worker {} wants {} sockets; expected 1 to {}", hello.worker, hello.sockets,
                       kMostSockets);
  const MutexLock lock(mutex_);
  int& newest = newest_.try_emplace(hello.worker, hello.incarnation).first->second;
  if (hello.incarnation < newest)
    return fmt::format("worker {} was started again: this is an older one", hello.worker);
  newest = hello.incarnation;
  return "";
}

void Reception::welcome_here(Connection connection, const Hello& hello, std::shared_ptr<Arena> arena,
                             Deadline deadline) {
  const size_t bytes = Desk::bytes(options_.slices.size());
  if (hello.desk % 64 != 0 || hello.desk > arena->capacity() || arena->capacity() - hello.desk < bytes)
    return turn_away(connection, "the desk lies outside of the arena");
  auto seat = std::make_shared<Seat>(Seat{.worker = hello.worker,
                                          .incarnation = hello.incarnation,
                                          .desk = reinterpret_cast<Desk*>(arena->at(hello.desk)),
                                          .base = arena->at(0),
                                          .capacity = arena->capacity(),
                                          .arena = arena});
  const Welcome welcome = {.initialised = options_.initialised.load() ? 1U : 0U,
                           .boot = boot_,
                           .store = options_.arena.offset_of(&options_.view.begun()),
                           .door = options_.door_arena.offset_of(&options_.door)};
  connection.send(&welcome, sizeof(welcome), deadline);
  connection.send_descriptor(options_.arena.fd(), deadline);
  connection.send_descriptor(options_.door_arena.fd(), deadline);
  const MutexLock lock(mutex_);
  watched_[hello.worker] = {std::move(connection), seat};
  options_.inbox.put(std::move(seat));
}

std::shared_ptr<RemoteWorker> Reception::known_remote(const Hello& hello) const {
  const MutexLock lock(mutex_);
  const auto found = remotes_.find(hello.worker);
  return found != remotes_.end() && found->second.incarnation == hello.incarnation ? found->second.remote
                                                                                   : nullptr;
}

void Reception::welcome_remote(Connection connection, const Hello& hello, Deadline deadline) {
  std::shared_ptr<RemoteWorker> remote = known_remote(hello);
  const bool again = remote != nullptr;
  if (again) {
    remote->detach();  // what it has received is counted now
  } else {
    remote =
        std::make_shared<RemoteWorker>(RemoteWorker::Options{.name = fmt::format("worker {}", hello.worker),
                                                             .view = options_.view,
                                                             .door = options_.door,
                                                             .slices = options_.slices,
                                                             .wire = options_.plan.wire,
                                                             .patience = options_.patience});
  }
  const Welcome welcome = {.initialised = options_.initialised.load() ? 1U : 0U,
                           .boot = boot_,
                           .posted = remote->desk().posted.load(),
                           .answered = remote->desk().answered.load()};
  connection.send(&welcome, sizeof(welcome), deadline);
  std::vector<Connection> connections;
  connections.push_back(std::move(connection));
  for (uint32_t i = 1; i < hello.sockets; ++i)
    connections.push_back(options_.endpoint->accept(more_purpose(options_.job_id, options_.plan_id, hello, i),
                                                    deadline, [this] { check(); }));
  if (!again) {
    auto seat = std::make_shared<Seat>(Seat{.worker = hello.worker,
                                            .incarnation = hello.incarnation,
                                            .desk = &remote->desk(),
                                            .base = remote->base(),
                                            .capacity = remote->capacity(),
                                            .remote = remote});
    const MutexLock lock(mutex_);
    remotes_[hello.worker] = {remote, hello.incarnation};
    options_.inbox.put(std::move(seat));
  }
  // Only now: it reads as soon as it is attached, and an update waits for those it knows of.
  remote->attach(std::make_unique<Stream>(std::move(connections), options_.encrypted));
}

void Reception::watch() {
  for (;;) {
    check();
    std::vector<pollfd> waits;
    std::vector<std::shared_ptr<Seat>> who;
    {
      const MutexLock lock(mutex_);
      for (const auto& [worker, watched] : watched_) {
        waits.push_back({.fd = watched.connection.fd(), .events = POLLIN, .revents = 0});
        who.push_back(watched.seat);
      }
    }
    poll(waits.data(), waits.size(), static_cast<int>(std::chrono::milliseconds(kLook).count()));
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      const auto found = watched_.find(who[i]->worker);
      if (found == watched_.end() || found->second.seat != who[i]) continue;
      watched_.erase(found);  // whatever it says, it should not
      options_.inbox.put(Inbox::Loss{who[i]->worker, who[i]->incarnation});
    }
  }
}

}  // namespace muster
