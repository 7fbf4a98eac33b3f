#include "muster/ps/server/acceptor.h"

#include <poll.h>

#include <algorithm>

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/random.h"
#include "muster/base/start_thread.h"
#include "muster/ps/stopped.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 50ms;
constexpr uint32_t kMostSockets = 64;

}  // namespace

Acceptor::Acceptor(Options options) : options_(std::move(options)), instance_(random_number()) {
  start(&Acceptor::accept_workers);
  start(&Acceptor::watch);
}

Acceptor::~Acceptor() {
  stopping_ = true;
  for (auto& thread : threads_) thread.join();
  for (auto& handshake : handshakes_) handshake.thread.join();
}

void Acceptor::start(void (Acceptor::*body)()) {
  threads_.push_back(start_thread([this, body] {
    try {
      (this->*body)();
    } catch (const Stopped&) {
    } catch (...) {
      options_.events.put(std::current_exception());
    }
  }));
}

void Acceptor::check() const {
  if (stopping_.load()) throw Stopped{};
}

void Acceptor::close(const std::shared_ptr<Session>& session) {
  {
    const MutexLock lock(mutex_);
    const auto watched = watched_.find(session->worker);
    if (watched != watched_.end() && watched->second.session == session) watched_.erase(watched);
    const auto remote = remotes_.find(session->worker);
    if (remote != remotes_.end() && remote->second.remote == session->remote) remotes_.erase(remote);
  }
  if (session->remote) session->remote->close();
}

void Acceptor::give_up(const Session& session) {
  const MutexLock lock(mutex_);
  Newest& newest = newest_[session.worker];
  newest.given_up = newest.given_up || newest.incarnation == session.incarnation;
}

void Acceptor::accept_workers() {
  const std::string channel_name = worker_channel_name(options_.job_id, options_.model_id);
  for (;;) {
    Connection connection = options_.endpoint->accept(channel_name, Deadline::never(), [this] { check(); });
    handshakes_.remove_if([](Handshake& handshake) {
      if (!handshake.over) return false;
      handshake.thread.join();
      return true;
    });
    Handshake& handshake = handshakes_.emplace_back();
    handshake.connection = std::move(connection);
    handshake.thread = start_thread([this, &handshake] {
      shake_hands(handshake);
      handshake.over = true;
    });
  }
}

void Acceptor::shake_hands(Handshake& handshake) {
  try {
    accept(std::move(handshake.connection));
  } catch (const Stopped&) {
  } catch (const Error& error) {
    warn(fmt::format("a worker could not be accepted: {}", error.what()));
  } catch (...) {
    options_.events.put(std::current_exception());
  }
}

// One that is refused may try again, and again.
void Acceptor::warn(const std::string& text) {
  const MutexLock lock(mutex_);
  if (warnings_.allows(Deadline::Clock::now())) log_warning("{}{}", text, warnings_.left_out());
}

void Acceptor::reject(Connection& connection, const std::string& reason) {
  warn(fmt::format("refused {}: {}", connection.peer(), reason));
  refuse(connection, reason);
}

void Acceptor::accept(Connection connection) {
  const auto check = [this] { this->check(); };
  Hello hello;
  connection.receive(&hello, sizeof(hello), Deadline::never(), check);
  std::shared_ptr<Arena> arena;
  if (hello.shares_memory != 0) arena = Arena::open(connection.receive_descriptor(Deadline::never(), check));
  if (const std::string reason = reason_to_reject(hello); !reason.empty()) return reject(connection, reason);
  if (hello.shares_memory != 0) {
    accept_local(std::move(connection), hello, arena);
  } else {
    accept_remote(std::move(connection), hello);
  }
}

std::string Acceptor::reason_to_reject(const Hello& hello) {
  if (hello.version != kSessionProtocolVersion) return "the parameter server is of another build of Muster";
  if (hello.spec != options_.spec.fingerprint())
    return "the parameter servers train another model, or in another way";
  if (hello.worker < 0 || hello.worker >= options_.spec.policy.workers)
    return fmt::format("this job has no worker/{}", hello.worker);
  if (hello.sockets < 1 || hello.sockets > kMostSockets)
    return fmt::format("worker/{} wants {} sockets; expected 1 to {}", hello.worker, hello.sockets,
                       kMostSockets);
  const MutexLock lock(mutex_);
  Newest& newest = newest_[hello.worker];
  if (hello.incarnation < newest.incarnation)
    return fmt::format("worker/{} was started again: this is an older one", hello.worker);
  if (hello.incarnation > newest.incarnation) newest = {.incarnation = hello.incarnation};
  if (newest.given_up) return fmt::format("it took worker/{} for dead, and goes on without it", hello.worker);
  return "";
}

