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
// call barrier, put, get and wait_for_workers. What waits for other tasks blocks, for ever where it is given
// no limit, unless the job ends: then all calls throw Aborted with the reason, or PeerLost when the
// coordinator is gone. To end the job for every task, throw an exception: its text is the reason that all are
// told.

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
  std::string name;     ///< "worker/1"
  std::string address;  ///< where it can be reached, "10.0.0.7:2222"; empty in a program alone
  std::string host;     ///< for people
  int pid = 0;
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
  int size() const;        ///< number of workers
  bool is_chief() const;   ///< worker 0, which has the common duties: to initialise, to print, to save
  bool is_server() const;  ///< a parameter server, that is a task of the job "ps"

  int index() const;             ///< the number in its task's name: 1 of worker/1 and of ps/1
  int servers() const;           ///< number of parameter servers
  int incarnation() const;       ///< how often the launcher has restarted this task
  std::string launcher() const;  ///< who started it, for people: "muster run", "mpirun", ...

  const Task& task() const;                ///< this one
  const std::vector<Task>& tasks() const;  ///< all, in the order of their names

  /// Waits until all tasks have come to the barrier of this name: the workers, and with --strategy allreduce
  /// the servers too, which run the program as workers do. Names that begin with "muster/" are taken, here
  /// and below.
  void barrier(const std::string& name, std::optional<std::chrono::milliseconds> limit = {});

  /// Small values that all tasks share, up to 64 MiB; put replaces what was there. get waits until the key is
  /// there, and throws DeadlineExceeded at the limit.
  void put(const std::string& key, const std::string& value);
  std::string get(const std::string& key, std::optional<std::chrono::milliseconds> limit = {});

  /// What each worker brought, in their order; called by all workers. In a job that goes on without workers
  /// that have failed, of those that are there.
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
  Task task_;  // this one
};

}  // namespace muster
