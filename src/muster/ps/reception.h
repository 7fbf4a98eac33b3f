#pragma once

// Where workers come to a server. Each says who it is, and gets a seat when it belongs here: with a desk in
// its own shared memory on this host, else with a RemoteWorker, which it finds again after its link broke.
// Watches the workers of this host: the end of a process is the end of its connection.
//
// Arrivals and losses go to the inbox. Its threads live as long as it; what ends one of them goes to the
// inbox too. close() may be called by any thread, and waits for the threads of a RemoteWorker.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/net/endpoint.h"
#include "muster/ps/inbox.h"
#include "muster/ps/plan.h"
#include "muster/ps/wire.h"

namespace muster {

class Reception {
 public:
  struct Options {
    std::shared_ptr<Endpoint> endpoint;
    std::string job_id;
    std::string plan_id;
    const ServerPlan& plan;
    bool encrypted = false;
    const std::vector<Slice>& slices;
    const StoreView& view;
    const Arena& arena;  ///< of the view
    Door& door;
    const Arena& door_arena;
    const std::atomic<bool>& initialised;
    Patience patience;
    Inbox& inbox;
  };

  explicit Reception(Options options);
  ~Reception();
  Reception(const Reception&) = delete;
  Reception& operator=(const Reception&) = delete;

  /// This seat's worker is gone, or done with: nothing more comes from it.
  void close(const std::shared_ptr<Seat>& seat);

 private:
  struct Watched {
    Connection connection;
    std::shared_ptr<Seat> seat;
  };
  struct Remote {
    std::shared_ptr<RemoteWorker> remote;
    int incarnation = 0;
  };

  void start(void (Reception::*body)());
  void check() const;
  void welcome_workers();
  void welcome(Connection connection);
  std::string why_not(const Hello& hello);
  void welcome_here(Connection connection, const Hello& hello, std::shared_ptr<Arena> arena,
                    Deadline deadline);
  void welcome_remote(Connection connection, const Hello& hello, Deadline deadline);
  std::shared_ptr<RemoteWorker> known_remote(const Hello& hello) const;
  void watch();

  const Options options_;
  const uint64_t boot_;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  std::map<int, Watched> watched_ MUSTER_GUARDED_BY(mutex_);
  std::map<int, Remote> remotes_ MUSTER_GUARDED_BY(mutex_);
  std::map<int, int> newest_ MUSTER_GUARDED_BY(mutex_);  // incarnation of each worker that has come
  std::vector<std::thread> threads_;
};

}  // namespace muster
