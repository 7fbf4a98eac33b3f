#include "muster/tensor/tensor_memory.h"

#include <map>
#include <new>
#include <string>
#include <unordered_set>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/base/mutex.h"

namespace muster::detail {
namespace {

// Smaller tensors are malloc's: it keeps them too, and their gradients are copied in no time.
constexpr size_t kSmallest = 4096;

// Before each block; a cache line, so that the tensor stays aligned.
constexpr size_t kHead = 64;

constexpr size_t kPage = 4096;

// A free block serves a tensor that is smaller by up to an eighth.
constexpr size_t kSlack = 8;

// What is kept beyond what is used, before it is given back: a model's tensors come again in each step.
constexpr size_t kKeep = size_t{64} * 1024 * 1024;

// The blocks of all TensorMemories. oneDNN frees its scratch memory by address alone: this tells whose it is.
class Blocks {
 public:
  void add(const void* block) {
    const MutexLock lock(mutex_);
    blocks_.insert(block);
  }
  void remove(const void* block) {
    const MutexLock lock(mutex_);
    blocks_.erase(block);
  }
  bool contains(const void* block) {
    const MutexLock lock(mutex_);
    return blocks_.contains(block);
  }

 private:
  Mutex mutex_;
  std::unordered_set<const void*> blocks_ MUSTER_GUARDED_BY(mutex_);
};

std::string in_mebibytes(size_t bytes) {
  return fmt::format("{:.4g}", static_cast<double>(bytes) / (1 << 20));
}

Blocks& all_blocks() {
  static auto* blocks = new Blocks;  // tensors may be freed by the very last destructor
  return *blocks;
}

}  // namespace

class TensorMemory::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(Source source, size_t limit) : source_(std::move(source)), limit_(limit) {}
  ~Core() { give_back(); }

  void* allocate(size_t bytes) {
    const size_t wanted = (bytes + kHead + kPage - 1) / kPage * kPage;
    const MutexLock lock(mutex_);
    auto found = free_.lower_bound(wanted);
    std::byte* block = nullptr;
    if (found != free_.end() && found->first <= wanted + wanted / kSlack) {
      found =
          std::prev(free_.upper_bound(found->first));  // of those, what was freed last: it is in the cache
      block = found->second;
      free_bytes_ -= found->first;
      free_.erase(found);
    } else {
      const bool is_too_much = wanted > limit_ || bytes_ > limit_ - wanted;
      if (is_too_much || free_bytes_ > (bytes_ - free_bytes_) / 2 + kKeep) give_back();
      if (wanted > limit_ || bytes_ > limit_ - wanted)
        raise<InvalidArgument>(
            "a tensor of {} MiB does not fit: {} of the {} MiB that tensors may have here are in use; place "
            "less on this task, or raise its memory limit",
            in_mebibytes(wanted), in_mebibytes(bytes_), in_mebibytes(limit_));
      auto memory = source_(wanted);
      block = static_cast<std::byte*>(memory.get());
      all_blocks().add(block);
      blocks_[block] = {std::move(memory), wanted};
      bytes_ += wanted;
    }
    // The block keeps us while a tensor has it.
    new (block) std::shared_ptr<Core>(shared_from_this());
    return block + kHead;
  }

  static void free(void* data) {
    std::byte* block = static_cast<std::byte*>(data) - kHead;
    auto* holder = reinterpret_cast<std::shared_ptr<Core>*>(block);
    const std::shared_ptr<Core> core = std::move(*holder);
    holder->~shared_ptr();
    const MutexLock lock(core->mutex_);
    const size_t bytes = core->blocks_.at(block).bytes;
    core->free_.emplace(bytes, block);
    core->free_bytes_ += bytes;
  }

  size_t held() const {
    const MutexLock lock(mutex_);
    return bytes_;
  }

 private:
  struct Block {
    std::shared_ptr<void> memory;
    size_t bytes = 0;
  };

  void give_back() MUSTER_REQUIRES(mutex_) {
    for (const auto& [bytes, block] : free_) {
      all_blocks().remove(block);
      blocks_.erase(block);
      bytes_ -= bytes;
    }
    free_.clear();
    free_bytes_ = 0;
  }

  const Source source_;
  const size_t limit_;
  mutable Mutex mutex_;
  std::map<std::byte*, Block> blocks_ MUSTER_GUARDED_BY(mutex_);
  std::multimap<size_t, std::byte*> free_ MUSTER_GUARDED_BY(mutex_);
  size_t bytes_ MUSTER_GUARDED_BY(mutex_) = 0;
  size_t free_bytes_ MUSTER_GUARDED_BY(mutex_) = 0;
};

namespace {

thread_local std::shared_ptr<TensorMemory::Core> current;

/// libtorch's CPU allocator, from the first Scope on.
class ScopedAllocator : public c10::Allocator {
 public:
  explicit ScopedAllocator(c10::Allocator* before) : before_(before) { free_before_ = before->raw_deleter(); }

  c10::DataPtr allocate(size_t bytes) const override {
    if (!current || bytes < kSmallest) return before_->allocate(bytes);
    void* data = current->allocate(bytes);
    return {data, data, &TensorMemory::Core::free, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }

 private:
  static void free_any(void* data) {
    if (all_blocks().contains(static_cast<std::byte*>(data) - kHead)) {
      TensorMemory::Core::free(data);
    } else {
      free_before_(data);
    }
  }

  c10::Allocator* before_;
  inline static c10::DeleterFnPtr free_before_ = nullptr;
};

void install_allocator() {
  static const bool installed = [] {
    constexpr uint8_t kPriority = 100;  // above what others set, who leave it at 0
    c10::SetCPUAllocator(new ScopedAllocator(c10::GetCPUAllocator()), kPriority);
    return true;
  }();
  MUSTER_CHECK(installed);
}

}  // namespace

TensorMemory::TensorMemory(Source source, size_t limit)
    : core_(std::make_shared<Core>(std::move(source), limit)) {}

TensorMemory::~TensorMemory() = default;

size_t TensorMemory::held() const {
  return core_->held();
}

TensorMemory::Scope::Scope(TensorMemory& memory) : before_(current) {
  install_allocator();
  current = memory.core_;
}

TensorMemory::Scope::~Scope() {
  current = std::static_pointer_cast<Core>(before_);
}

TensorMemory::Outside::Outside() : before_(std::exchange(current, nullptr)) {}

TensorMemory::Outside::~Outside() {
  current = std::static_pointer_cast<Core>(before_);
}

}  // namespace muster::detail
