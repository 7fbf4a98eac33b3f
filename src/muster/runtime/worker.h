#pragma once

// The worker service of a task: it keeps variables and the parts of graphs that masters register, runs steps
// that clients ask for over data links, and gives and takes the values that cross from task to task.
//
// Thread-safe. A data link is read by one thread at a time; the thread that reads a request to run lets
// another one read on, and runs the step itself. stop() ends all links and steps, and waits for them.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/task_name.h"
#include "muster/net/endpoint.h"
#include "muster/runtime/executor.h"
#include "muster/runtime/rendezvous.h"
#include "muster/runtime/runtime.pb.h"
#include "muster/runtime/shared_values.h"
#include "muster/runtime/step_link.h"
#include "muster/runtime/variables.h"
#include "muster/runtime/work_threads.h"

namespace muster::detail {

class Worker {
 public:
  struct Options {
    TaskName task;
    uint32_t number = 0;             ///< of the cluster's tasks
    std::string host = "127.0.0.1";  ///< where the data port listens
    std::string secret;
    bool shares_memory = true;  ///< with the other tasks of this host, and clients there
    size_t memory_limit = 0;    ///< of its tensors, in bytes; 0: none
  };

  /// Throws SystemError when the data port can't be had.
  explicit Worker(const Options& options);
  ~Worker();

  /// Where this task's data port is.
  const runtime::Peer& self() const { return self_; }

  /// Where large tensors of graphs come in, keyed by their transfers.
  Rendezvous& rendezvous() { return rendezvous_; }

  /// A master's session (the number of its stream) will add a part, whose graph comes under this transfer.
  /// The session is known from the first one on. Does not block.
  void expect_part(uint64_t session, uint64_t transfer);

  /// Keeps that part until the session ends. Blocks for its graph, until the deadline. Throws InvalidArgument
  /// for a part that makes no sense, Aborted when the session has ended.
  void add_part(uint64_t session, const runtime::Register& request, Deadline deadline);

  /// Forgets what was registered for the session, and the variables that are its own; its steps are aborted.
  void end_session(uint64_t session);

  /// A data link to another task, kept for the next time. `check` is called now and then and may throw.
  /// Throws PeerLost, DeadlineExceeded.
  std::shared_ptr<StepLink> link_to(const runtime::Peer& peer, const StepLink::Check& check = {});

  void stop();

 private:
  // What a master has registered. A step that runs keeps it alive.
  struct Registered {
    uint64_t session = 0;
    std::shared_ptr<Container> container;  // shared: the parts of several sessions use one
    std::unique_ptr<Executor> executor;
    std::map<uint32_t, runtime::Peer> peers;  // by their numbers
  };

  // A step that runs: who has asked for it, and whose part it runs once that is known.
  struct Running {
    const StepLink* link = nullptr;
    uint64_t session = 0;
  };

  class Exchange;

  void check_session(uint64_t session) const MUSTER_REQUIRES(mutex_);
  void accept_links();
  void open(const std::string& name, Connection connection);
  void take_back();
  void read(const std::shared_ptr<StepLink>& link, const std::string& name);
  void forget_feeds(const std::shared_ptr<StepLink>& link, uint64_t step);
  void run_step(const std::shared_ptr<StepLink>& link, const StepFrame& request,
                std::map<uint32_t, at::Tensor> feeds);

  const Options options_;
  TaskMemory memory_;
  Endpoint endpoint_;
  runtime::Peer self_;
  Rendezvous rendezvous_;

  Mutex mutex_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::unordered_map<uint64_t, std::shared_ptr<Registered>> registered_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Container>> containers_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<Container>> private_containers_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<StepLink>> outgoing_ MUSTER_GUARDED_BY(mutex_);  // by local name
  std::vector<std::weak_ptr<StepLink>> incoming_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, std::set<uint64_t>> sessions_
      MUSTER_GUARDED_BY(mutex_);  // with the transfers that they wait for
  // Feeds that are collected, by link and step.
  std::map<const StepLink*, std::map<uint64_t, std::map<uint32_t, at::Tensor>>> feeds_
      MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, Running> running_ MUSTER_GUARDED_BY(mutex_);

  WorkThreads threads_;  // the last: they use all of the above
};

/// What the names of clients' channels begin with; others are of tasks.
constexpr const char* kClientChannel = "runtime/client/";

struct ConnectOptions {
  std::string kind;  ///< what the channel's name begins with
  Deadline deadline;
  StepLink::Check check;  ///< called now and then, may throw
};

/// A link to a task's data port, over the host's own socket and memory where it shares that with us. Throws
/// PeerLost, DeadlineExceeded.
std::shared_ptr<StepLink> connect_to(Endpoint& endpoint, TaskMemory& memory, const runtime::Peer& peer,
                                     const ConnectOptions& options);

}  // namespace muster::detail
