#pragma once

// A group of ranks that reduce, gather and exchange buffers together. It knows bytes and dtypes; for
// tensors there is tensor_collectives.h.
//
//   muster::Communicator& workers = job.communicator();
//   auto gradients = workers.allocate(count * sizeof(float));      // memory that the host's ranks can reach
//   workers.all_reduce(gradients.get(), count, muster::DType::kFloat32, muster::ReduceOp::kAverage);
//   muster::Work work = workers.all_reduce_async(data, count, muster::DType::kFloat32);
//   work.wait();                                                   // many may be in flight
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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "muster/deadline.h"
#include "muster/dtype.h"

namespace muster {

namespace detail {
class OperationQueue;
struct Operation;
class SharedHost;
class Topology;
}  // namespace detail

/// Where a rank brings what is not a number, so is the result, also of kMin and kMax.
/// An average of integers is cut off towards 0, and like a sum of them it wraps where it is too large.
enum class ReduceOp : uint8_t { kSum, kAverage, kMin, kMax, kProduct };

/// An operation in flight, as the calls with _async give it. Copies stand for the same one; any thread may
/// use them, as long as the communicator lives. The buffers must live until it is done.
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
  /// For Muster's own rooms (collective/communicator_options.h): programs get theirs from
  /// Job::communicator().
  struct Options;

  /// Finds the other ranks. Throws DeadlineExceeded, PeerLost, Refused (no common secret), InvalidArgument
  /// (no such engine).
  explicit Communicator(const Options& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const;  ///< The name of the group, which is in all messages.

  /// Memory that the host's ranks can reach: operations on it copy nothing inside a host. It may outlive the
  /// communicator, and serves its splits too. Throws SystemError when memory is full.
  std::shared_ptr<void> allocate(size_t bytes);

  // Collectives. The asynchronous ones return at once. Without a deadline, --collective-timeout counts.

  /// data = op over all ranks' data, on every rank.
  void all_reduce(void* data, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                  std::optional<Deadline> deadline = {});
  Work all_reduce_async(void* data, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum);

  /// `in` holds size() blocks of `count` elements; `out` becomes op over all ranks' block number rank().
  void reduce_scatter(const void* in, void* out, size_t count, DType dtype, ReduceOp op = ReduceOp::kSum,
                      std::optional<Deadline> deadline = {});
  Work reduce_scatter_async(const void* in, void* out, size_t count, DType dtype,
                            ReduceOp op = ReduceOp::kSum);

  /// `out` becomes the `in` of all ranks, `count` elements each, in their order. `in` may be this rank's block
  /// of `out`.
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

  /// The last collectives of this rank, one a line, for people. The newest of them are logged when one stalls
  /// (--stall-warning) and when one fails by its deadline.
  std::string history() const;

  // For Muster's own rooms.

  /// What the collectives and messages above do, with and without _async. `keep` is held until the operation
  /// is done, or never will be: it may own the buffers.
  void run(const detail::Operation& operation, std::optional<Deadline> deadline);
  Work submit(const detail::Operation& operation, std::shared_ptr<const void> keep = {});

  /// Waits for the operations in flight that own their buffers. Throws what one of them threw that nobody waits
  /// for.
  void finish();

  /// Waits until something has broken the group, at most to the deadline.
  void wait_broken(Deadline deadline) const;

  const detail::Topology& topology() const;

  /// The host's memory. Made when first asked for; lives as long as the communicator. Not a collective.
  detail::SharedHost& host();

  /// How an operation would be carried out: "direct through shared memory, AVX-512 kernels".
  std::string explain(const detail::Operation& operation) const;

 private:
  struct Core;
  Communicator(const Options& options, std::unique_ptr<Core> core);
  detail::Operation checked(detail::Operation operation) const;
  detail::OperationQueue& queue_of(const detail::Operation& operation);

  const int rank_;
  const int size_;
  const std::unique_ptr<const Options> options_;
  const std::unique_ptr<Core> core_;
};

}  // namespace muster
