#pragma once

// What the coordinator knows and decides, without sockets, threads or clocks: messages and the time go in,
// messages come out. The service (coordinator.cc) carries them; the tests call it directly.
//
// Invariants:
//  1. A stream that has not proved the secret can reach nothing but its own handshake.
//  2. A task has at most one live stream; a higher incarnation replaces a lower one.
//  3. An abort is sticky: every member is told once, and every later message is answered with it.
//  4. A task that was welcomed has entered with its next message: one that gave up waiting for the welcome
//     has not failed. Until then it may take as long as it needs, since it has proved the secret.
//  5. Every request is answered exactly once, unless its stream ends first.
//
// Not thread-safe: the service holds one lock around every call.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/base/log_limit.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/coordinator.pb.h"
#include "muster/cluster/identity.h"
#include "muster/cluster/task_info.h"
#include "muster/cluster/wait_watch.h"
#include "muster/deadline.h"
#include "muster/net/secret.h"

namespace muster::detail {

class CoordinatorState {
 public:
  using StreamId = uint64_t;
  using Time = Deadline::Clock::time_point;

  struct Options {
    std::string job_id;
    std::string secret;
    TaskSet tasks;
    std::chrono::milliseconds heartbeat_timeout{std::chrono::seconds(10)};
    FailurePolicy failure_policy = FailurePolicy::kAbort;
    bool restarts = false;
    bool logs_aborts = true;
    WaitWatch::Options waits = {};
  };

  struct Actions {
    std::function<void(StreamId, proto::FromCoordinator)> send;
    std::function<void(StreamId)> close;  ///< after what was sent has gone out
  };

  CoordinatorState(Options options, Actions actions);

  void connected(StreamId stream, std::string peer, Time now);
  void received(StreamId stream, const proto::FromMember& message, Time now);
  void disconnected(StreamId stream, Time now);

  /// Expires handshakes, heartbeats and requests, and says each few seconds who is missing. Call it often.
  void tick(Time now);

  void abort(const std::string& reason, std::optional<TaskName> by);

  /// The launcher saw a task's process end, in whatever way, and will not start it again. Nothing happens
  /// when it has left.
  void exited(const TaskName& task, const std::string& how, Time now);

  using AbortRecord = Coordinator::AbortRecord;
  const std::optional<AbortRecord>& aborted() const { return aborted_; }

  /// All workers have left; under kGoOn, all but those that have failed.
  bool finished() const { return finished_; }

  /// No task is connected: nobody needs the coordinator any more. Strangers do not count.
  bool idle() const;

  /// Expected tasks that have not entered yet, and tasks that are connected now.
  std::vector<std::string> missing() const;
  std::vector<std::string> present() const;

 private:
  enum class StreamStatus { kConnected, kChallenged, kWelcomed, kMember, kClosing };
  struct Stream {
    StreamStatus status = StreamStatus::kConnected;
    std::string peer;
    std::string server_nonce;
    bool proved = false;  ///< that it knows the secret
    proto::Hello hello;
    TaskInfo self;
    Time last_heard;
  };
  enum class TaskStatus { kAbsent, kEntered, kFailed, kLeft };
  struct TaskState {
    TaskStatus status = TaskStatus::kAbsent;
    StreamId stream = 0;
    TaskInfo info;
    bool expected = false;  ///< part of the cluster, not an observer
    std::string ended;      ///< how, when it is not there and will not be started again
  };
  struct Pending {
    StreamId stream = 0;
    proto::Request request;
    Time started;
    std::optional<Time> deadline;
    uint64_t generation = 0;  ///< of a barrier: how often its task has come to it
    bool away = false;        ///< those who count on its task elsewhere may have been told not to
  };

  /// Answers that go out together, once all tasks among them that are away have returned.
  struct Release {
    std::vector<std::pair<StreamId, proto::FromCoordinator>> answers;
    std::set<std::pair<StreamId, uint64_t>> awaited;  ///< streams and their requests
  };