void Acceptor::accept_local(Connection connection, const Hello& hello, const std::shared_ptr<Arena>& arena) {
  const size_t bytes = SessionSlot::bytes(options_.view.layout().size());
  if (hello.slot % 64 != 0 || hello.slot > arena->capacity() || arena->capacity() - hello.slot < bytes)
    return reject(connection, "its session slot lies outside of the arena");
  auto session =
      std::make_shared<Session>(Session{.worker = hello.worker,
                                        .incarnation = hello.incarnation,
                                        .slot = reinterpret_cast<SessionSlot*>(arena->at(hello.slot)),
                                        .base = arena->at(0),
                                        .capacity = arena->capacity(),
                                        .arena = arena});
  const Welcome welcome = {.initialised = options_.initialised.load() ? 1U : 0U,
                           .instance = instance_,
                           .store = options_.arena.offset_of(&options_.view.begun()),
                           .doorbell = options_.doorbell_arena.offset_of(&options_.doorbell)};
  const auto check = [this] { this->check(); };
  connection.send(&welcome, sizeof(welcome), Deadline::never(), check);
  connection.send_descriptor(options_.arena.fd(), Deadline::never(), check);
  connection.send_descriptor(options_.doorbell_arena.fd(), Deadline::never(), check);
  const MutexLock lock(mutex_);
  watched_[hello.worker] = {std::move(connection), session};
  options_.events.put(std::move(session));
}

std::shared_ptr<RemoteWorker> Acceptor::known_remote(const Hello& hello) const {
  const MutexLock lock(mutex_);
  const auto found = remotes_.find(hello.worker);
  return found != remotes_.end() && found->second.incarnation == hello.incarnation ? found->second.remote
                                                                                   : nullptr;
}

void Acceptor::accept_remote(Connection connection, const Hello& hello) {
  std::shared_ptr<RemoteWorker> remote = known_remote(hello);
  const bool again = remote != nullptr;
  if (again) {
    remote->detach();  // what it has received is counted now
  } else {
    remote =
        std::make_shared<RemoteWorker>(RemoteWorker::Options{.name = fmt::format("worker/{}", hello.worker),
                                                             .view = options_.view,
                                                             .doorbell = options_.doorbell,
                                                             .spec = options_.spec,
                                                             .spin_policy = options_.spin_policy});
  }
  const Welcome welcome = {.initialised = options_.initialised.load() ? 1U : 0U,
                           .instance = instance_,
                           .posted = remote->slot().posted.load(),
                           .answered = remote->slot().answered.load()};
  connection.send(&welcome, sizeof(welcome), Deadline::never(), [this] { check(); });
  std::vector<Connection> connections;
  connections.push_back(std::move(connection));
  const auto check_first = [&] {
    check();
    if (connections.front().is_closed()) raise<PeerLost>("worker/{} went away", hello.worker);
  };
  for (uint32_t i = 1; i < hello.sockets; ++i)
    connections.push_back(options_.endpoint->accept(
        socket_channel_name(options_.job_id, options_.model_id, hello, i), Deadline::never(), check_first));
  if (!again) {
    auto session = std::make_shared<Session>(Session{.worker = hello.worker,
                                                     .incarnation = hello.incarnation,
                                                     .slot = &remote->slot(),
                                                     .base = remote->base(),
                                                     .capacity = remote->capacity(),
                                                     .remote = remote});
    const MutexLock lock(mutex_);
    remotes_[hello.worker] = {remote, hello.incarnation};
    options_.events.put(std::move(session));
  }
  // Only now: it reads as soon as it is attached, and an update waits for those it knows of.
  remote->attach(std::make_unique<BlockingLink>(std::move(connections), options_.encrypted));
}

void Acceptor::watch() {
  for (;;) {
    check();
    std::vector<pollfd> waits;
    std::vector<std::shared_ptr<Session>> who;
    {
      const MutexLock lock(mutex_);
      for (const auto& [worker, watched] : watched_) {
        waits.push_back({.fd = watched.connection.fd(), .events = POLLIN, .revents = 0});
        who.push_back(watched.session);
      }
    }
    poll(waits.data(), waits.size(), static_cast<int>(std::chrono::milliseconds(kLook).count()));
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      const auto found = watched_.find(who[i]->worker);
      if (found == watched_.end() || found->second.session != who[i]) continue;
      watched_.erase(found);  // whatever it says, it should not
      options_.events.put(EventQueue::Failure{who[i]->worker, who[i]->incarnation});
    }
  }
}

}  // namespace muster::detail
