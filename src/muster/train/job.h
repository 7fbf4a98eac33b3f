#pragma once

// This process as a task of a job. Making a Job finds out who it is (from flags or any launcher's variables),
// joins the others, and waits until all are there; under a launcher that has no coordinator, the chief hosts
// it. A program alone is a job of one worker, without network.
//
//   Job job(config);
//   if (job.is_chief()) job.put("seed", "42");
//   job.get("seed");
//   job.barrier("start");
//   job.finish();
//
// Most programs get their Job from muster::run (run.h), which also finishes or aborts it.

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/config.h"
#include "muster/cluster/coordinator.h"
#include "muster/cluster/identity.h"
#include "muster/cluster/member.h"
#include "muster/collective/communicator.h"
#include "muster/net/reserved_port.h"

namespace muster {

class Job {
 public:
  /// Throws InvalidArgument (nobody knows who we are), Refused, DeadlineExceeded (a task did not come within
  /// --join-timeout).
  explicit Job(Config config);
  ~Job();

  const Config& config() const { return config_; }
  const TaskName& task() const { return identity_.task; }
  const std::string& launcher() const { return identity_.launcher; }
  bool is_chief() const { return identity_.is_chief(); }  ///< worker 0, which initialises, saves and restores
  bool is_server() const { return identity_.is_server(); }        ///< a task of the job "ps"
  int worker() const { return identity_.task.task.value_or(0); }  ///< which worker this is, from 0
  int workers() const { return identity_.count("worker"); }

  /// All tasks of the cluster in the order of their names, this one among them.
  const std::vector<TaskInfo>& tasks() const { return tasks_; }

  /// Waits for all tasks, or for those of one job. `limit` empty: for ever, or until the job is aborted.
  void barrier(const std::string& name, const std::string& job = "",
               std::optional<std::chrono::milliseconds> limit = {});

  /// Small values that all tasks share; get waits until the key is there.
  void put(const std::string& key, const std::string& value);
  std::string get(const std::string& key, std::optional<std::chrono::milliseconds> limit = {});

  /// For servers: waits until all workers have finished.
  void wait_for_workers();

  /// All workers as ranks, in the order of their names: made when first called, which all workers must do.
  /// Throws InvalidArgument on a task that is not a worker.
  Communicator& communicator();

  /// Ends the job for every task, for this reason.
  void abort(const std::string& reason);

  /// This task is done. The chief of a job without a launcher's coordinator waits for the others here.
  void finish();

 private:
  void host_coordinator();
  void on_membership_lost(const std::string& reason);
  void drop_communicator();
  void join();
  Endpoint::Options data_port() const;

  const Config config_;
  const Identity identity_;
  std::vector<TaskInfo> tasks_;
  std::optional<ReservedPort> port_;          // when nobody gave us an address
  std::unique_ptr<Coordinator> coordinator_;  // on the chief, without a launcher's

  std::mutex mutex_;
  std::optional<std::string> ended_;            // protected by mutex_: why the job has ended
  std::unique_ptr<Communicator> communicator_;  // set under mutex_
  std::unique_ptr<Member> member_;              // empty when alone; its thread uses what stands above
  std::map<std::string, std::string> values_;   // of a process alone
};

}  // namespace muster
