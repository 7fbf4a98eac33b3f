#include "muster/collective/topology.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace muster::detail {

Topology::Topology(std::vector<int> host_of_rank) : host_of_rank_(std::move(host_of_rank)) {
  std::map<int, int> numbers;  // what the caller calls a host -> our number of it
  for (size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
    const auto [found, added] = numbers.emplace(host_of_rank_[rank], static_cast<int>(numbers.size()));
    if (added) ranks_.emplace_back();
    host_of_rank_[rank] = found->second;
    auto& local = ranks_[static_cast<size_t>(found->second)];
    local_rank_.push_back(static_cast<int>(local.size()));
    local.push_back(static_cast<int>(rank));
  }
}

Topology Topology::one_rank_per_host(int ranks) {
  std::vector<int> host_of_rank(static_cast<size_t>(ranks));
  std::iota(host_of_rank.begin(), host_of_rank.end(), 0);
  return Topology(std::move(host_of_rank));
}

int Topology::fewest() const {
  size_t fewest = host_of_rank_.size();
  for (const auto& local : ranks_) fewest = std::min(fewest, local.size());
  return static_cast<int>(fewest);
}

bool Topology::uniform() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& local) { return local.size() == ranks_.front().size(); });
}

}  // namespace muster::detail
