#pragma once

// Collectives over gloo, through libtorch's process group for it (c10d): what a training program on libtorch
// would use by itself, behind the same Communicator. It has TCP and nothing else.
//
// What c10d does not have is made from what it has: an average is a sum that is divided; a reduce-scatter is
// an all-to-all whose blocks are reduced here; float16 and bfloat16 are summed as float32 and rounded once.
//
// When a group fails on one rank, for whatever reason, that rank closes its connections: the others see
// PeerLost. gloo's connections are neither authenticated nor encrypted, and neither is the store by which
// its ranks find each other: it is for networks in which everybody is trusted.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "muster/base/mutex.h"
#include "muster/collective/library_engine.h"

namespace muster::detail {

class GlooEngine : public LibraryEngine {
 public:
  /// Finds the other ranks, in one round of the rendezvous.
  GlooEngine(const Communicator::Options& options, GroupState& state);
  ~GlooEngine() override;

  std::unique_ptr<Engine> split(const std::string& name, const std::vector<int>& members, int rank,
                                const Rendezvous& rendezvous, GroupState& state) override;
  std::string explain(const Operation& operation) const override;

 protected:
  void run_collective(const Operation& operation, Deadline deadline) override;
  void gather(const void* mine, void* all, size_t bytes, Deadline deadline) override;
  void send(const void* data, size_t bytes, int to, Deadline deadline) override;
  void receive(void* data, size_t bytes, int from, Deadline deadline) override;

 private:
  class Group;

  // What the engines of a group's splits share.
  struct Shared {
    c10::intrusive_ptr<c10d::Store> store;
    std::shared_ptr<gloo::transport::Device> device;
  };

  GlooEngine(const Communicator::Options& options, GroupState& state, const Shared& shared,
             const std::vector<std::string>& hosts);
  void find_ranks(Deadline deadline);
  void connect(Deadline deadline);
  void all_reduce(const Operation& operation, Deadline deadline);
  void reduce_to_root(const Operation& operation, Deadline deadline);
  void reduce_scatter(const Operation& operation, Deadline deadline);
  void all_to_all(const void* in, void* out, size_t bytes, Deadline deadline);
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;
  void run_work(const Start& start, Deadline deadline);
  void watch();

  Shared shared_;
  c10::intrusive_ptr<Group> group_;  // none when alone

  Mutex mutex_;
  ConditionVariable changed_;
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread watch_;  // wakes whoever waits in gloo when the group has failed
};

}  // namespace muster::detail
