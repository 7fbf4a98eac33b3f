#pragma once

// Trace events: named spans and counters, each of a thread of a task. This room only records them; the
// exporters are in observe.
//
//   TraceRecorder recorder("worker/1");          // one a task; outlives the threads that record into it
//   TraceThread thread(recorder, "main");        // the calling thread records from here on
//   { TraceSpan span("all_reduce"); ... }        // one span
//   trace_counter("bytes_sent", 4096);
//   for (const TraceEvent& event : recorder.drain()) ...
//
// A thread that is not attached records nothing, at the price of one thread-local load and a branch. An
// attached one writes to a buffer of its own without lock or system call; a full page costs one allocation.
// drain() may run at any time beside the recording threads. Names must be string literals: only the pointer
// is kept. A TraceRecorder is thread-safe; a TraceThread and a TraceSpan belong to the thread that made them.
// Nothing here blocks but for the short lock of the recorder's list.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/mutex.h"

namespace muster::detail {

class TraceBuffer;

struct TraceEvent {
  enum class Kind : uint8_t { kSpan, kCounter };
  Kind kind = Kind::kSpan;
  const char* name = "";
  int64_t start_ns = 0;     ///< on the monotonic clock
  int64_t duration_ns = 0;  ///< of a span
  double value = 0;         ///< of a counter
  uint32_t thread = 0;      ///< index into TraceRecorder::threads()
};

class TraceRecorder {
 public:
  /// A thread whose events are not drained keeps the first `capacity`, and counts the rest as dropped.
  explicit TraceRecorder(std::string task, size_t capacity = 1 << 20);
  ~TraceRecorder();

  const std::string& task() const { return task_; }

  /// The events recorded since the last call, in order within each thread. Thread-safe.
  std::vector<TraceEvent> drain();

  std::vector<std::string> threads() const;
  uint64_t dropped() const;

 private:
  friend class TraceThread;
  TraceBuffer* add_thread(std::string name);

  const std::string task_;
  const size_t capacity_;
  mutable Mutex mutex_;
  // The list; each buffer is written by its thread alone.
  std::vector<std::unique_ptr<TraceBuffer>> buffers_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::string> threads_ MUSTER_GUARDED_BY(mutex_);
};

/// Attaches the calling thread to a recorder while it lives. Destroy it on the same thread.
class TraceThread {
 public:
  TraceThread(TraceRecorder& recorder, std::string name);
  ~TraceThread();
  TraceThread(const TraceThread&) = delete;
  TraceThread& operator=(const TraceThread&) = delete;

 private:
  TraceBuffer* previous_;
};

namespace trace_internal {
inline thread_local TraceBuffer* current = nullptr;
void record(TraceBuffer& buffer, const TraceEvent& event);
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
}  // namespace trace_internal

/// Recorded when it ends, if the thread is attached then as it was when the span began.
class TraceSpan {
 public:
  explicit TraceSpan(const char* name)
      : name_(name),
        buffer_(trace_internal::current),
        start_ns_(buffer_ == nullptr ? 0 : trace_internal::now_ns()) {}
  ~TraceSpan() {
    if (buffer_ == nullptr || buffer_ != trace_internal::current) return;
    trace_internal::record(*buffer_, {.kind = TraceEvent::Kind::kSpan,
                                      .name = name_,
                                      .start_ns = start_ns_,
                                      .duration_ns = trace_internal::now_ns() - start_ns_});
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const char* name_;
  TraceBuffer* buffer_;
  int64_t start_ns_;
};

inline void trace_counter(const char* name, double value) {
  if (trace_internal::current == nullptr) return;
  trace_internal::record(*trace_internal::current, {.kind = TraceEvent::Kind::kCounter,
                                                    .name = name,
                                                    .start_ns = trace_internal::now_ns(),
                                                    .value = value});
}

}  // namespace muster::detail
