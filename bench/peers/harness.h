#pragma once

// What the programs that `muster bench` measures with collectives have in common. A subject (Muster, Open
// MPI, gloo, ...) is a program that runs as several ranks; each makes a Subject and calls serve(), which
// answers the driver (conversation.h):
//
//   driver  run <collective> <bytes> <warmup> <samples> <batch>
//       or  repeat <the same>
//   rank    ok <1 if all results were right, else 0> <microseconds of sample 1> <of sample 2> ...
//       or  skip <why the subject does not offer this>
//
// A sample of `run` is the mean of `batch` collectives, as this rank saw them. Before each, every rank
// rewrites its whole input, as backward passes do before gradients are reduced, and there is a barrier of the
// subject's own; neither is timed, and what reading the clock takes is subtracted. A rank that leaves the
// barrier before the others waits for them inside the collective: that counts.
//
// A sample of `repeat` is the time of `batch` collectives in a row divided by `batch`, on zeros that nobody
// has written since. In shared memory each rank's part then stays in its own cache, and is never fetched from
// another's: no program that computes has it so good. A barrier has nothing to rewrite: `run` is `repeat`.
//
// Data is float32: whole numbers that differ from rank to rank and from element to element, small enough that
// every sum is exact in any order. Before and after the samples every element of a result is compared.
//
// Needs nothing but the standard library: programs on any MPI can use it. One thread.

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace muster::detail::bench {

/// Broadcast and reduce have rank 0 as their root.
enum class Collective { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kAllToAll, kBarrier };

/// The elements of one rank's buffers. `bytes` is as nccl-tests count: of the whole buffer; the input of a
/// reduce-scatter, the output of an all-gather, both of an all-to-all.
struct Shape {
  size_t in = 0;
  size_t out = 0;
  bool in_place = false;  ///< all-reduce, broadcast, reduce: one buffer is both
};

/// Throws std::invalid_argument when `bytes` can't be divided into whole elements for every rank.
Shape shape_of(Collective collective, size_t bytes, int ranks);

/// The buffers of one rank: of the Shape's sizes, and the same memory twice when it is in place.
struct Buffers {
  std::span<float> in;
  std::span<float> out;
};

/// The subject has no such collective, or not for this size.
class NotOffered : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One rank of a subject. Any function may throw; the text reaches the user.
class Subject {
 public:
  virtual ~Subject() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Gets ready for run() and gives its buffers, in memory that the subject chooses; they live until the next
  /// call. Throws NotOffered.
  virtual Buffers prepare(Collective collective, size_t bytes) = 0;

  /// One collective over the buffers; returns when this rank's result is there.
  virtual void run() = 0;

  /// Returns when all ranks have come.
  virtual void barrier() = 0;
};

/// Answers the driver until it says quit.
void serve(Subject& subject, const std::string& directory);

}  // namespace muster::detail::bench
