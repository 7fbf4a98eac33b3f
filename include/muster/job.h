#pragma once

// This process as a task of a job. A program gets its Job from muster::run (run.h), which has found out who
// it is, from flags or any launcher's variables, and has waited until all tasks are there. A program alone is
// a job of one worker, without network.
//
//   if (job.is_chief()) job.put("seed", "42");
//   const std::string seed = job.get("seed");
//   job.barrier("start");
//   std::printf("%s is worker %d of %d\n", job.task().name.c_str(), job.rank(), job.size());
//
// It belongs to the thread that runs the program's body; in a job of several tasks other threads, too, may
// call barrier, put, get, gather and wait_for_workers. What waits for other tasks blocks, where it is given
// no limit for up to --collective-timeout, unless the job ends: then all calls that wait throw Aborted with
// the reason, or PeerLost when the coordinator is gone. Tasks that wait for each other in different places
// end the job too, and are told so. To end the job for every task, throw an exception: its text is the reason
// that all are told.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/progress.h"

namespace muster {

class Communicator;

namespace detail {
class Config;
class JobContext;
}  // namespace detail

/// What every task of a job knows of each.
struct Task {
  std::string name;     ///< The task's name, for example "worker/1".
  std::string address;  ///< The task can be reached here, "10.0.0.7:2222"; empty in a program alone.
  std::string host;     ///< The name of its host, for people.
  int pid = 0;          ///< The process on that host.
};

class Job {
 public:
  /// For Muster's own rooms and tests: enters the job that `config` describes. Throws InvalidArgument (nobody
  /// knows who we are), Refused, DeadlineExceeded (a task did not come within --join-timeout).
  explicit Job(detail::Config config);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Which worker this is, 0 to size() - 1. Throws InvalidArgument on a task that is not a worker.
  int rank() const;
  int size() const;        ///< The number of workers.
  bool is_chief() const;   ///< Whether this is worker 0, which initialises, prints and saves for all.
  bool is_server() const;  ///< Whether this is a parameter server, that is a task of the job "ps".

  int index() const;             ///< The number in this task's name: 1 of worker/1 and of ps/1.
  int servers() const;           ///< The number of parameter servers.
  int incarnation() const;       ///< How often the launcher has restarted this task.
  std::string launcher() const;  ///< Who started this task, for people: "muster run", "mpirun", ...

  const Task& task() const;                ///< This task.
  const std::vector<Task>& tasks() const;  ///< All tasks of the job, in the order of their names.

  /// Waits until all tasks have come to the barrier of this name: the workers, and with --strategy none the
  /// servers too, which run the program as workers do. Names that begin with "muster/" are taken, here
  /// and below.
  void barrier(const std::string& name, std::optional<std::chrono::milliseconds> limit = {});

  /// Small values that all tasks share, of up to 32 MiB each; put replaces what was there, and throws
  /// InvalidArgument for a larger one. get waits until the key is there, and throws DeadlineExceeded at the
  /// limit. Without a limit, where no other task can go on either, the job ends after --stall-warning: a
  /// thread of the program's that is still to put the key is not known of, and must not take longer.
  void put(const std::string& key, const std::string& value);
  std::string get(const std::string& key, std::optional<std::chrono::milliseconds> limit = {});

  /// What each worker brought, in their order; called by all workers. In a job that goes on without workers
  /// that have failed, of those that are there. Throws InvalidArgument when what all bring together would
  /// exceed 32 MiB.
  std::vector<std::string> gather(const std::string& name, const std::string& value);

  /// All workers as ranks: made when first called, which all workers must do. Throws InvalidArgument on a
  /// task that is not a worker.
  Communicator& communicator();

  /// For servers: waits until all workers have finished.
  void wait_for_workers();

  /// How a Progress (progress.h) of this task should look: as --progress says on the chief, off elsewhere.
  ProgressStyle progress_style() const;

  /// For Muster's own rooms: what stands behind it.
  detail::JobContext& context() { return *context_; }

 private:
  std::unique_ptr<detail::JobContext> context_;
  std::vector<Task> tasks_;
  Task task_;  // Of this process.
};

}  // namespace muster
