#pragma once

// A worker's access to the embedding tables on all servers.
//
//   TableClient tables({.endpoint = endpoint, .servers = servers, .job_id = job_id, .worker = 1});
//   tables.create({.name = "items", .width = 32, .rule = row_rule(adagrad({.lr = 0.05}))});
//   tables.pull("items", ids, rows);          // 32 floats for each id
//   tables.push("items", ids, gradients);
//
// A row is on one server, by its id. An id that is in a batch several times travels once, a push with the sum
// of its gradients. All servers concerned work at the same time.
//
// A call returns when the servers have done it, and blocks until then. When a connection breaks it is made
// anew and what was not answered is sent again; servers apply a push once. Thread-safe: one call at a time.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/base/wait_registry.h"
#include "muster/net/endpoint.h"
#include "muster/ps/server_address.h"
#include "muster/ps/table/table.h"

namespace muster::detail {

struct TableClientOptions {
  std::shared_ptr<Endpoint> endpoint;  ///< shared: it has other channels too
  std::vector<ServerAddress> servers;  ///< in the same order on all workers
  std::string job_id;
  int worker = 0;
  int incarnation = 0;                                              ///< one client for each
  std::chrono::milliseconds timeout{std::chrono::minutes(1)};       ///< for one answer
  std::chrono::milliseconds server_wait{std::chrono::seconds(30)};  ///< for a server that is gone
  /// Whether a server counts as failed, though its connections may be open, as those of a process that was
  /// stopped are. May be empty.
  std::function<bool(int server)> has_failed;
  WaitRegistry* waits = nullptr;  ///< where a server that is waited for is told of; outlives the client
  std::function<void()> check;    ///< called now and then while waiting; may throw
};

/// The methods throw PeerLost for a server that was gone for server_wait, DeadlineExceeded for one that did
/// not answer, Refused for what a server will not do, with its reason; all name the server.
class TableClient {
 public:
  /// Connects when it is first used. Throws InvalidArgument for options that make no sense.
  explicit TableClient(TableClientOptions options);
  ~TableClient();
  TableClient(const TableClient&) = delete;
  TableClient& operator=(const TableClient&) = delete;

  /// Every worker creates the tables that it uses. One that is there already must be the same.
  void create(const TableOptions& table);

  /// Throw InvalidArgument for a table that this client has not created, or for too large a batch.
  void pull(const std::string& table, std::span<const int64_t> ids, float* rows);
  void push(const std::string& table, std::span<const int64_t> ids, const float* gradients);

  /// On all servers together.
  TableSize size(const std::string& table);

 private:
  struct Server {
    ServerAddress where;
    Connection connection;
  };
  struct ServerIds;
  struct Request;

  std::string name_of(const Server& server) const MUSTER_REQUIRES(mutex_);
  size_t width_of(const std::string& table) const MUSTER_REQUIRES(mutex_);
  std::vector<ServerIds> split(std::span<const int64_t> ids) const MUSTER_REQUIRES(mutex_);
  void run(std::vector<Request>& requests) MUSTER_REQUIRES(mutex_);
  void check(size_t server) const;
  void send(Request& request) MUSTER_REQUIRES(mutex_);
  void receive(Request& request) MUSTER_REQUIRES(mutex_);
  void finish(Request& request) MUSTER_REQUIRES(mutex_);

  const TableClientOptions options_;
  const uint64_t client_;  // a random number

  Mutex mutex_;  // held during a call
  std::vector<Server> servers_ MUSTER_GUARDED_BY(mutex_);
  std::map<std::string, size_t> widths_ MUSTER_GUARDED_BY(mutex_);
  uint64_t sequence_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::detail
