#pragma once

// What a rank hears of its peers: a control connection to each, and a thread that listens to all of them. It
// learns at once that a peer's process has died (its connection closes without a goodbye) and tells the
// others, takes in that a peer has broken the group, and answers what this rank is doing. When an operation
// takes long it asks the others whether they are in the same, and logs the last ones of this rank.
//
// Thread-safe. It owns the connections and the thread. absent() and tell() write to all peers, and wait at
// most a second for each that does not read; absent() then waits up to half a second for the answers, and
// wait_gone() as long as it is told. The rest does not block.

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/collective/engine.h"
#include "muster/collective/native/peers.h"
#include "muster/collective/native/rank_info.h"
#include "muster/net/connection.h"

namespace muster::detail {

class PeerWatch : public Peers {
 public:
  struct Options {
    std::string group;
    int rank = 0;
    std::vector<RankInfo> ranks;
    std::chrono::milliseconds stall_warning{0};
    std::function<void()> on_failure;  ///< wakes those who wait; called from the thread
  };

  /// Takes a connection to every other rank.
  PeerWatch(Options options, std::map<int, Connection>&& connections, GroupState& state);
  ~PeerWatch() override;  ///< says goodbye to all
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  bool given_up(int rank) const override;
  bool left(int rank) const override;
  void wait_gone(int rank, Deadline deadline) override;
  std::vector<int> absent(uint64_t number) override;

  /// Takes in what the peers have said by now. A peer that breaks the group says so before it goes on, so
  /// whoever learns of the end in another way and calls this knows the reason that the peer gave.
  void hear();

  /// Breaks the group on the other ranks.
  void tell(GroupError::Kind kind, const std::string& reason);

  /// Readable once the group has failed.
  int wake_fd() const { return wake_; }

 private:
  struct Peer {
    Connection connection;
    std::string received;
    bool left = false;                 // or dead: nothing more will come
    bool deaf = false;                 // does not take what we say
    std::optional<Activity> activity;  // its answer to our last question
  };
  enum class Message : char { kGoodbye = 'g', kFailure = 'f', kQuestion = 'q', kAnswer = 'a' };

  void listen();
  void read(int rank, Peer& peer) MUSTER_REQUIRES(mutex_);
  void take_all(int rank, Peer& peer) MUSTER_REQUIRES(mutex_);
  void take(int rank, Peer& peer, Message message, const std::string& text) MUSTER_REQUIRES(mutex_);
  void say(Peer& peer, Message message, const std::string& text) MUSTER_REQUIRES(mutex_);
  void say_to_all(GroupError::Kind kind, const std::string& reason) MUSTER_REQUIRES(mutex_);
  void break_group(GroupError::Kind kind, const std::string& reason) MUSTER_REQUIRES(mutex_);
  void look_for_stalls();
  void ask_all();
  void compare(const Activity& ours);
  std::string describe(int rank) const;

  const Options options_;
  GroupState& state_;
  GroupError& error_;
  int stop_ = -1;
  int wake_ = -1;

  mutable Mutex mutex_;
  ConditionVariable changed_;  // a peer has answered or is gone, or the group has failed
  std::map<int, Peer> peers_ MUSTER_GUARDED_BY(mutex_);
  // When each rank left, as a count of the clock; 0 while it has not.
  std::vector<std::atomic<Deadline::Clock::rep>> departures_;

  // How far we have looked into an operation that takes long; of our thread only.
  struct Inquiry {
    enum class State { kNone, kAsked, kCompared, kLogged };
    uint64_t number = 0;
    State state = State::kNone;
    Deadline::Clock::time_point asked;
  };
  Inquiry inquiry_;

  std::thread thread_;
};

}  // namespace muster::detail
