#include "muster/collective/native/native_host.h"

#include <vector>

namespace muster::detail {
namespace {

std::vector<int> ranks_of(const HostGroup& group) {
  std::vector<int> ranks;
  for (int i = 0; i < group.size(); ++i) ranks.push_back(group.peer(i).rank);
  return ranks;
}

}  // namespace

NativeHost::NativeHost(Options options)
    : SharedHost(ranks_of(options.group), options.group.index(), options.group.cores()),
      options_(std::move(options)) {}

std::shared_ptr<void> NativeHost::share(size_t bytes) {
  const auto& memory = options_.memory;
  void* data = is_first() ? memory->allocate(bytes, size()) : nullptr;
  const int64_t mine = is_first() ? static_cast<int64_t>(memory->arena()->offset_of(data)) : 0;
  std::vector<int64_t> offsets(static_cast<size_t>(options_.communicator.size()));
  options_.communicator.all_gather(&mine, offsets.data(), 1, DType::kInt64);
  const HostPeer& first = options_.group.peer(0);
  if (!is_first()) data = first.arena->at(static_cast<size_t>(offsets[static_cast<size_t>(first.rank)]));
  // The first rank's arena stays mapped for as long as anybody here uses it.
  return {data, [memory, arena = first.arena, owner = is_first()](void* shared) {
            HostMemory::release(shared);
            if (owner) memory->retire(shared);
          }};
}

uint64_t NativeHost::offset_of(const void* data, size_t bytes) const {
  const Arena& arena = *options_.memory->arena();
  return arena.contains(data, bytes) ? arena.offset_of(data) : 0;
}

void* NativeHost::at(int index, uint64_t offset) const {
  return options_.group.peer(index).arena->at(offset);
}

void NativeHost::check(const std::string& during, const std::vector<int>& waited_for) const {
  if (options_.error.raised()) options_.error.check(during);
  for (const int rank : waited_for) {
    if (!options_.peers.given_up(rank)) continue;
    options_.error.fail(GroupError::Kind::kPeerLost,
                        fmt::format("{} has left the group: it has ended, and others still train; is "
                                    "finish_epoch() missing after its loop?",
                                    options_.ranks[static_cast<size_t>(rank)].to_string()),
                        during);
  }
}

}  // namespace muster::detail
