#pragma once

// A parameter server: holds its shard of the variables, takes the workers' gradients, and updates. Server 0
// of a job is the leader: it also decides, by the UpdatePolicy, for all of them; the followers carry out its
// commands.
//
//   ParameterServer server({.endpoint = endpoint, .job_id = "j", .model_id = "1", .spec = spec});
//   ... workers come and go ...
//
// It serves one model; a task has one for each model, which share nothing but the endpoint.
//
// One thread does all the work on the store, in the order in which it comes: nothing else touches it. Others
// receive: workers of this host by shared memory (session_slot.h), those of other hosts by a RemoteWorker
// each.
//
// A worker of this host whose process ends has failed at once; one of another host when its link has been
// gone for the heartbeat timeout. Whoever knows of another failure says so with report_failure().
//
// Thread-safe. It owns its threads; what stops one of them stops the server, and stands in progress().
// report_failure() and progress() do not block; the destructor waits for the threads, which look at least
// every 50 ms whether they should end.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/wait_registry.h"
#include "muster/net/endpoint.h"
#include "muster/ps/model_spec.h"
#include "muster/ps/server_address.h"

namespace muster::detail {

class ParameterServer {
 public:
  struct Options {
    std::shared_ptr<Endpoint> endpoint;
    std::string job_id;
    std::string model_id;  ///< tells the models of a job apart
    ModelSpec spec;
    int server = 0;
    bool encrypted = false;  ///< the endpoint's links between hosts are
    /// How long an update waits for workers that read and do not get on: one that was stopped in the middle
    /// of it must not stop everybody. It reads again.
    std::chrono::milliseconds reader_timeout{200};
    /// How long a worker may be gone before it counts as failed.
    std::chrono::milliseconds heartbeat_timeout{std::chrono::seconds(10)};
    /// How long the leader looks for its followers, which may not have started yet.
    std::chrono::milliseconds join_timeout{std::chrono::minutes(5)};
    WaitRegistry* waits = nullptr;  ///< where the leader says whom workers wait for; outlives the server
    std::vector<std::string> worker_names;  ///< there, by their numbers; those that are missing: "worker/1"
    /// For the leader: where a follower is.
    std::function<ServerAddress(int server, Deadline deadline)> find_server;
  };

  /// Throws InvalidArgument for a model spec that can't work.
  explicit ParameterServer(Options options);
  ~ParameterServer();

  /// This incarnation of a worker, or an earlier one, has died.
  void report_failure(int worker, int incarnation);

  struct Progress {
    int64_t step = 0;
    int64_t version = 0;
    bool over = false;   ///< all workers have taken their leave: nobody needs it any more
    std::string error;   ///< why it does nothing any more
    std::string report;  ///< of the leader: what became of each worker's gradients
  };
  Progress progress() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
