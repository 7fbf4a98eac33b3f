#pragma once

// Muster's own engine: plans over shared memory inside a host and over links between hosts. Threads: as
// engine.h says; one of its own (PeerWatch) listens to the other ranks.

#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "muster/base/mutex.h"
#include "muster/collective/communicator_options.h"
#include "muster/collective/engine.h"
#include "muster/collective/native/connect_ranks.h"
#include "muster/collective/native/host_memory.h"
#include "muster/collective/native/link_executor.h"
#include "muster/collective/native/memory_executor.h"
#include "muster/collective/native/peer_watch.h"
#include "muster/net/endpoint.h"

namespace muster::detail {

class NativeEngine : public Engine {
 public:
  /// Connects with the other ranks. `memory` is that of the communicator that was split, or nullptr.
  NativeEngine(const Communicator::Options& options, const std::shared_ptr<HostMemory>& memory,
               GroupState& state);
  ~NativeEngine() override;

  void run(const Operation& operation, uint64_t number, Deadline deadline) override;
  std::shared_ptr<void> allocate(size_t bytes) override;
  std::unique_ptr<Engine> split(const std::string& name, const std::vector<int>& members, int rank,
                                const Rendezvous& rendezvous, GroupState& state) override;
  void abort(const std::string& reason) override;
  const Topology& topology() const override { return *topology_; }
  std::unique_ptr<SharedHost> share_host(Communicator& communicator) override;
  std::string explain(const Operation& operation) const override;

 private:
  void begin(ConnectedRanks connected);
  void run_collective(const OperationContext& context);
  void run_message(const OperationContext& context);
  const std::string& task_of(int rank) const;
  void run_plan(const OperationContext& context, const Plan& plan);
  void run_over_links(const OperationContext& context, const Plan& plan);
  void run_in_passes(const OperationContext& context, const Plan& plan);
  const Plan& plan_of(const Operation& operation);
  void warn_of_algorithm() const;
  LinkExecutor& message_executor(int peer, bool sending);
  struct Channel {
    std::string name;
    int number = 0;     // of its pipes in a RankState
    bool sends = true;  // messages of one direction only are received
  };
  std::unique_ptr<LinkExecutor> make_executor(const Channel& channel);
  Link& link_to(int peer, const Channel& channel, const OperationContext& context);
  std::unique_ptr<Link> make_tcp_link(int peer, const Channel& channel, const OperationContext& context);
  std::unique_ptr<Link> make_memory_link(int peer, const Channel& channel);
  void wake_self();

  const Communicator::Options options_;
  GroupState& state_;
  GroupError& error_;
  const std::shared_ptr<HostMemory> memory_;
  std::vector<RankInfo> ranks_;
  std::string id_;  // unlike any other group's
  std::optional<Topology> topology_;
  SpinPolicy spin_policy_;

  RankState* rank_state_ = nullptr;  // ours, in the arena
  std::unique_ptr<HostGroup> host_;
  std::unique_ptr<MemoryExecutor> in_memory_;
  std::unique_ptr<LinkExecutor> over_links_;
  std::unique_ptr<PeerWatch> watch_;
  std::map<std::tuple<Collective, Algorithm, int>, Plan> plans_;
  std::optional<Plan> direct_;       // for what is small and in arenas
  const Plan* last_plan_ = nullptr;  // of the last operation, which is often the next one too
  std::tuple<Collective, Algorithm, int> last_key_;
  std::shared_ptr<void> staging_;  // in the arena: for one pass of ordinary memory through several stages

  Mutex mutex_;  // messages run beside collectives
  // The map; each link is used by the one thread of its channel.
  std::map<std::pair<int, std::string>, std::unique_ptr<Link>> links_ MUSTER_GUARDED_BY(mutex_);
  std::vector<void*> own_pipes_ MUSTER_GUARDED_BY(mutex_);  // of links inside the host
  std::vector<void*> pipes_of_others_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::pair<int, bool>, std::unique_ptr<LinkExecutor>> message_executors_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
