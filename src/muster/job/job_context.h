#pragma once

// What stands behind a Job (muster/job.h): what the rooms above need of the task that this process is. Making
// one finds out who it is (from flags or any launcher's variables), enters the job, and waits until all tasks
// are there; under a launcher that has no coordinator, the chief hosts it.
//
// It belongs to the thread that made it, in the process that made it. In a job of several tasks other
// threads, too, may call barrier, put, get, gather, find_server, wait_for_workers, check and abort. What
// waits for other tasks blocks, where it takes no limit until the coordinator finds it too long, unless the
// job is aborted: then it throws Aborted, or PeerLost when the coordinator is gone. So do the calls that
// other threads are in when it is destroyed, which waits for them to return. It owns its communicator, its
// tables and its membership; the endpoint is shared with what uses it.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/config.h"
#include "muster/base/mutex.h"
#include "muster/base/wait_registry.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/identity.h"
#include "muster/cluster/member.h"
#include "muster/communicator.h"
#include "muster/job/counted_on.h"
#include "muster/net/endpoint.h"
#include "muster/net/reserved_port.h"
#include "muster/ps/server_address.h"
#include "muster/ps/table/table_client.h"

namespace muster::detail {

class JobContext {
 public:
  /// Throws InvalidArgument (nobody knows who we are, or a setting has no effect), Refused,
  /// DeadlineExceeded (a task did not come within --join-timeout).
  explicit JobContext(Config config);
  ~JobContext();
  JobContext(const JobContext&) = delete;
  JobContext& operator=(const JobContext&) = delete;

  const Config& config() const { return config_; }
  const TaskName& task() const { return identity_.task; }
  const std::string& launcher() const { return identity_.launcher; }
  bool is_chief() const { return identity_.is_chief(); }  ///< worker 0, which initialises, saves and restores
  bool is_server() const { return identity_.is_server(); }       ///< a task of the job "ps"
  int index() const { return identity_.task.task.value_or(0); }  ///< the number in its task's name
  int rank() const;  ///< of a worker, its place among them. Throws InvalidArgument on another task

  /// Whether the tasks of the job "ps" serve parameters instead of running the program's body.
  bool servers_serve() const { return config_.uses_servers(); }
  int workers() const { return identity_.count("worker"); }
  std::vector<std::string> worker_names() const;  ///< "worker/0", ... by rank

  /// All tasks of the cluster in the order of their names, this one among them.
  const std::vector<TaskInfo>& tasks() const { return tasks_; }

  /// Waits for all tasks, or for those of one job. `limit` empty: until the job is aborted.
  void barrier(const std::string& name, const std::string& job = "",
               std::optional<std::chrono::milliseconds> limit = {});

  /// Small values that all tasks share; get waits until the key is there. `from`: the task that puts it, where
  /// only one does ("worker/0"): when it is gone, nobody waits for the key any more.
  void put(const std::string& key, const std::string& value);
  std::string get(const std::string& key, std::optional<std::chrono::milliseconds> limit = {},
                  const std::string& from = "");

  /// The same for values of any length, which go in pieces: the coordinator's have a limit.
  void put_long(const std::string& key, const std::string& value);
  std::string get_long(const std::string& key, std::optional<std::chrono::milliseconds> limit = {},
                       const std::string& from = "");

  /// For servers: waits until all workers have finished.
  void wait_for_workers();

  /// All workers as ranks, in the order of their names: made when first called, which all workers must do.
  /// Throws InvalidArgument on a task that is not a worker.
  Communicator& communicator();

  /// Whether anybody has asked for the communicator.
  bool has_communicated() const;

  /// What each worker brought, in their order; called by all. In a job that goes on without failed workers,
  /// of those that are there.
  std::vector<std::string> gather(const std::string& name, const std::string& value);

  /// This task's data port, where others connect; made when first called.
  std::shared_ptr<Endpoint> endpoint();

  /// What its links between hosts are called, and whether they are encrypted.
  const std::string& id() const { return identity_.job_id; }
  bool encrypted() const { return !config_.tls_cert.empty(); }

  // Parameter servers.
  int servers() const { return identity_.count("ps"); }

  /// Says where this server can be reached; and where another can, with a local name where it is on this host
  /// and memory may be shared.
  void announce_server();
  ServerAddress find_server(int server, Deadline deadline);

  /// Whether the coordinator has given this server up, and it has not entered again.
  bool server_has_failed(int server) const;

  /// Embedding tables on the parameter servers. Throws InvalidArgument where there are none.
  TableClient& tables();

