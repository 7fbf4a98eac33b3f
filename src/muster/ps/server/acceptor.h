#pragma once

// Accepts the connections of workers. Each says who it is, and gets a session when it belongs here: with a
// slot in its own shared memory on this host, else with a RemoteWorker, which it finds again after its link
// broke. Watches the workers of this host: the end of a process is the end of its connection.
//
// Whoever connects knows the job's secret, and may take its time: each handshake has a thread of its own, and
// keeps nobody else out.
//
// New sessions and failures go to the event queue. Its threads live as long as it, those of handshakes until
// these are over; what ends one of the former goes to the event queue too. close() may be called by any
// thread, and waits for the threads of a RemoteWorker.

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/log_limit.h"
#include "muster/base/mutex.h"
#include "muster/net/endpoint.h"
#include "muster/ps/model_spec.h"
#include "muster/ps/server/event_queue.h"
#include "muster/ps/session_protocol.h"

namespace muster::detail {

class Acceptor {
 public:
  struct Options {
    std::shared_ptr<Endpoint> endpoint;
    std::string job_id;
    std::string model_id;
    const ModelSpec& spec;
    bool encrypted = false;
    const StoreView& view;
    const Arena& arena;  ///< of the view
    Doorbell& doorbell;
    const Arena& doorbell_arena;
    const std::atomic<bool>& initialised;
    SpinPolicy spin_policy;
    EventQueue& events;
  };

  explicit Acceptor(Options options);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  /// This session's worker is gone, or done with: nothing more comes from it.
  void close(const std::shared_ptr<Session>& session);

  /// From now on this session's worker is refused when it comes again, unless it is a later incarnation: the
  /// others go on without it.
  void give_up(const Session& session);

 private:
  struct Newest {
    int incarnation = 0;
    bool given_up = false;
  };
  struct Watched {
    Connection connection;
    std::shared_ptr<Session> session;
  };
  struct Remote {
    std::shared_ptr<RemoteWorker> remote;
    int incarnation = 0;
  };

  /// Of one connection, and its thread.
  struct Handshake {
    Connection connection;
    std::atomic<bool> over{false};
    std::thread thread;
  };

  void start(void (Acceptor::*body)());
  void check() const;
  void accept_workers();
  void shake_hands(Handshake& handshake);
  void accept(Connection connection);
  std::string reason_to_reject(const Hello& hello);
  void warn(const std::string& text);
  void reject(Connection& connection, const std::string& reason);
  void accept_local(Connection connection, const Hello& hello, const std::shared_ptr<Arena>& arena);
  void accept_remote(Connection connection, const Hello& hello);
  std::shared_ptr<RemoteWorker> known_remote(const Hello& hello) const;
  void watch();

  const Options options_;
  const uint64_t instance_;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  std::map<int, Watched> watched_ MUSTER_GUARDED_BY(mutex_);
  std::map<int, Remote> remotes_ MUSTER_GUARDED_BY(mutex_);
  std::map<int, Newest> newest_ MUSTER_GUARDED_BY(mutex_);  // of each worker's incarnations
  LogLimit warnings_ MUSTER_GUARDED_BY(mutex_);
  std::list<Handshake> handshakes_;  // of the thread that accepts, until it has ended
  std::vector<std::thread> threads_;
};

}  // namespace muster::detail
