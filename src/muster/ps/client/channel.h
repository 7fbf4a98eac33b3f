#pragma once

// A worker's channel to one server: by shared memory on its host, or over a link. One thread uses it. All
// calls throw PeerLost when the server is gone.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "muster/net/endpoint.h"
#include "muster/ps/model_spec.h"
#include "muster/ps/server_address.h"
#include "muster/ps/session_protocol.h"
#include "muster/ps/session_slot.h"
#include "muster/ps/store_view.h"
#include "muster/shm/arena.h"

namespace muster::detail {

struct ChannelOptions {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Arena> arena;  ///< of the worker, where its gradients are
  ServerAddress server;
  std::string job_id;
  std::string model_id;
  const ModelSpec& spec;
  const FlatLayout& layout;  ///< of what the server holds
  int index = 0;             ///< of the server
  int worker = 0;
  int incarnation = 0;
  int sockets = 1;
  bool encrypted = false;
  SpinPolicy spin_policy;
  std::function<void()> check;  ///< called now and then while waiting; may throw
};

class Channel {
 public:
  virtual ~Channel() = default;

  virtual const Welcome& welcome() const = 0;

  /// The gradient of a slice, for the push of this sequence: may go out at once. It must stay as it is until
  /// wait_consumed(sequence) has returned.
  virtual void deliver(size_t slice, uint64_t sequence, const void* data) = 0;

  /// Asks; the answer to the request of this number comes from wait_reply(). Requests count from 1.
  virtual void post(uint64_t number, const Request& request) = 0;
  virtual Reply wait_reply(uint64_t number) = 0;
  virtual void wait_consumed(uint64_t sequence) = 0;

  /// Copies one version, not below `at_least`, to where each slice goes; gives the version. `asked`: the last
  /// request asked for it.
  virtual int64_t pull(int64_t at_least, std::span<void* const> slices, bool asked) = 0;

  /// Waits until such a version is there, and copies nothing.
  virtual void wait_version(int64_t at_least) = 0;

  /// Where the server has its parameters, also when it or this is gone; nullptr when it is on another host.
  virtual std::shared_ptr<const std::byte> parameters() const { return nullptr; }
};

/// By shared memory when the server's local name is known and it really shares, else over TCP.
std::unique_ptr<Channel> open_channel(const ChannelOptions& options, Deadline deadline);

std::unique_ptr<Channel> open_memory_channel(const ChannelOptions& options, Deadline deadline);
std::unique_ptr<Channel> open_tcp_channel(const ChannelOptions& options, Deadline deadline);

}  // namespace muster::detail
