#pragma once

// How the launchers of a job's nodes find each other: node 0 hosts the coordinator, all launchers enter the
// job as observers, each reserves the ports of its own tasks and tells the others, and so each knows the
// whole cluster. A job on one node does the same.
//
// It belongs to the launcher's thread; the callbacks come from the membership's. What waits for other nodes
// says so, and throws what Member throws.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/config.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/member.h"
#include "muster/launch_spec.h"
#include "muster/net/reserved_port.h"

namespace muster::detail {

class NodeRendezvous {
 public:
  struct Options {
    LaunchSpec spec;
    int node = 0;
    Config config;  ///< coordinator, job id, secret, interface, timeouts
    FailurePolicy failure_policy = FailurePolicy::kAbort;
    bool restarts = false;  ///< as in Coordinator::Options
    std::chrono::milliseconds grace{
        0};  ///< how long node 0 stays at the end for the others to hear how it ended
    std::function<void(const Member::Ended& how)> on_aborted;  ///< from another thread: the job was aborted
    std::function<void(const TaskInfo& task)> on_task_failed;  ///< from another thread
  };

  /// Blocks until the coordinator is there. Throws as Member does.
  explicit NodeRendezvous(Options options);
  ~NodeRendezvous();

  /// Blocks until all nodes have come. Throws InvalidArgument when they were started differently.
  ClusterSpec exchange_addresses();

  /// What tasks are told: as given, with coordinator, job id and secret filled in.
  const Config& config() const { return config_; }

  /// Where torch.distributed of worker 0 may listen.
  const Address& master() const { return master_; }

  /// Ends the job on all nodes; does nothing when it has ended.
  void abort(const std::string& reason, std::optional<TaskName> by);

  /// Why the job was aborted, as node 0 knows it before anybody is told. Empty on other nodes.
  std::optional<Member::Ended> aborted() const;

  /// A task of this node has ended in this way, and will not be started again. False when that ends the job.
  bool task_ended(const TaskName& task, const std::string& how);

  /// All tasks of the job have entered it: they hear by themselves when it is aborted.
  bool assembled() const { return member_->assembled(); }

  /// All workers of the job have left or failed.
  bool finished() const { return member_->finished(); }

  /// Waits until the launchers of all nodes are here, and says whether a worker ended well on any of them;
  /// throws when the job is aborted.
  bool wait_for_all(bool ended_well_here);

  /// The work is done.
  void leave();

 private:
  std::string task_host() const;
  std::string wait_for_node(int node, Deadline deadline);

  const Options options_;
  Config config_;
  std::unique_ptr<Coordinator> coordinator_;  // on node 0
  std::unique_ptr<Member> member_;
  std::vector<ReservedPort> ports_;  // held as long as the launch: a restarted task finds its own free
  Address master_;
};

}  // namespace muster::detail
