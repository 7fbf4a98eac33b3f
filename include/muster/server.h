#pragma once

// A task of a cluster that runs graphs (graph.h): a master, which takes in the graphs of clients and cuts
// them into parts, and a worker, which keeps variables and runs a part, on one port.
//
//   // the same on each task, with its own number
//   muster::ClusterSpec cluster{{"ps", {"h1:2222"}}, {"worker", {"h2:2222", "h3:2222"}}};
//   muster::Server server(cluster, "ps", 0);
//   server.join();
//
// A client connects a Session (session.h) to target() of any of them. Who can do so can run any operator
// there, with the rights of the server's user: only those are let in who prove that they know the job's
// secret, which is never sent. All tasks and clients need the same one: MUSTER_SECRET, or Options::secret.
//
// Thread-safe. Only join() blocks, and the destructor, which ends all sessions and waits for what runs.

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// Which tasks a cluster has, and where each listens.
class ClusterSpec {
 public:
  using Jobs = std::map<std::string, std::vector<std::string>>;  ///< The addresses of each job's tasks.

  /// Throws InvalidArgument for an address that is none or that two tasks share.
  ClusterSpec(std::initializer_list<Jobs::value_type> jobs) : ClusterSpec(Jobs(jobs)) {}
  explicit ClusterSpec(const Jobs& jobs);

  /// Reads {"ps": ["h1:2222"], "worker": ["h2:2222", "h3:2222"]}, or the same as
  /// "ps=h1:2222;worker=h2:2222,h3:2222".
  static ClusterSpec parse(std::string_view text);

  const Jobs& jobs() const { return jobs_; }

 private:
  Jobs jobs_;
};

class Server {
 public:
  struct Options {
    std::string secret;         ///< Empty: the environment variable MUSTER_SECRET.
    bool shared_memory = true;  ///< Inside a host values are read in place; else they go over sockets.

    /// How many bytes the tensors of this task may have, variables and what runs compute; 0: as many as there
    /// are. A run that needs more fails with InvalidArgument, which names the node.
    size_t memory_limit = 0;

    /// How long a client, or the master of its session, may answer nothing, as when its host is cut off, until
    /// it counts as gone and all that it had here goes.
    std::chrono::milliseconds client_silence = std::chrono::minutes(1);
  };

  /// Starts the task `task` of `job`. Throws InvalidArgument for a task that the cluster does not have and
  /// where there is no secret, SystemError when its port can't be had.
  Server(const ClusterSpec& cluster, const std::string& job, int task, Options options);
  Server(const ClusterSpec& cluster, const std::string& job, int task)
      : Server(cluster, job, task, Options()) {}
  ~Server();
  Server(Server&&) noexcept;
  Server& operator=(Server&&) noexcept;

  /// A cluster of one task, /job:local/task:0, on a free port of this host. It makes a secret of its own,
  /// which the sessions of this process know.
  static Server create_local();

  /// The task that this process is, as its launcher says: `muster run` (MUSTER_CLUSTER and MUSTER_TASK), or
  /// TF_CONFIG. Throws InvalidArgument where nobody does, and where TLS is asked for, which servers do not
  /// have.
  static Server of_environment(Options options);
  static Server of_environment() { return of_environment(Options()); }

  const ClusterSpec& cluster() const;
  const std::string& job() const;  ///< Of this task.
  int task() const;

  /// What a Session of this cluster is told: "grpc://h2:2222"; and that of another task.
  const std::string& target() const;
  std::string target(const std::string& job, int task) const;

  /// Waits until somebody stops it: stop(), `muster server --stop target`, a MonitoredSession at its last step.
  /// A server that still waits when all workers of `muster run` have ended is ended by that.
  void join();
  void stop();

  /// Stops the server behind a target. Throws Refused where the secret is another one, PeerLost where nobody
  /// is.
  static void stop(const std::string& target, Options options);
  static void stop(const std::string& target) { stop(target, Options()); }

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace muster