  void on_hello(StreamId id, Stream& stream, const proto::Hello& hello);
  void on_proof(StreamId id, Stream& stream, const proto::Proof& proof);
  void admit(StreamId id, Stream& stream);
  void on_request(StreamId id, const proto::Request& request, Time now);
  void on_leave(StreamId id, Stream& stream);
  void on_abort(const Stream& stream, const proto::Abort& message);
  void refuse(StreamId id, Stream& stream, const std::string& reason,
              proto::Refusal::Kind kind = proto::Refusal::FINAL);
  void send_refusal_and_close(StreamId id, Stream& stream, const std::string& reason,
                              proto::Refusal::Kind kind);

  std::optional<std::string> reason_to_refuse(const Stream& stream) const;
  void check_assembled();
  void abort_if_a_task_never_enters();
  struct TaskFailure {
    std::string how;
    bool may_return = false;
    bool died = false;  // and is not merely silent
  };
  void fail(StreamId id, Stream& stream, const TaskFailure& failure, Time now);
  void abort(AbortRecord record);
  bool survives_failures() const;
  void tell_of_failure(const TaskInfo& task);
  void settle_failure(const TaskState& failed);
  bool is_given_up(const TaskName& name, const TaskState& state) const;
  bool no_worker_is_left() const;
  static bool is_worker(const TaskName& name);
  void drop_requests_of(StreamId id);
  void settle_barriers();
  void check_finished();
  void reply(const Pending& pending, proto::Reply::Code code, const std::string& message,
             const std::string& value = "", const std::vector<std::string>& values = {});
  static void add_reply(Release& release, const Pending& pending, proto::Reply::Code code,
                        const std::string& message, const std::string& value = "",
                        const std::vector<std::string>& values = {});
  void send(Release release);
  void on_away(StreamId id, uint64_t request);
  void on_returned(StreamId id, std::optional<uint64_t> request);
  void send_complete_releases();
  std::string what_is_missing(const Pending& pending, Time now) const;
  /// The requests by which tasks wait in the same barrier; they are not this one's.
  struct Meeting {
    const Pending* any = nullptr;
    std::map<StreamId, const Pending*> here;

    /// The task's; null when it is not here.
    const Pending* of(const TaskState& task) const {
      const auto found = task.status == TaskStatus::kEntered ? here.find(task.stream) : here.end();
      return found == here.end() ? nullptr : found->second;
    }
  };
  Meeting meeting_of(const Pending& pending) const;
  bool is_same_meeting(const Pending& one, const Pending& other) const;
  std::vector<TaskName> participants(const Meeting& meeting) const;
  std::vector<TaskName> absent_from(const Pending& pending) const;
  bool goes_on_without(const TaskName& task) const;
  void watch_waits(Time now);
  WaitWatch::View view_of_waits() const;
  const Pending* pending_of(const std::string& task,
                            const std::function<bool(const proto::Request&)>& is) const;
  std::string challenge_of(const Stream& stream, const char* role) const;
  void broadcast(const proto::FromCoordinator& message);
  std::string entered_count() const;

  const Options options_;
  const Secret secret_;
  const Actions actions_;
  std::map<StreamId, Stream> streams_;
  std::map<TaskName, TaskState> tasks_;
  std::map<std::string, std::string> values_;
  std::vector<Pending> pending_;
  std::vector<Release> releases_;
  /// How often each task, in its present incarnation, has come to the barrier of a name.
  std::map<std::string, std::map<TaskName, uint64_t>> arrivals_;
  std::optional<AbortRecord> aborted_;
  bool assembled_ = false;
  bool finished_ = false;
  std::optional<Time> last_tick_;
  std::optional<Time> last_reminder_;
  Time now_;  // as the last message or tick had it
  LogLimit refusals_;
  WaitWatch wait_watch_;
  std::optional<Time> last_look_;  // at the waits
};

}  // namespace muster::detail
