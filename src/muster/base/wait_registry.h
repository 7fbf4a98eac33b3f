#pragma once

// What a task waits for, so that no wait is silent. Whoever blocks until another task does something says so
// by a ScopedWait, which costs a few stores, and lets it look from time to time, as all waits do to notice an
// abort. Once it has waited for a second it stands in the task's registry; the heartbeat takes it from there
// to the coordinator, which names stragglers and ends deadlocks.
//
//   WaitRegistry waits;  // of the task
//   const ScopedWait wait(&waits, [&] { return WaitFor{.what = "push to ps/0", .tasks = {"ps/0"}}; });
//   wait_until(doorbell, policy, ready, [] { look_at_wait(); });
//
// The registry is thread-safe and blocks for nobody; a ScopedWait belongs to the thread that waits.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/deadline.h"

namespace muster::detail {

/// When a wait ends although nobody comes.
enum class WaitLimit {
  kNone,     ///< never by itself: --collective-timeout ends it
  kOwn,      ///< at the same limit, which it sees to itself
  kChosen,   ///< when the program chose: what follows is the program's affair
  kForever,  ///< never, and nobody minds: a server waits for work
};

/// Whom a wait is for.
struct WaitFor {
  std::string what;                ///< "barrier 'start'", "push to ps/0"
  std::vector<std::string> tasks;  ///< "worker/1", ...
  int enough = 0;                  ///< how many of them let it go on; 0: all
  std::string detail;              ///< more, for people: "worker/1 has not delivered fc.weight"
  /// Those who wait in the same meeting are on their way together, and hold nobody up there.
  std::string meeting = {};
  std::string barrier = {};  ///< of the coordinator, which knows who is missing
  std::string key = {};      ///< of the coordinator: `tasks`, or when these are empty anybody, may put it
  std::string subject = {};  ///< of a server: the same in its own entry of why the task waits
  WaitLimit limit = WaitLimit::kNone;
};

struct Wait {
  uint64_t id = 0;     ///< of the task's waits; a server's entries have none
  std::string of;      ///< a server says why this task waits for it; empty: the wait is this task's own
  std::string inside;  ///< the program's call: "step 81", "evaluate()"; may be empty
  WaitFor wait_for;
  bool main = false;   ///< the job's own thread waits: it does nothing else
  uint64_t looks = 0;  ///< how often it was seen that there is still nothing
  bool shown = false;  ///< nobody looks: that it is still here when somebody asks counts as a look
  Deadline::Clock::time_point since;
};

class WaitRegistry {
 public:
  /// The calling thread is the job's own.
  WaitRegistry() : main_(std::this_thread::get_id()) {}

  bool is_main() const { return std::this_thread::get_id() == main_; }

  std::vector<Wait> waits();

  /// What this task does, for people: "in step 81 since 3.2 s", "out of step 81 since 3.2 s"; before the first
  /// such call what `otherwise` says. That is called by whoever asks, from any thread.
  std::string doing() const;
  void set_doing_otherwise(std::function<std::string()> otherwise);

  /// What this task waits for, or else does, for people: "waits in barrier 'start' since 12.0 s", "waits in
  /// step 81 for worker/1 since 3.2 s", "is in step 81 since 3.2 s". May be empty.
  std::string describe();

  /// What a server holds back, and from whom: replaces what the same owner said before.
  void set_held(const void* owner, std::vector<Wait> held);

 private:
  friend class ScopedCall;
  friend class ScopedWorkForOthers;
  friend class WaitInProgress;
  struct Call {
    const char* name = nullptr;
    int64_t number = 0;
    bool ended = false;
    Deadline::Clock::time_point since;
  };

  // Of the calling thread; null: it works for nobody. Gives what was there.
  const std::atomic<bool>* set_main_waits(const std::atomic<bool>* main_waits);
  bool main_waits_for_us() const;

  Call begin(const char* name, int64_t number);
  void end(const Call& outer);
  uint64_t next_id();
  void set(Wait wait);
  void remove(uint64_t id);
  static std::string text_of(const Call& call);

  const std::thread::id main_;
  mutable Mutex mutex_;
  uint64_t last_id_ MUSTER_GUARDED_BY(mutex_) = 0;
  Call call_ MUSTER_GUARDED_BY(mutex_);
  std::function<std::string()> otherwise_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, Wait> waits_ MUSTER_GUARDED_BY(mutex_);
  std::map<const void*, std::vector<Wait>> held_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::thread::id, const std::atomic<bool>*> main_waits_ MUSTER_GUARDED_BY(mutex_);
};

/// The program is inside this call, for messages: "step" and its number, or "evaluate()" without one.
class ScopedCall {
 public:
  ScopedCall(WaitRegistry* registry, const char* name, int64_t number = -1) : registry_(registry) {
    if (registry_ != nullptr) outer_ = registry_->begin(name, number);
  }
  ~ScopedCall() {
    if (registry_ != nullptr) registry_->end(outer_);
  }
  ScopedCall(const ScopedCall&) = delete;
  ScopedCall& operator=(const ScopedCall&) = delete;

 private:
  WaitRegistry* const registry_;
  WaitRegistry::Call outer_;
};

/// The calling thread works for others: while `main_waits` says that the job's own thread is one of them, a
/// wait of the calling thread is that one's. `registry` may be null.
class ScopedWorkForOthers {
 public:
  ScopedWorkForOthers(WaitRegistry* registry, const std::atomic<bool>& main_waits) : registry_(registry) {
    if (registry_ != nullptr) outer_ = registry_->set_main_waits(&main_waits);
  }
  ~ScopedWorkForOthers() {
    if (registry_ != nullptr) registry_->set_main_waits(outer_);
  }
  ScopedWorkForOthers(const ScopedWorkForOthers&) = delete;
  ScopedWorkForOthers& operator=(const ScopedWorkForOthers&) = delete;

 private:
  WaitRegistry* const registry_;
  const std::atomic<bool>* outer_ = nullptr;
};

/// What ScopedWait is made of.
class WaitInProgress {
 public:
  WaitInProgress(const WaitInProgress&) = delete;
  WaitInProgress& operator=(const WaitInProgress&) = delete;

  /// The thread has looked, and must wait on.
  void look();

  /// It will not look: lets it stand in the registry at once, and again after each wait inside of it.
  void show();

  /// Some of what is waited for has come: the wait begins anew.
  void get_on() {
    if (looks_ > 0) withdraw();
  }

  /// The wait is on behalf of the job's own thread, though another looks.
  void set_main() { main_ = true; }

 protected:
  explicit WaitInProgress(WaitRegistry* registry);
  virtual ~WaitInProgress();

 private:
  virtual WaitFor describe() const = 0;
  void withdraw();
  void tell();

  WaitRegistry* const registry_;
  WaitInProgress* const outer_;  // of the same thread
  uint64_t id_ = 0;
  uint64_t looks_ = 0;
  bool main_ = false;
  bool is_shown_ = false;
  Deadline::Clock::time_point since_;
};

/// `describe()` gives a WaitFor, and is called only when the wait lasts. `registry` may be null.
template <typename Describe>
class ScopedWait : public WaitInProgress {
 public:
  ScopedWait(WaitRegistry* registry, Describe describe)
      : WaitInProgress(registry), describe_(std::move(describe)) {}

 private:
  WaitFor describe() const override { return describe_(); }
  const Describe describe_;
};

/// The innermost wait of this thread looks, gets on, or is shown, if there is one.
void look_at_wait();
void wait_gets_on();
void show_wait();

}  // namespace muster::detail
