#include "muster/testing/rank_group.h"

#include <fmt/format.h>

#include "muster/base/error.h"
#include "muster/testing/thread_cluster.h"

namespace muster::detail::testing {

Rendezvous ThreadRendezvous::of_rank(int rank) {
  return [this, rank](const std::string& mine, Deadline deadline) {
    MutexLock lock(mutex_);
    const uint64_t round = round_;
    texts_[static_cast<size_t>(rank)] = mine;
    if (++arrived_ == static_cast<int>(texts_.size())) {
      complete_ = texts_;
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    while (round_ == round) {
      if (deadline.expired()) raise<DeadlineExceeded>("not all threads brought a text in time");
      changed_.wait_until(lock, deadline.time_point());
    }
    return complete_;
  };
}

Communicator::Options RankGroup::options_of(const Options& options, int rank, ThreadRendezvous& rendezvous) {
  Communicator::Options result = options.communicator;
  result.rank = rank;
  result.size = options.ranks;
  result.rendezvous = rendezvous.of_rank(rank);
  if (!result.endpoint) {
    result.endpoint = std::make_shared<Endpoint>(
        Endpoint::Options{.host = "127.0.0.1", .port = 0, .secret = "test", .tls = options.tls});
  }
  if (!options.hosts.empty())
    result.host_identity = fmt::format("host {}", options.hosts[static_cast<size_t>(rank)]);
  if (result.arena_capacity == 0) result.arena_capacity = size_t{1} << 30;
  return result;
}

std::vector<std::string> RankGroup::run(const std::function<void(Communicator&)>& body) const {
  ThreadRendezvous rendezvous(options_.ranks);
  return ThreadCluster(options_.ranks, options_.limit).run([&](int rank) {
    Communicator communicator(options_of(options_, rank, rendezvous));
    body(communicator);
    communicator.barrier();  // nobody leaves while another still works
  });
}

}  // namespace muster::detail::testing
