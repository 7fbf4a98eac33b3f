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
#include "muster/net/arena.h"
#include "muster/net/connection.h"
#include "muster/tensor/tensor_memory.h"

namespace muster::detail {

/// The memory of a task's tensors, or of a client's: kept from step to step, in an arena.
class TaskMemory {
 public:
  /// Its tensors have `limit` bytes at most, or as many as there are: 0. Throws SystemError when no arena can
  /// be had.
  explicit TaskMemory(bool is_shared = true, size_t limit = 0);

  bool is_shared() const { return is_shared_; }  ///< with the other tasks of this host

  TensorMemory& tensors() { return tensors_; }
  const std::shared_ptr<Arena>& arena() const { return arena_; }

 private:
  const bool is_shared_;
  const std::shared_ptr<Arena> arena_;  // shared: tensors keep it
  TensorMemory tensors_;
};

/// What is said of a tensor that is lent.
struct Loan {
  uint64_t offset = 0;  ///< in the sender's arena
  uint32_t slot = 0;
  uint32_t number = 0;  ///< of the slot's loans
};

class SharedValues {
 public:
  /// Each side of a new connection inside a host calls it, before anything else is said. `check` is called
  /// now and then, and may throw. Throws PeerLost, DeadlineExceeded.
  static std::shared_ptr<SharedValues> exchange(Connection& connection, TaskMemory& memory, Deadline deadline,
                                                const std::function<void()>& check = {});

  /// What is lent is forgotten, unless end() was called.
  ~SharedValues();
  SharedValues(const SharedValues&) = delete;
  SharedValues& operator=(const SharedValues&) = delete;

  /// Keeps the tensor, which is contiguous, until the other side has done with it; a copy where it does not
  /// lie in the arena, at the start of a cache line. Nothing for a small one, and where very many are lent
  /// already: then it has to be sent.
  std::optional<Loan> lend(const at::Tensor& tensor);

  /// Forgets what the other side has given back.
  void take_back();

  /// This side ends the connection: as the other one may still read what is lent, that stays as it is for
  /// as long as this process lives.
  void end() { ended_here_ = true; }

  /// The tensor that was lent, which nobody may write to. Throws InvalidArgument for a loan that can't be.
  at::Tensor borrow(const Loan& loan, at::IntArrayRef sizes, at::ScalarType dtype);

  /// Whether the tensor is another task's.
  static bool is_borrowed(const at::Tensor& tensor);

 private:
  using Word = std::atomic<uint32_t>;
  struct Borrowed;  // what tensors of the other side keep
  struct BorrowedTensor;

  struct Lent {
    at::Tensor tensor;
    uint32_t number = 0;
  };

  SharedValues(TaskMemory& memory, std::shared_ptr<Borrowed> borrowed, const Word* returned)
      : memory_(memory), borrowed_(std::move(borrowed)), returned_(returned) {}

  static void give_back(void* borrowed);
  void take_back_lent() MUSTER_REQUIRES(mutex_);

  TaskMemory& memory_;
  const std::shared_ptr<Borrowed> borrowed_;  // shared with the tensors
  const Word* const returned_;                // in the other side's arena, which borrowed_ keeps
  std::atomic<bool> ended_here_{false};

  Mutex mutex_;
  std::vector<Lent> lent_ MUSTER_GUARDED_BY(mutex_);          // by slot
  std::vector<uint32_t> in_use_ MUSTER_GUARDED_BY(mutex_);    // slots
  std::vector<uint32_t> are_free_ MUSTER_GUARDED_BY(mutex_);  // slots
};

}  // namespace muster::detail
