#pragma once

// Mutexes whose discipline the compiler checks. They are std::mutex, std::shared_mutex and
// std::condition_variable behind inline functions, with annotations that clang understands: which member
// belongs to which mutex, and which function wants it held.
//
//   class Counter {
//    public:
//     void add(int n) {
//       const MutexLock lock(mutex_);
//       add_locked(n);
//       changed_.notify_all();
//     }
//     void wait_for(int n) {
//       MutexLock lock(mutex_);
//       while (count_ < n) changed_.wait(lock);
//     }
//
//    private:
//     void add_locked(int n) MUSTER_REQUIRES(mutex_) { count_ += n; }
//
//     Mutex mutex_;
//     ConditionVariable changed_;
//     int count_ MUSTER_GUARDED_BY(mutex_) = 0;
//   };
//
// scripts/check-threads runs clang's analysis over the sources and fails where a guarded member is touched
// without its mutex. Other compilers see nothing of the annotations.
//
// The analysis looks at one function at a time, and at a lambda as a function of its own. So a condition is
// waited for in a loop, as above, not by a predicate; and a lambda that runs while its maker holds the mutex
// is given what it works on as an argument, or says `mutex_.assert_held()` first.
//
// A function that lets go of its caller's lock for a while calls unlock() and lock() of the mutex itself;
// nothing may throw in between.

#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define MUSTER_THREAD_ANNOTATION(...) __attribute__((__VA_ARGS__))
#else
#define MUSTER_THREAD_ANNOTATION(...)
#endif

/// Of a class that is a lock, and of a class that holds one while it lives.
#define MUSTER_CAPABILITY(name) MUSTER_THREAD_ANNOTATION(capability(name))
#define MUSTER_SCOPED_CAPABILITY MUSTER_THREAD_ANNOTATION(scoped_lockable)

/// Of a member: it is read and written only while the mutex is held; or, of a pointer, what it points to is.
#define MUSTER_GUARDED_BY(mutex) MUSTER_THREAD_ANNOTATION(guarded_by(mutex))
#define MUSTER_POINTEE_GUARDED_BY(mutex) MUSTER_THREAD_ANNOTATION(pt_guarded_by(mutex))

/// Of a function: its caller holds the mutex; holds it at least for reading; does not hold it.
#define MUSTER_REQUIRES(...) MUSTER_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define MUSTER_REQUIRES_SHARED(...) MUSTER_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define MUSTER_EXCLUDES(...) MUSTER_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

/// Of a function: it takes the mutex and keeps it, or gives it back.
#define MUSTER_ACQUIRE(...) MUSTER_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define MUSTER_ACQUIRE_SHARED(...) MUSTER_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define MUSTER_RELEASE(...) MUSTER_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define MUSTER_RELEASE_GENERIC(...) MUSTER_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))
#define MUSTER_ASSERT_HELD(...) MUSTER_THREAD_ANNOTATION(assert_capability(__VA_ARGS__))

/// Of a function that is right though the analysis can't see it. Say why where it is used.
#define MUSTER_NO_THREAD_SAFETY_ANALYSIS MUSTER_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace muster::detail {

/// One thread at a time. Use a MutexLock to hold it.
class MUSTER_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() MUSTER_ACQUIRE() { mutex_.lock(); }
  void unlock() MUSTER_RELEASE() { mutex_.unlock(); }

  /// Tells the analysis, which can't see it here, that the calling thread holds the mutex. Nothing is checked
  /// when the program runs.
  void assert_held() const MUSTER_ASSERT_HELD(this) {}

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a Mutex while it lives, except between its unlock() and its lock(). Of one thread.
class MUSTER_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MUSTER_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() MUSTER_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() MUSTER_ACQUIRE() { lock_.lock(); }
  void unlock() MUSTER_RELEASE() { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

/// What threads that hold a mutex wait on. The waits let go of the mutex and hold it again when they return,
/// and may return for no reason: wait in a loop.
class ConditionVariable {
 public:
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }

  /// Until a point on a clock: `deadline.time_point()` of a Deadline.
  template <typename TimePoint>
  std::cv_status wait_until(MutexLock& lock, const TimePoint& time) {
    return condition_.wait_until(lock.lock_, time);
  }

  template <typename Duration>
  std::cv_status wait_for(MutexLock& lock, const Duration& duration) {
    return condition_.wait_for(lock.lock_, duration);
  }

  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

/// Many threads that read, or one that writes. Use a ReaderLock or a WriterLock to hold it.
class MUSTER_CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

 private:
  friend class ReaderLock;
  friend class WriterLock;
  std::shared_mutex mutex_;
};

/// Holds a SharedMutex beside other readers while it lives.
class MUSTER_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) MUSTER_ACQUIRE_SHARED(mutex) : lock_(mutex.mutex_) {}
  ~ReaderLock() MUSTER_RELEASE_GENERIC() {}
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

/// Holds a SharedMutex alone while it lives.
class MUSTER_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) MUSTER_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~WriterLock() MUSTER_RELEASE() {}
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  std::lock_guard<std::shared_mutex> lock_;
};

}  // namespace muster::detail
