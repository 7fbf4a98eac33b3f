#pragma once

// How values go between the tasks of one host without being copied: the sender lends a tensor of its arena,
// the receiver reads it where it lies, and says in its own arena when it is done.
//
//   sender                                              receiver
//   lend(tensor), and keeps it          -- the loan ->  borrow(loan): a tensor in the sender's arena
//   sees the number, forgets the tensor   <- memory --  its last copy goes: words[slot] = number
//
// Each side writes to its own arena only, and has the other's mapped for reading.
//
// Thread-safe. Only exchange() blocks.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/mutex.h"
#include "muster/deadline.h"
#include "muster/net/connection.h"
#include "muster/shm/arena.h"
#include "muster/tensor/tensor_memory.h"

namespace muster::detail {

/// What is said of a tensor that is lent.
struct Loan {
  uint64_t offset = 0;  ///< in the sender's arena
  uint32_t slot = 0;
  uint32_t number = 0;  ///< of the slot's loans
};

/// The tensors that are lent over one connection, until the other side has said that it is done with them.
/// Thread-safe.
class LentTensors {
 public:
  using Word = std::atomic<uint32_t>;

  /// `returned` has a word for each slot, in memory that `keeps` keeps.
  LentTensors(const Word* returned, std::shared_ptr<void> keeps);

  /// Keeps the tensor, which lies at `offset`. Nothing where very many are lent already.
  std::optional<Loan> add(at::Tensor tensor, uint64_t offset);

  void take_back();               ///< Forgets what the other side has given back.
  void forget(const Loan& loan);  ///< The other side never heard of it.
  bool empty() const;

 private:
  struct Lent {
    at::Tensor tensor;
    uint32_t number = 0;
  };

  const Word* const returned_;
  const std::shared_ptr<void> keeps_;
  mutable Mutex mutex_;
  std::vector<Lent> lent_ MUSTER_GUARDED_BY(mutex_);          // by slot
  std::vector<uint32_t> in_use_ MUSTER_GUARDED_BY(mutex_);    // slots
  std::vector<uint32_t> are_free_ MUSTER_GUARDED_BY(mutex_);  // slots
};

/// The memory of a task's tensors, or of a client's: kept from step to step, in an arena. Thread-safe.
class TaskMemory {
 public:
  /// Its tensors have `limit` bytes at most, or as many as there are: 0. Throws SystemError when no arena can
  /// be had.
  explicit TaskMemory(bool is_shared = true, size_t limit = 0);

  bool is_shared() const { return is_shared_; }  ///< with the other tasks of this host

  TensorMemory& tensors() { return tensors_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }

  /// Keeps what was lent over a connection that this side has ended: the other one may still read it.
  void keep(std::shared_ptr<LentTensors> lent);

  /// Forgets what of it was given back since.
  void take_back();

 private:
  const bool is_shared_;
  const std::shared_ptr<Arena> arena_;  // shared: tensors keep it
  TensorMemory tensors_;
  Mutex mutex_;
  std::vector<std::shared_ptr<LentTensors>> kept_ MUSTER_GUARDED_BY(mutex_);
};

class SharedValues {
 public:
  /// Each side of a new connection inside a host calls it, before anything else is said. `check` is called
  /// now and then, and may throw. Throws PeerLost, DeadlineExceeded.
  static std::shared_ptr<SharedValues> exchange(Connection& connection, TaskMemory& memory, Deadline deadline,
                                                const std::function<void()>& check = {});

  /// What is lent is forgotten, unless end() was called: the other side has gone.
  ~SharedValues();
  SharedValues(const SharedValues&) = delete;
  SharedValues& operator=(const SharedValues&) = delete;

  /// Keeps the tensor, which is contiguous, until the other side has done with it; a copy where it does not
  /// lie in the arena, at the start of a cache line. Nothing for a small one, and where very many are lent
  /// already: then it has to be sent.
  std::optional<Loan> lend(const at::Tensor& tensor);

  /// Forgets what the other side has given back.
  void take_back() { lent_->take_back(); }

  /// The other side was not told of a loan.
  void forget(const Loan& loan) { lent_->forget(loan); }

  /// This side ends the connection: as the other one may still read what is lent, the task's memory keeps
  /// that until it is given back.
  void end() { ended_here_ = true; }

  /// The tensor that was lent, which nobody may write to. Throws InvalidArgument for a loan that can't be.
  at::Tensor borrow(const Loan& loan, at::IntArrayRef sizes, at::ScalarType dtype);

  /// Whether the tensor is another task's.
  static bool is_borrowed(const at::Tensor& tensor);

 private:
  using Word = LentTensors::Word;
  struct Borrowed;  // what tensors of the other side keep
  struct BorrowedTensor;

  SharedValues(TaskMemory& memory, std::shared_ptr<Borrowed> borrowed, std::shared_ptr<LentTensors> lent)
      : memory_(memory), borrowed_(std::move(borrowed)), lent_(std::move(lent)) {}

  static void give_back(void* borrowed);

  TaskMemory& memory_;
  const std::shared_ptr<Borrowed> borrowed_;  // shared with the tensors
  const std::shared_ptr<LentTensors> lent_;   // the task's memory may keep it
  std::atomic<bool> ended_here_{false};
};

}  // namespace muster::detail
