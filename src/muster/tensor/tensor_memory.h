#pragma once

// Where libtorch's tensors lie while a Trainer works: in memory that the host's workers can reach, and that
// is kept when a tensor is freed. So a gradient can be read by the other workers where autograd wrote it,
// without a copy into a bucket; and no step pays for page faults, which with plain malloc cost a quarter of
// the time of a large model.
//
//   TensorMemory memory([&](size_t bytes) { return comm.allocate(bytes); });
//   {
//     TensorMemory::Scope scope(memory);   // tensors that this thread makes come from it
//     loss.backward();
//   }
//
// libtorch has one allocator for a process: the first Scope replaces it by one that asks the thread's scope,
// and leaves everything else to the one before. Tensors may outlive the TensorMemory, and be freed by any
// thread.

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>

namespace muster::detail {

class TensorMemory {
 public:
  using Source = std::function<std::shared_ptr<void>(size_t bytes)>;

  /// With a limit, a tensor that would need more bytes in all throws InvalidArgument.
  explicit TensorMemory(Source source, size_t limit = std::numeric_limits<size_t>::max());
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  class Scope {
   public:
    explicit Scope(TensorMemory& memory);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<void> before_;
  };

  /// Inside a Scope: tensors that this thread makes come from where they would without one.
  class Outside {
   public:
    Outside();
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    std::shared_ptr<void> before_;
  };

  size_t held() const;  ///< bytes, used and kept

  class Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace muster::detail
