#pragma once

// Collectives over MPI, which knows the networks that the native engine does not. The program must run under
// mpirun or srun, and the group that is made first has all ranks of MPI_COMM_WORLD, in their order; splits
// may have fewer. Each communicator has a communicator of MPI to itself.
//
// MPI works while somebody waits: a thread that waits polls, and lets others run in between.
//
// Where MPI is weaker than the native engine: other ranks can't be told of an abort, they run into their
// deadlines; a rank that dies is noticed by mpirun, which ends the job. After a deadline in the middle of an
// operation or of a send, MPI may still use its buffers until the process ends.

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "muster/collective/library_engine.h"

namespace muster::detail {

class MpiEngine : public LibraryEngine {
 public:
  /// Finds the other ranks. Throws InvalidArgument when MPI does not count the ranks as `options` do.
  MpiEngine(const Communicator::Options& options, GroupState& state);
  ~MpiEngine() override;

  std::unique_ptr<Engine> split(const std::string& name, const std::vector<int>& members, int rank,
                                const Rendezvous& rendezvous, GroupState& state) override;
  std::string explain(const Operation& operation) const override;

 protected:
  void run_collective(const Operation& operation, Deadline deadline) override;
  void gather(const void* mine, void* all, size_t bytes, Deadline deadline) override;
  void send(const void* data, size_t bytes, int to, Deadline deadline) override;
  void receive(void* data, size_t bytes, int from, Deadline deadline) override;

 private:
  // An operation as MPI counts: elements of a type, or bytes where nothing is computed.
  struct Counted;

  MpiEngine(const Communicator::Options& options, GroupState& state, MPI_Comm communicator,
            const std::vector<std::string>& hosts);
  std::vector<std::string> find_hosts() const;
  void run_whole(const Counted& operation, Deadline deadline);
  void run_blocks(const Counted& operation, Deadline deadline);
  MPI_Request start(const Counted& operation, const void* in, void* out, int count);
  size_t most_elements(size_t width, size_t blocks) const;  // that MPI is given at once
  // What MPI works with until an operation is done, or for ever when it is given up.
  struct Lent {
    std::shared_ptr<void> memory;
    bool cancellable = false;  // a receive: MPI gives it back
  };
  void wait(MPI_Request request, Deadline deadline, const Lent& lent);

  MPI_Comm communicator_ = MPI_COMM_NULL;
};

}  // namespace muster::detail
