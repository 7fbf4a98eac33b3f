#pragma once

// A worker's side of the parameter servers.
//
//   ParameterClient client({.endpoint = endpoint, .spec = spec, .worker = 1, .find_server = find_server});
//   if (chief) client.initialise(variables);  // the first parameters; the others' enter() waits for them
//   Reply reply = client.enter();             // a token
//   int64_t version = client.pull(reply.version, variables);
//   while (reply.kind == Reply::Kind::kBegin) {
//     for (...) client.deliver(i, gradient);  // as backward finishes them
//     reply = client.push({.step = reply.step, .version = version, .lr = 0.1});
//     version = client.pull(reply.version, variables);
//   }
//   client.leave();
//
// A server that is gone is waited for, up to `server_wait`: when only the link broke, what was not answered
// is said again, and counts once. One thread uses it. Calls throw PeerLost (a server did not come back),
// DataLoss (it came back without its parameters), Refused, and what `check` throws.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "muster/base/wait_registry.h"
#include "muster/ps/client/channel.h"
#include "muster/ps/placement.h"
#include "muster/shm/arena.h"
#include "muster/shm/thread_pool.h"

namespace muster::detail {

class ParameterClient {
 public:
  struct Options {
    std::shared_ptr<Endpoint> endpoint;
    std::string job_id;
    std::string model_id;
    ModelSpec spec;
    int worker = 0;
    int incarnation = 0;
    int sockets = 1;
    bool encrypted = false;
    std::chrono::milliseconds join_timeout{std::chrono::minutes(5)};  ///< for servers to be there at first
    std::chrono::milliseconds server_wait{std::chrono::seconds(30)};  ///< for one that is gone
    /// Where a server is now; with a local name where memory is to be shared with it.
    std::function<ServerAddress(int server, Deadline deadline)> find_server;
    /// Whether a server counts as failed, though its connections may be open, as those of a process that was
    /// stopped are. May be empty.
    std::function<bool(int server)> has_failed;
    WaitRegistry* waits = nullptr;  ///< where a server that is waited for is told of; outlives the client
    /// Called now and then while waiting, when the wait has been looked at; may throw.
    std::function<void()> check;
  };

  /// Reaches all servers, and waits for them up to `join_timeout`. Throws DeadlineExceeded too.
  explicit ParameterClient(Options options);
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  const Placement& placement() const { return placement_; }

  /// Memory that servers of this host read in place; freed with the last reference.
  std::shared_ptr<void> allocate(size_t bytes);

  void initialise(std::span<const void* const> variables);
  Reply enter();

  /// The gradient of a variable, as it should be used. It must stay as it is until after the push one of
  /// pull(), wait_version() and wait_consumed() has returned.
  void deliver(size_t variable, const void* gradient);

  /// Says that all gradients are there, and waits for leave to go on. The sequence is set here.
  Reply push(Push push);

  /// Until nobody reads the gradients of the last push any more.
  void wait_consumed();

  /// This worker has no more data: waits until all have none. post_finish_epoch() says so and does not wait;
  /// the next call must be wait_next_epoch(), which does.
  Reply finish_epoch();
  void post_finish_epoch();
  Reply wait_next_epoch();

  /// Between two steps, around a time in which this worker waits for others elsewhere: nobody waits for it here
  /// while it is away. When it is back it is counted on again; resume() waits for a token.
  void away();
  void back();
  Reply resume();
  void leave();

  /// Copies the parameters of one version, not below `at_least`, and gives it. Each server's part is of one
  /// version; with several servers all are at least this one.
  int64_t pull(int64_t at_least, std::span<void* const> variables);

  /// Where the parameters are on the only server, when it is on this host; else nullptr. They may be read
  /// there, when the version is there that is asked for, as long as no update can come. Throws PeerLost when
  /// the server did not come back.
  void wait_version(int64_t at_least);
  std::shared_ptr<const std::byte> parameters() const;

 private:
  template <typename Action>
  void with(size_t server, const Action& action);
  void connect_first(size_t server, Deadline deadline);
  void connect(size_t server, Deadline deadline);
  void say_gone(size_t server, const std::string& why) const;
  void reconnect(size_t server, const std::string& why);
  void repeat(size_t server);
  void check(int server) const;
  void check_reached(size_t server) const;
  int64_t pull_from(size_t server, int64_t at_least, std::span<void* const> variables, bool asked);
  const void* part_of(const Slice& slice, const void* variable) const;
  Reply ask(Request request);
  void post(Request request);
  Reply wait_reply();
  void tell_all(const Request& request);
  void tell(size_t server, const Request& request);
  const void* reachable(size_t variable, const void* data);

  struct Server {
    std::unique_ptr<Channel> channel;
    uint64_t instance = 0;
    uint64_t asked = 0;         // requests
    Request request;            // the last
    std::vector<void*> slices;  // where a pull goes
  };

  const Options options_;
  const Placement placement_;
  const std::shared_ptr<Arena> arena_;
  const bool is_main_;  // the job's own thread uses it
  std::vector<Server> servers_;
  uint64_t sequence_ = 1;               // of the next push
  uint64_t unconsumed_ = 0;             // of the last push, while servers may read its gradients
  std::vector<const void*> delivered_;  // of each variable, for the next push
  std::vector<std::shared_ptr<void>> staging_buffers_;  // for gradients that lie outside of the arena
  std::unique_ptr<ThreadPool> pool_;                    // pulls from several servers on other hosts at once
  bool pulled_with_reply_ = false;                      // the leader sends parameters behind its last reply
};

}  // namespace muster::detail
