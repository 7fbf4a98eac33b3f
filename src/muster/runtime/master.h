#pragma once

// The master service of a task: it keeps clients' sessions, prunes, places and cuts what they ask for, and
// registers the parts with the workers. It takes no part in steps: clients ask the workers themselves.
//
// A session is a client's stream; when that ends, the session's streams to the workers end too, and with them
// all that it had there.
//
// Thread-safe. Requests of one session are worked on one after the other, in threads of the master's.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/task_name.h"
#include "muster/cluster/cluster_spec.h"
#include "muster/runtime/runtime_stream.h"
#include "muster/runtime/work_threads.h"
#include "muster/runtime/worker.h"

namespace muster::detail {

class Master {
 public:
  struct Options {
    ClusterSpec cluster;
    TaskName self;
    std::string secret;
    RuntimeStreams* streams = nullptr;  ///< where replies go; outlives this
    Worker* worker = nullptr;           ///< of the same task; outlives this
  };

  explicit Master(const Options& options);
  ~Master();

  /// Takes up a request of a client; the reply goes to its stream.
  void handle(uint64_t stream, const runtime::Request& request);

  /// The client's stream has ended.
  void end(uint64_t stream);

  /// Ends all sessions.
  void stop();

 private:
  class Session;

  const Options options_;
  Mutex mutex_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<Session>> sessions_ MUSTER_GUARDED_BY(mutex_);
  WorkThreads threads_;  // the last: they use all of the above
};

}  // namespace muster::detail
