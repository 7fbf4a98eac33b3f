#pragma once

#include <cstddef>
#include <vector>

namespace muster::detail {

/// Which host each rank is on, as a number from 0 in the order of the first rank of each.
class Topology {
 public:
  explicit Topology(std::vector<int> host_of_rank);

  int size() const { return static_cast<int>(host_of_rank_.size()); }
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_rank_[static_cast<size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<size_t>(host)]; }
  int local_rank(int rank) const { return local_rank_[static_cast<size_t>(rank)]; }

  /// The number of ranks on the host that has the fewest, and whether all have as many.
  int fewest() const;
  bool uniform() const;

  static Topology one_host(int ranks) { return Topology(std::vector<int>(static_cast<size_t>(ranks), 0)); }
  static Topology one_rank_per_host(int ranks);

 private:
  std::vector<int> host_of_rank_;
  std::vector<int> local_rank_;
  std::vector<std::vector<int>> ranks_;
};

}  // namespace muster::detail
