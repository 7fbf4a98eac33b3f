#pragma once

// What tasks and clients say to each other in steps, over a data port: values as raw bytes, in the order in
// which they are sent.
//
//   client -> task    kValue (a feed), ..., kRun;   kAbort
//   task -> client    kValue (a fetch), ..., kDone; one more value, when it did what, where kRun asks for it
//   task -> task      kValue, for the rendezvous of the step
//
// A value is a dense tensor, a number, a list of integers, or nothing. Inside a host large tensors are lent
// (shared_values.h): tasks read them in place; a client, which may write to what it gets, copies them.
//
// Sending is thread-safe; one thread receives. Both block as long as the other side lives; who sends may be
// called off by its `check`. Throws PeerLost when the other side does not live, InvalidArgument for a value
// that can't be sent and for what is no frame.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/ivalue.h>

#include "muster/base/mutex.h"
#include "muster/net/blocking_link.h"
#include "muster/net/connection.h"
#include "muster/runtime/shared_values.h"
#include "muster/runtime/step_status.h"

namespace muster::detail {

/// Whether a task is to say when it did what.
enum class Noting : uint32_t { kNone, kTimes };

struct StepFrame {
  enum class Kind : uint32_t { kValue = 1, kRun, kDone, kAbort };
  Kind kind = Kind::kValue;
  uint32_t key = 0;     ///< of a value; of kDone the code of a StepStatus; of kRun a Noting
  uint64_t step = 0;    ///< a number that no other step of the cluster has
  uint64_t handle = 0;  ///< of kRun: what was registered
  c10::IValue value;    ///< of a value
  std::string text;     ///< of kDone and kAbort
  StepStatus status;    ///< of a value that was received: why there is none, as memory may be short
};

class StepLink {
 public:
  struct Options {
    TaskMemory* memory = nullptr;          ///< where received tensors go; it outlives this
    std::shared_ptr<SharedValues> shared;  ///< shared with who sweeps it; none: everything is sent
    bool copies = false;                   ///< what is lent is copied at once
  };

  StepLink(Connection connection, Options options);

  /// `check` is called now and then while it waits, and may throw: then the link is ended, as a part of the
  /// frame may have gone.
  using Check = std::function<void()>;
  void send(const StepFrame& frame, const Check& check = {});
  StepFrame receive();

  /// Whether the other side has ended it, or is gone.
  bool is_closed() const { return link_.is_closed(); }

  /// Ends it for both sides: who waits in it gets PeerLost. Any thread may call it.
  void end() {
    if (options_.shared) options_.shared->end();
    link_.end();
  }

  /// Forgets what was lent and is not needed any more.
  void take_back() {
    if (options_.shared) options_.shared->take_back();
  }

 private:
  class Turn;

  void drain(size_t bytes);

  const Options options_;
  BlockingLink link_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool is_sending_ MUSTER_GUARDED_BY(mutex_) = false;  // a frame is sent whole
};

}  // namespace muster::detail
