#include "muster/base/trace.h"

#include <array>

namespace muster::detail {

// A list of pages with one writer (the thread) and one reader at a time (drain, under the recorder's mutex).
// The writer fills page `tail_` and publishes each event by storing `count`; the reader frees pages that it
// has passed. The writer never touches a page again once `next` is set.
class TraceBuffer {
 public:
  TraceBuffer(uint32_t thread, size_t capacity)
      : thread_(thread), capacity_(capacity), head_(new Page), tail_(head_) {}

  ~TraceBuffer() {
    while (head_ != nullptr) {
      const Page* next = head_->next;
      delete head_;
      head_ = const_cast<Page*>(next);
    }
  }

  TraceBuffer(const TraceBuffer&) = delete;
  TraceBuffer& operator=(const TraceBuffer&) = delete;

  void write(const TraceEvent& event) {
    if (written_ - read_.load(std::memory_order_relaxed) >= capacity_) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    size_t count = tail_->count.load(std::memory_order_relaxed);
    if (count == kPageEvents) {
      auto* page = new Page;
      tail_->next.store(page, std::memory_order_release);
      tail_ = page;
      count = 0;
    }
    tail_->events[count] = event;
    tail_->events[count].thread = thread_;
    tail_->count.store(count + 1, std::memory_order_release);
    ++written_;
  }

  void read(std::vector<TraceEvent>& out) {
    size_t taken = 0;
    while (true) {
      const size_t count = head_->count.load(std::memory_order_acquire);
      for (; position_ < count; ++position_, ++taken) out.push_back(head_->events[position_]);
      Page* next = head_->next.load(std::memory_order_acquire);
      if (position_ < kPageEvents || next == nullptr) break;
      delete head_;
      head_ = next;
      position_ = 0;
    }
    read_.fetch_add(taken, std::memory_order_relaxed);
  }

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kPageEvents = 512;
  struct Page {
    std::array<TraceEvent, kPageEvents> events;
    std::atomic<size_t> count{0};
    std::atomic<Page*> next{nullptr};
  };

  const uint32_t thread_;
  const size_t capacity_;
  // The reader's.
  Page* head_;
  size_t position_ = 0;
  // The writer's.
  Page* tail_;
  uint64_t written_ = 0;
  // Shared.
  std::atomic<uint64_t> read_{0};
  std::atomic<uint64_t> dropped_{0};
};

TraceRecorder::TraceRecorder(std::string task, size_t capacity)
    : task_(std::move(task)), capacity_(capacity) {}

TraceRecorder::~TraceRecorder() = default;

std::vector<TraceEvent> TraceRecorder::drain() {
  const MutexLock lock(mutex_);
  std::vector<TraceEvent> events;
  for (auto& buffer : buffers_) buffer->read(events);
  return events;
}

std::vector<std::string> TraceRecorder::threads() const {
  const MutexLock lock(mutex_);
  return threads_;
}

uint64_t TraceRecorder::dropped() const {
  const MutexLock lock(mutex_);
  uint64_t total = 0;
  for (const auto& buffer : buffers_) total += buffer->dropped();
  return total;
}

TraceBuffer* TraceRecorder::add_thread(std::string name) {
  const MutexLock lock(mutex_);
  buffers_.push_back(std::make_unique<TraceBuffer>(static_cast<uint32_t>(buffers_.size()), capacity_));
  threads_.push_back(std::move(name));
  return buffers_.back().get();
}

TraceThread::TraceThread(TraceRecorder& recorder, std::string name) : previous_(trace_internal::current) {
  trace_internal::current = recorder.add_thread(std::move(name));
}

TraceThread::~TraceThread() {
  trace_internal::current = previous_;
}

void trace_internal::record(TraceBuffer& buffer, const TraceEvent& event) {
  buffer.write(event);
}

}  // namespace muster::detail
