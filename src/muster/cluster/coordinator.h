#pragma once

// The coordinator of a job, where its tasks find each other. It knows who has entered, keeps small values and
// barriers, notices who has failed and who holds up whom, and carries an abort to everyone. `muster run`
// hosts it; under other launchers the chief does.
//
//   Coordinator coordinator({.listen = {{"127.0.0.1", 0}},
//                            .job_id = "j",
//                            .secret = "s",
//                            .tasks = {{"worker", {0, 1}}}});
//   // Tasks enter at coordinator.address(), each with a Member.
//   coordinator.wait_idle(Deadline::after(30s));
//
// Thread-safe. Nothing blocks but wait_idle(), to its deadline, and the destructor, which ends the streams of
// all members first. It survives clients that are slow, dead, half-open or not clients at all: none of them
// can hold up another.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/cluster/identity.h"
#include "muster/deadline.h"
#include "muster/net/address.h"

namespace muster::detail {

/// What becomes of the job when a task fails.
enum class FailurePolicy {
  kAbort,  ///< a task that dies, goes silent or ends without leaving aborts the job
  kWait,   ///< the others wait, at their own deadlines, for a new incarnation of it

  /// Once the job is assembled it goes on without a worker that has failed: nobody waits for it any more,
  /// and a new incarnation may enter at any time. The failure of the last worker aborts the job. A server
  /// that has failed is waited for as under kWait.
  kGoOn,
};

class Coordinator {
 public:
  struct Options {
    std::vector<Address> listen;  ///< the first that is free is taken; port 0: any
    std::string job_id;
    std::string secret;
    TaskSet tasks;  ///< who must enter before the job is assembled
    std::chrono::milliseconds heartbeat_timeout{std::chrono::seconds(10)};
    FailurePolicy failure_policy = FailurePolicy::kAbort;

    /// Under kGoOn: launchers start tasks again. A worker whose process died may come back, so the job
    /// neither finishes nor is aborted without it, until its launcher says (Member::exited) that it will not.
    bool restarts = false;

    /// Whether it logs why the job was aborted, unless the task at fault has. A launcher says it itself.
    bool logs_aborts = true;

    std::chrono::milliseconds stall_warning{std::chrono::seconds(10)};  ///< when a wait is worth a warning
    std::chrono::milliseconds wait_timeout{std::chrono::minutes(10)};   ///< and when it ends the job
  };

  /// Listens. Throws SystemError that names the addresses when none is free.
  explicit Coordinator(const Options& options);

  /// Ends all streams.
  ~Coordinator();

  const Address& address() const;

  /// Tells every task that the job is over, why, and through which task if it was one. Sticky: the first
  /// reason stays.
  void abort(const std::string& reason, std::optional<TaskName> by = {});

  struct AbortRecord {
    std::string reason;
    std::optional<TaskName> by;  ///< the task at fault, when it was one
    bool died = false;           ///< its process has ended: others who are connected to it notice it too
    bool said = false;           ///< the task itself gave the reason, and has logged it
  };
  std::optional<AbortRecord> aborted() const;

  /// Waits until no task is connected any more; false when the deadline comes first. Says each few seconds
  /// who is still there.
  bool wait_idle(Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::detail
