#pragma once

// The ranks of a communicator as threads of this process, each with a data port of its own.
//
//   RankGroup group({.ranks = 3, .hosts = {0, 0, 1}});
//   EXPECT_THAT(group.run([](Communicator& comm) { comm.barrier(); }), Each(""));

#include <functional>
#include <string>
#include <vector>

#include "muster/base/mutex.h"
#include "muster/collective/communicator_options.h"

namespace muster::detail::testing {

/// Lets threads bring a text each and get all of them, again and again.
class ThreadRendezvous {
 public:
  explicit ThreadRendezvous(int ranks) : texts_(static_cast<size_t>(ranks)) {}
  Rendezvous of_rank(int rank);

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::string> texts_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::string> complete_ MUSTER_GUARDED_BY(mutex_);
  int arrived_ MUSTER_GUARDED_BY(mutex_) = 0;
  uint64_t round_ MUSTER_GUARDED_BY(mutex_) = 0;
};

class RankGroup {
 public:
  struct Options {
    int ranks = 2;
    std::vector<int> hosts;  ///< empty: one host; else the host of each rank, as if they were several
    Communicator::Options communicator;  ///< the rest
    TlsFiles tls;
    std::chrono::milliseconds limit{std::chrono::seconds(60)};
  };

  explicit RankGroup(Options options) : options_(std::move(options)) {}

  /// Runs `body` on every rank; gives what each threw, "" when nothing.
  std::vector<std::string> run(const std::function<void(Communicator&)>& body) const;

  /// The options of one rank, for tests that make their communicators themselves.
  static Communicator::Options options_of(const Options& options, int rank, ThreadRendezvous& rendezvous);

 private:
  const Options options_;
};

}  // namespace muster::detail::testing
