#pragma once

// Sessions that run on a cluster: the client's side of runtime.proto and of step_link.h. A master makes ready
// what a signature needs; each step is then asked of the tasks themselves, which send back what is fetched.
//
// Thread-safe. A task's data link has a thread here that reads what comes.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/net/endpoint.h"
#include "muster/runtime/program.h"
#include "muster/runtime/runtime_stream.h"
#include "muster/runtime/session_backend.h"
#include "muster/runtime/shared_values.h"
#include "muster/runtime/step_link.h"
#include "muster/runtime/step_status.h"

namespace muster::detail {

class Config;

class RemoteSession final : public SessionBackend {
 public:
  RemoteSession(const std::string& target, const Graph& graph, Session::Options options);
  ~RemoteSession() override;

  std::shared_ptr<Callable::State> prepare(const Signature& signature) override;

 private:
  class RemoteCallable;
  class NotBegun;

  RemoteSession(const std::string& target, const Graph& graph, Session::Options options, const Config& job);

  // A graph may grow between runs, and its nodes may be moved.
  struct GraphState {
    size_t nodes = 0;
    uint64_t placements = 0;
    bool operator==(const GraphState&) const = default;
  };
  GraphState graph_now() const;

  // A task's data link. Ended when the session or the task is.
  struct TaskLink {
    runtime::Peer peer;
    std::shared_ptr<StepLink> link;
    std::thread reader;
    bool is_lost = false;  // of the session's mutex
  };

  // A run that is under way; it is on the stack of whoever waits for it.
  struct Step {
    struct Part {
      TaskLink* task = nullptr;
      const runtime::Prepared::Part* prepared = nullptr;
      bool has_begun = false;
      bool is_done = false;
    };
    std::vector<Part> parts;
    std::vector<at::Tensor> results;
    Timeline* timeline = nullptr;  // gets what was done when, unless it is null
    StepStatus status;
    size_t missing = 0;
    ConditionVariable changed;
  };

  // When a run that begins now has to be over.
  Deadline deadline_of_run() const;

  void open(Deadline deadline, Deadline until_all_are_there) MUSTER_REQUIRES(preparing_);
  void send_whole_graph(Deadline deadline) MUSTER_REQUIRES(preparing_);
  runtime::Prepared prepare_at_master(const Signature& signature, Deadline deadline);
  runtime::Reply ask(runtime::Request request, Deadline deadline) MUSTER_REQUIRES(preparing_);
  std::vector<at::Tensor> run(const runtime::Prepared& prepared, const std::vector<at::Tensor>& feeds,
                              size_t fetches, Deadline deadline, Timeline* timeline);
  void begin(uint64_t id, Step& step, const runtime::Prepared& prepared, const std::vector<at::Tensor>& feeds,
             Deadline deadline);
  TaskLink& link_to(const runtime::Peer& peer, Deadline deadline);
  void read(TaskLink& task);
  void receive(TaskLink& task, StepFrame frame);
  static void fail(Step& step, const StepStatus& status);
  void abort_others(uint64_t id, const Step& step);
  std::string too_long(const std::string& who) const;
  std::string missing_tasks(const Step& step) const;

  const Graph& graph_;
  const Session::Options options_;
  const Address address_;
  const std::string secret_;
  const std::chrono::milliseconds stall_warning_;  // after which a run that waits says for whom; 0: never
  TaskMemory memory_;
  Endpoint endpoint_;

  Mutex preparing_;  // one request at a time
  std::unique_ptr<RuntimeClient> master_ MUSTER_GUARDED_BY(preparing_);
  GraphState sent_ MUSTER_GUARDED_BY(preparing_);
  std::string missing_ MUSTER_GUARDED_BY(preparing_);  // whom the master waits for, as it said last

  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<TaskLink>> links_ MUSTER_GUARDED_BY(mutex_);  // by local name
  std::vector<std::unique_ptr<TaskLink>> lost_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint64_t, Step*> steps_ MUSTER_GUARDED_BY(mutex_);
  uint64_t next_step_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
