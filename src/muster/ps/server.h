#pragma once

// A parameter server: holds its slices of the variables, takes the workers' gradients, and updates. The first
// server of a job also decides, by the UpdatePolicy, for all of them; the others follow its orders.
//
//   ParameterServer server({.endpoint = endpoint, .job_id = "j", .plan_id = "1", .plan = plan, .server = 0});
//   ... workers come and go ...
//
// It serves one model; a task has one for each model, which share nothing but the endpoint.
//
// One thread does all the work on the store, in the order in which it comes: nothing else touches it. Others
// receive: workers of this host by shared memory (desk.h), those of other hosts by a RemoteWorker each.
//
// A worker of this host whose process ends is lost at once; one of another host when its link has been gone
// for a second. Whoever knows of another loss says so with lose().
//
// Thread-safe. It owns its threads; what stops one of them stops the server, and stands in progress().
// lose() and progress() do not block; the destructor waits for the threads, which look at least every 50 ms
// whether they should end.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/net/endpoint.h"
#include "muster/ps/plan.h"
#include "muster/ps/server_address.h"

namespace muster {

class ParameterServer {
 public:
  struct Options {
    std::shared_ptr<Endpoint> endpoint;
    std::string job_id;
    std::string plan_id;  ///< tells the models of a job apart
    ServerPlan plan;
    int server = 0;
    bool encrypted = false;  ///< the endpoint's links between hosts are
    /// How long an update waits for somebody who reads: one that was stopped in the middle of it must not
    /// stop everybody.
    std::chrono::milliseconds reader_patience{200};
    /// For the first server: where another is.
    std::function<ServerAddress(int server, Deadline deadline)> find_server;
  };

  /// Throws InvalidArgument for a plan that can't work.
  explicit ParameterServer(Options options);
  ~ParameterServer();

  /// This incarnation of a worker, or an earlier one, has died.
  void lose(int worker, int incarnation);

  struct Progress {
    int64_t step = 0;
    int64_t version = 0;
    bool over = false;    ///< all workers have taken their leave: nobody needs it any more
    std::string failure;  ///< why it does nothing any more
    std::string report;   ///< of the first server: what became of each worker's gradients
  };
  Progress progress() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
