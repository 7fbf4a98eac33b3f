#pragma once

// Puts together what all tasks say that they wait for, and finds who holds up whom: a straggler is worth a
// warning, a wait beyond the limit and a deadlock are errors. The coordinator owns it and asks it now and
// then; it knows no sockets, threads or clocks.
//
// A task is free when its own thread waits for nobody, or when enough of those that it waits for are free.
// Tasks that may still come, or that nobody knows, are free; those that are gone for good never are. Whoever
// is not free once that has been worked out can't go on, whatever the others do: so one rule finds cycles
// across barriers, keys, collectives, steps and servers, as well as waits for somebody who is gone. A
// deadlock must have lasted for `stall_warning`. And since what tasks say may be late, every task in it must
// have been told that it was asked after it had been seen, must still have the same waits, and must have
// looked again since then: so all these waits were there at the same time, and nothing has come.
//
// Not thread-safe.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/cluster/coordinator.pb.h"
#include "muster/deadline.h"

namespace muster::detail {

class WaitWatch {
 public:
  using Time = Deadline::Clock::time_point;
  using Duration = Deadline::Clock::duration;

  struct Options {
    std::chrono::milliseconds stall_warning{std::chrono::seconds(10)};
    std::chrono::milliseconds timeout{std::chrono::minutes(10)};  ///< of waits without a limit of their own
  };

  struct Task {
    enum class Presence { kHere, kMayCome, kGone };
    Presence presence = Presence::kHere;
    std::string description;   ///< "worker/1 (host b, pid 4711)"
    std::string gone;          ///< how it ended: "has finished"
    bool is_observer = false;  ///< nobody minds how long it waits
  };

  /// What the coordinator knows of the tasks and of their requests to it.
  struct View {
    std::map<std::string, Task> tasks;
    /// Who is missing in the barrier that the task waits in; nothing when it does not wait in it any more.
    std::function<std::optional<std::vector<std::string>>(const std::string& task,
                                                          const std::string& barrier)>
        missing;
    std::function<bool(const std::string& task, const std::string& key)> waits_for_key;
  };

  struct Findings {
    std::vector<std::string> warnings;
    std::string error;  ///< empty: none
  };

  explicit WaitWatch(Options options) : options_(options) {}

  void heard(const std::string& task, const proto::Heartbeat& heartbeat);
  void forget(const std::string& task);

  /// Each warning is given once.
  Findings look(const View& view, Time now);

  /// How often it was asked. Members are told, and say it again in their heartbeats.
  uint64_t looks() const { return looks_; }

 private:
  struct Blocked {
    const proto::Wait* wait = nullptr;   // as the task says it
    const proto::Wait* entry = nullptr;  // as its server says it
    Duration age{};
    std::vector<std::string> needs;
    int enough = 0;
  };
  struct Suspect {
    Duration first{};
    uint64_t look = 0;                    // at which it was first seen
    std::optional<uint64_t> looks;        // of the task, when it had heard of that
    std::optional<uint64_t> entry_looks;  // of its server
  };
  using Id = std::pair<std::string, uint64_t>;  // a task and its wait

  struct Graph {
    const View& view;
    std::map<std::string, std::vector<Blocked>> waits;  // all, also those that hold nobody up
    std::set<std::string> free;
  };

  void count_time(Time now);
  std::vector<Blocked> waits_of(const std::string& task, const View& view) const;
  bool resolve(const std::string& task, const View& view, Blocked& blocked) const;
  const proto::Wait* entry_of(const std::string& server, const std::string& task,
                              const proto::Wait& wait) const;
  bool meets(const std::string& task, const std::string& meeting) const;
  Graph make_graph(const View& view) const;
  std::string find_deadlock(const Graph& graph);
  bool is_confirmed(const std::string& task, const Blocked& blocked);
  bool has_looked(const std::string& task, uint64_t looks, uint64_t since,
                  std::optional<uint64_t>& first) const;
  static bool is_free(const Graph& graph, const std::string& task);
  static bool can_go_on(const Graph& graph, const Blocked& blocked);
  static const Blocked* held_up(const Graph& graph, const std::string& task);
  static std::vector<std::string> chain_of(const Graph& graph, const std::string& first);
  static std::string describe_deadlock(const Graph& graph, const std::string& first);
  std::string find_late(const Graph& graph) const;
  std::string find_stalls(const Graph& graph);
  std::string find_left_behind(const Graph& graph);
  std::string describe_roots(const Graph& graph, const std::set<std::string>& waiting) const;

  const Options options_;
  std::map<std::string, proto::Heartbeat> said_;  // the last of each task
  // The time that has passed, without the times in which everything stood still: a machine that was suspended,
  // a job that was stopped. And when, by it, each wait began.
  Duration clock_{};
  uint64_t looks_ = 0;
  std::optional<Time> last_look_;
  std::map<Id, Duration> begun_;
  std::map<Id, Suspect> suspects_;
  std::set<Id> warned_;
  std::optional<Duration> first_end_;  // of a worker that has finished
  bool warned_of_end_ = false;
};

}  // namespace muster::detail
