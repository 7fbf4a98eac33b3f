#pragma once

// What the programs that `muster bench` measures with collectives have in common. A subject (Muster, Open
// MPI, gloo, ...) is a program that runs as several ranks; each makes a Subject and calls serve(), which
// answers the driver (conversation.h):
//
//   driver  run <collective> <bytes> <warmup> <samples> <batch>
//   rank    ok <1 if all results were right, else 0> <microseconds of sample 1> <of sample 2> ...
//        or skip <why the subject does not offer this>
//
// A sample is the time of `batch` collectives divided by `batch`, as this rank saw it.
//
// Data is float32. Before and after the samples the buffers are filled with whole numbers that differ from
// rank to rank and from element to element, small enough that every sum is exact in any order, and every
// element of the result is compared. The samples themselves run on zeros, which stay zeros. Between the
// filling of buffers and the next run() there is a barrier.
//
// Needs nothing but the standard library: programs on any MPI can use it. One thread.

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace muster::bench {

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

}  // namespace muster::bench
