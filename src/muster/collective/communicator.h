#pragma once

// A group of ranks that reduce, gather and exchange buffers together. It knows bytes and dtypes, not tensors.
//
//   Communicator comm({.rank = 0, .size = 2, .exchange = exchange, .endpoint = endpoint});
//   auto gradients = comm.allocate(bytes);                 // memory that the host's ranks can reach
//   comm.all_reduce(gradients.get(), count, DType::kFloat32, ReduceOp::kAverage);
//   Work work = comm.all_reduce_async(data, count, dtype); // many may be in flight
//   work.wait();
//
// Every rank calls the same operations in the same order, with the same sizes, types and roots: they are
// matched by the order of issue, and a mismatch throws InvalidArgument on all ranks that says who called
// what. Ranks may be threads of one process or processes, on one host or many.
//
// Collectives of one communicator run one after the other, in the order of issue, on the thread that waits
// for them or on one of the communicator's own. Messages (send, receive) run beside them, matched in order
// for each pair of ranks.
//
// Thread-safe, as long as the order of issue is the same on all ranks. Only split() is several collectives
// in a row: no other thread may issue one on this communicator meanwhile. A call without _async blocks until
// its operation is done, at most to its deadline; check() does not, and abort() only while it tells the
// others. A thread that waits in a collective of the native engine may change its own affinity for a moment,
// to leave a core that it shares with a rank that it waits for.
//
// An operation that fails breaks the communicator: pending and later ones throw the same. PeerLost names a
// rank that died or left, DeadlineExceeded those that did not come in time. Destroying a communicator tells
// the others that this rank has left; it must not be destroyed while somebody waits in it.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "muster/base/config.h"
#include "muster/base/deadline.h"
#include "muster/collective/engine.h"
#include "muster/collective/operation.h"
#include "muster/net/endpoint.h"

namespace muster {

class Lane;

/// An operation in flight. Copies stand for the same one. The buffers must live until it is done.
class Work {
 public:
  /// Throws what the operation threw; DeadlineExceeded at the deadline, which breaks the communicator, since
  /// the buffers are still in use. Without a deadline, the operation's own counts.
  void wait(std::optional<Deadline> deadline = {});
  bool done() const;

 private:
  friend class Communicator;
  struct State;
  std::shared_ptr<State> state_;
};

class Communicator {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string name = "world";          ///< for messages and to tell groups apart
    std::string engine = "native";       ///< native, mpi or gloo
    Exchange exchange;                   ///< how the ranks meet; not needed by a group of one
    std::shared_ptr<Endpoint> endpoint;  ///< this task's data port, shared with whoever else needs it
    Algorithm algorithm = Algorithm::kAuto;
    bool shared_memory = true;
    std::optional<DType> wire;  ///< fp16 or bf16: what fp32 sums travel as between hosts
    int sockets = 1;            ///< connections for each pair of hosts' ranks
    std::chrono::milliseconds timeout{std::chrono::minutes(10)};  ///< of an operation without a deadline
    std::chrono::milliseconds stall_warning{std::chrono::seconds(10)};
    std::chrono::milliseconds meet_timeout{std::chrono::minutes(1)};
    std::string host_identity;  ///< empty: this host's; tests put ranks of one machine on several "hosts"
    size_t arena_capacity = 0;  ///< 0: as much as the machine has memory
    size_t segment = 0;         ///< bytes that move at once; 0: as measured. Tests shrink it
  };

  /// Meets the others. Throws DeadlineExceeded, PeerLost, Refused (no common secret), InvalidArgument (no
  /// such engine).
  explicit Communicator(Options options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  const std::string& name() const { return options_.name; }
  const Topology& topology() const;

  /// Memory that the host's ranks can reach: operations on it copy nothing inside a host. It may outlive the
  /// communicator, and serves its splits too. Throws SystemError when memory is full.
  std::shared_ptr<void> allocate(size_t bytes);

  /// The host's memory. Made when first asked for; lives as long as the communicator. Not a collective.
  SharedHost& host();

  // Collectives. The asynchronous ones return at once. Without a deadline, Options::timeout counts.

  /// data = op over all ranks' data, on every rank.
  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                  std::optional<Deadline> deadline = {});
  Work all_reduce_async(void* data, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum);

  /// `in` holds size() blocks of `count` elements; `out` becomes op over all ranks' block number rank().
  void reduce_scatter(const void* in, void* out, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                      std::optional<Deadline> deadline = {});
  Work reduce_scatter_async(const void* in, void* out, size_t count, DType dtype,
                            ReduceOp op = ReduceOp::kSum);

  /// `out` becomes the `in` of all ranks, `count` elements each, in their order. `in` may be its place in
  /// `out`.
  void all_gather(const void* in, void* out, size_t count, DType dtype,
                  std::optional<Deadline> deadline = {});
  Work all_gather_async(const void* in, void* out, size_t count, DType dtype);

  /// data of every rank becomes that of the root.
  void broadcast(void* data, size_t count, DType dtype, int root, std::optional<Deadline> deadline = {});
  Work broadcast_async(void* data, size_t count, DType dtype, int root);

  /// data of the root becomes op over all ranks' data; the others keep theirs.
  void reduce(void* data, size_t count, DType dtype, ReduceOp op, int root,
              std::optional<Deadline> deadline = {});
  Work reduce_async(void* data, size_t count, DType dtype, ReduceOp op, int root);

  /// Block q of `in` goes to rank q; block q of `out` comes from rank q. `count` elements a block.
  void all_to_all(const void* in, void* out, size_t count, DType dtype,
                  std::optional<Deadline> deadline = {});
  Work all_to_all_async(const void* in, void* out, size_t count, DType dtype);

  /// Returns when all ranks have come.
  void barrier(std::optional<Deadline> deadline = {});

  // Messages between two ranks. A send returns when the buffer may be used again.

  void send(const void* data, size_t count, DType dtype, int to, std::optional<Deadline> deadline = {});
  Work send_async(const void* data, size_t count, DType dtype, int to);
  void receive(void* data, size_t count, DType dtype, int from, std::optional<Deadline> deadline = {});
  Work receive_async(void* data, size_t count, DType dtype, int from);

  /// A group for each colour, its ranks in the order of `key` and then of rank. A rank with a negative colour
  /// gets none. Called by all ranks; several collectives in a row, between which no other thread may issue
  /// one. Throws as the constructor does.
  std::unique_ptr<Communicator> split(int colour, int key = 0);

  /// Breaks the group on all ranks, for this reason.
  void abort(const std::string& reason);

  /// Throws what has broken the group, if anything has.
  void check(const std::string& during) const;

  /// The last operations of this rank, one a line, for people.
  std::string history() const;

  /// How an operation would be carried out: "direct through shared memory, AVX-512 kernels".
  std::string explain(const Operation& operation) const;

 private:
  struct Core;
  Communicator(Options options, std::unique_ptr<Core> core);
  Operation checked(Operation operation) const;
  void run(const Operation& operation, std::optional<Deadline> deadline);
  Work submit(const Operation& operation);
  Lane& lane_of(const Operation& operation);

  Options options_;
  std::unique_ptr<Core> core_;
};

}  // namespace muster
