#pragma once

// A worker on another host, as its server sees it: uses a SessionSlot in the server's memory for the worker,
// and carries what is said there over a link. The server treats it like a worker of its own host.
//
// One thread receives: gradients go into one of two buffers, in turn, from which the server uses them.
// Another sends: replies, and parameters as the server makes them; what does not go out at once it copies, so
// that a slow network holds up nobody. The link may break and another be attached: what was received
// stays.
//
// Whatever the other side sends that it should not, ends the link, with the reason in the log. Gradients of a
// push that has been taken already are a repetition: they are passed over.
//
// attach(), detach() and close() are thread-safe.

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/dtype.h"
#include "muster/base/mutex.h"
#include "muster/net/blocking_link.h"
#include "muster/ps/model_spec.h"
#include "muster/ps/session_protocol.h"
#include "muster/ps/store_view.h"

namespace muster::detail {

class RemoteWorker {
 public:
  struct Options {
    std::string name;  ///< "worker/2", for messages
    const StoreView& view;
    Doorbell& doorbell;
    const ModelSpec& spec;
    SpinPolicy spin_policy;
  };

  explicit RemoteWorker(Options options);
  ~RemoteWorker();
  RemoteWorker(const RemoteWorker&) = delete;
  RemoteWorker& operator=(const RemoteWorker&) = delete;

  SessionSlot& slot() { return *slot_; }

  /// Where the offsets of the slot count from.
  const std::byte* base() const { return buffers_.data(); }
  size_t capacity() const { return buffers_.size(); }

  /// Goes on with a new link, after the old one if there was any. Not after close(): the link is dropped.
  void attach(std::unique_ptr<BlockingLink> link);

  /// Ends the link, if there is one: nothing more comes. What has come stays.
  void detach();

  /// detach() for good.
  void close();

  /// Since when there has been no link.
  std::optional<Deadline::Clock::time_point> gone_since() const;

 private:
  void stop() MUSTER_REQUIRES(link_mutex_);
  void drop_link() MUSTER_REQUIRES(link_mutex_);
  void start(void (RemoteWorker::*body)(), std::thread& thread);
  void receive();
  void receive_slice(const Frame& frame);
  void receive_request(const Frame& frame);
  void send();
  void send_reply(uint64_t number);
  void send_parameters(int64_t version);
  void check() const;
  void broken();

  const Options options_;
  const FlatLayout& layout_;
  std::shared_ptr<SessionSlot> slot_;
  std::vector<std::byte> buffers_;         // two, and nothing at offset 0
  std::array<std::vector<bool>, 2> here_;  // slices that have come, of the receiving thread
  std::array<uint64_t, 2> sequences_{};    // that they are of
  uint64_t taken_ = 0;                     // the last sequence that a request was about
  std::vector<std::byte> passing_;         // what does not go into a buffer as it comes
  Reply reply_;                            // the last that went out, of the sending thread
  std::atomic<uint64_t> copied_{0};        // and its number: the worker may ask again
  std::vector<std::byte> copies_;          // of parameters that do not go out at once

  std::unique_ptr<BlockingLink> link_;  // changes under link_mutex_, while neither thread runs
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> pull_{-1};         // the version that is asked for
  std::atomic<uint64_t> sent_{0};         // replies
  std::atomic<uint64_t> pull_behind_{0};  // the request behind whose reply the parameters go
  Mutex link_mutex_;                      // held while one is attached or detached
  bool closed_ MUSTER_GUARDED_BY(link_mutex_) = false;
  std::thread receiver_ MUSTER_GUARDED_BY(link_mutex_);
  std::thread sender_ MUSTER_GUARDED_BY(link_mutex_);
  mutable Mutex mutex_;
  std::optional<Deadline::Clock::time_point> gone_since_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::detail
