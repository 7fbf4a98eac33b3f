#pragma once

// What the engines over another library (mpi, gloo) have in common. Such a library hangs, or mixes up data,
// when ranks call different things; so before each collective the ranks gather what each of them called, in
// one small all-gather, and break the group when they differ. A message goes with a header for the same
// reason. The collective itself begins when all ranks have come.
//
// Options::algorithm and Options::wire_dtype are the native engine's alone: anything but their defaults is
// refused. Options::sockets, shared_memory and arena_capacity have no meaning here.
//
// Threads: as engine.h says.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/collective/communicator_options.h"
#include "muster/collective/engine.h"

namespace muster::detail {

class LibraryEngine : public Engine {
 public:
  void run(const Operation& operation, uint64_t number, Deadline deadline) final;

  /// Whole pages of ordinary memory.
  std::shared_ptr<void> allocate(size_t bytes) final;

  void abort(const std::string& reason) final;
  const Topology& topology() const final { return *topology_; }

 protected:
  LibraryEngine(const Communicator::Options& options, GroupState& state);

  /// Thrown by what follows when the group has failed while it waited.
  struct Interrupted {};

  // What the library does. They throw Interrupted, DeadlineExceeded or PeerLost, any of which breaks the
  // group. While they wait they let the wait of their thread look, or show it (base/wait_registry.h).

  /// Any collective but a barrier, with at least one element, in a group of several ranks.
  virtual void run_collective(const Operation& operation, Deadline deadline) = 0;

  /// all = `mine` of every rank, in their order. The buffers are free even when it throws.
  virtual void gather(const void* mine, void* all, size_t bytes, Deadline deadline) = 0;

  virtual void send(const void* data, size_t bytes, int to, Deadline deadline) = 0;
  virtual void receive(void* data, size_t bytes, int from, Deadline deadline) = 0;

  /// Ranks with the same text are on one host. Called once, by the constructor.
  void set_hosts(const std::vector<std::string>& host_of_rank);

  /// The options, and the hosts, of an engine for some of this one's ranks.
  Communicator::Options options_of(const std::string& name, const std::vector<int>& members, int rank) const;
  std::vector<std::string> hosts_of(const std::vector<int>& members) const;

  /// Divides a sum by the number of ranks when the operation is an average.
  void finish_average(const Operation& operation, DType dtype, void* sum) const;

  const Communicator::Options& options() const { return options_; }
  GroupError& group_error() const { return state_.error; }

 private:
  struct Signature;
  WaitFor wait_for(const Operation& operation, const std::string& during, uint64_t number) const;
  void compare(const Signature& mine, Deadline deadline);
  void run_message(const Operation& operation, const Signature& mine, Deadline deadline);

  const Communicator::Options options_;
  GroupState& state_;
  std::optional<Topology> topology_;
};

}  // namespace muster::detail
