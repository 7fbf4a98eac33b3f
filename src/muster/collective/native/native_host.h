#pragma once

// The memory of a host's ranks under the native engine: blocks in the arenas that they have mapped. It refers
// to what the engine owns, and lives no longer. share() is a collective, and blocks as one; the rest may be
// called by any thread.

#include "muster/collective/communicator.h"
#include "muster/collective/native/context.h"
#include "muster/collective/native/host_group.h"
#include "muster/collective/native/host_memory.h"
#include "muster/collective/shared_host.h"

namespace muster {

class NativeHost : public SharedHost {
 public:
  /// All of it outlives this.
  struct Options {
    Communicator& communicator;
    HostGroup& group;
    std::shared_ptr<HostMemory> memory;
    Failure& failure;
    const std::vector<RankInfo>& ranks;
    Peers& peers;
  };

  explicit NativeHost(Options options);

  std::shared_ptr<void> share(size_t bytes) override;
  uint64_t place_of(const void* data, size_t bytes) const override;
  void* at(int index, uint64_t place) const override;
  void check(const std::string& during, const std::vector<int>& waited_for) const override;

 private:
  const Options options_;
};

}  // namespace muster
