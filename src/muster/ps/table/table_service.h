#pragma once

// The embedding tables of one server, and how TableClients reach them.
//
//   auto endpoint = std::make_shared<Endpoint>(Endpoint::Options{.secret = secret});
//   TableService tables(endpoint, job_id);
//
// A thread takes connections, and each connection has a thread. A push is applied exactly once: one that
// comes again, after its worker's connection broke before the answer came, is only acknowledged. Whatever
// makes no sense is refused with a reason; bytes that are no request end their connection, and nothing else.
//
// The destructor ends all connections. What tables hold is gone with the service.

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "muster/base/mutex.h"
#include "muster/net/endpoint.h"
#include "muster/ps/table/table.h"
#include "muster/ps/table/table_protocol.h"

namespace muster::detail {

class TableService {
 public:
  /// Shares the endpoint, which has other channels too.
  TableService(std::shared_ptr<Endpoint> endpoint, const std::string& job_id);
  ~TableService();
  TableService(const TableService&) = delete;
  TableService& operator=(const TableService&) = delete;

 private:
  struct ServedConnection {
    Connection connection;
    std::atomic<bool> ended = false;
    std::thread thread;
  };

  // Which pushes of a worker have been applied.
  struct Worker {
    Mutex mutex;  // held while a push is applied
    uint32_t incarnation MUSTER_GUARDED_BY(mutex) = 0;
    uint64_t client MUSTER_GUARDED_BY(mutex) = 0;
    uint64_t sequence MUSTER_GUARDED_BY(mutex) = 0;
  };

  class Answer;
  struct Stopped {};

  void run(const std::string& prefix);
  void serve(Connection& connection);
  void check_stop() const;
  void answer(const RequestHead& head, std::span<const std::byte> body, Answer& answer);
  void create(const RequestHead& head, const std::string& name, const std::string& rule);
  void push(const RequestHead& head, Table& table, std::span<const int64_t> ids, const float* gradients);
  Table& table_of(const std::string& name);
  Worker& worker_of(uint32_t worker);

  const std::shared_ptr<Endpoint> endpoint_;
  std::atomic<bool> stop_ = false;

  Mutex mutex_;
  // The maps; what is in them stays where it is, and has locks of its own.
  std::map<std::string, Table> tables_ MUSTER_GUARDED_BY(mutex_);
  std::map<uint32_t, Worker> workers_ MUSTER_GUARDED_BY(mutex_);

  std::list<ServedConnection> served_;  // of thread_, and of the destructor after it
  std::thread thread_;
};

}  // namespace muster::detail