  /// Number the models that are trained, and their specs as parameter servers get them, from 1, equally on all
  /// workers. A model that can't be trained has no spec.
  int next_model() { return ++last_model_; }
  int next_model_spec() { return ++model_specs_; }

  /// Whether this task has trained anything: a model, or a table on the parameter servers.
  bool has_trained() const { return has_models() || tables_ != nullptr; }
  bool has_models() const { return last_model_ > 0; }

  /// The models that this worker trains now, in the order in which they began. Whoever trains one adds it, and
  /// takes it out before it is destroyed.
  std::vector<CountedOn*>& models() { return models_; }

  /// Gradients of a Trainer's step that are not its own, as those of embedding rows.
  class OtherGradients {
   public:
    virtual ~OtherGradients() = default;
    /// The step's gradient has been used: uses these, divided by `divisor`.
    virtual void apply(double divisor) = 0;
  };

  /// The backward pass that a Trainer runs now. Of the thread that trains.
  struct Backward {
    double scale = 1;           ///< its loss was multiplied by it: gradients that go other ways are divided
    bool may_overflow = false;  ///< they may have become infinite from that
    /// Those of the step, which its first pass makes; nullptr: no Trainer's pass, and nothing to wait for.
    std::unique_ptr<OtherGradients>* others = nullptr;
  };
  Backward& backward() { return backward_; }

  /// A Trainer has failed for this reason and takes no more steps; the first one is kept, for when the program
  /// goes on as if nothing had happened.
  void note_failed_training(const std::string& why);
  std::string failed_training();

  /// Called, from another thread, for each task that fails while the job goes on.
  void on_task_failed(std::function<void(const TaskInfo& task)> callback);

  /// What this task waits for. Whoever waits for others says so there.
  WaitRegistry& waits() { return waits_; }

  /// Expires when this is destroyed: for those who may be called after it.
  std::weak_ptr<const void> alive() const { return alive_; }

  /// Whether this process is a fork of the task, which has none of its threads and connections; and the same
  /// as an InvalidArgument.
  bool is_of_a_fork() const;
  void check_process() const;

  /// Throws what ended the job, when something has. For those who wait, from time to time.
  void check();
  bool has_ended();

  /// Waits until the job has ended; false when the deadline comes first.
  bool wait_ended(Deadline deadline);

  /// What to say of it when something else than this task has ended the job: one line, without what the task
  /// at fault says itself. Empty when the job has not ended, or this task has ended it.
  std::string why_stopped();

  /// Ends the job for every task, for this reason.
  void abort(const std::string& reason);

  /// This task is done. The chief of a job without a launcher's coordinator waits for the others here.
  void finish();

 private:
  class Call;

  void host_coordinator();
  void on_ended(const Member::Ended& ended);
  void report_failed_task(const TaskInfo& task);
  void finish_communicator();
  void drop_communicator();
  bool is_called();
  void end_calls();
  void enter();
  std::string collective_settings() const;
  void take_same_settings(std::vector<std::string>& texts) const;
  void warn_about_settings() const;
  Endpoint::Options data_port() const;

  template <typename Wait>
  auto wait_away(const Wait& wait);
  std::string last_collective();

  const std::shared_ptr<const void> alive_ = std::make_shared<char>();
  const pid_t process_;
  const Config config_;
  const Identity identity_;
  WaitRegistry waits_;
  std::vector<TaskInfo> tasks_;
  std::optional<ReservedPort> port_;          // when nobody gave us an address
  std::unique_ptr<Coordinator> coordinator_;  // on the chief, without a launcher's

  mutable Mutex mutex_;
  ConditionVariable has_ended_;                                   // the job, or the last call
  int calls_ MUSTER_GUARDED_BY(mutex_) = 0;                       // in which some thread is
  std::optional<Member::Ended> ended_ MUSTER_GUARDED_BY(mutex_);  // how the job has ended
  std::vector<TaskInfo> failed_ MUSTER_GUARDED_BY(mutex_);
  std::string failed_training_ MUSTER_GUARDED_BY(mutex_);
  std::function<void(const TaskInfo&)> on_task_failed_ MUSTER_GUARDED_BY(mutex_);
  std::shared_ptr<Endpoint> endpoint_;
  int last_model_ = 0;
  int model_specs_ = 0;
  std::vector<CountedOn*> models_;  // not owned
  Backward backward_;
  std::unique_ptr<TableClient> tables_;
  // Shared with the thread that aborts it.
  std::shared_ptr<Communicator> communicator_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<Member> member_;             // empty when alone; its thread uses what stands above
  std::map<std::string, std::string> values_;  // of a process alone
};

}  // namespace muster::detail
