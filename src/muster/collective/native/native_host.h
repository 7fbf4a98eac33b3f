#pragma once

// The memory of a host's ranks under the native engine: in the arenas that they have mapped. It refers
// to what the engine owns, and lives no longer. share() is a collective, and blocks as one; the rest may be
// called by any thread.

#include "muster/collective/communicator_options.h"
#include "muster/collective/native/host_group.h"
#include "muster/collective/native/host_memory.h"
#include "muster/collective/native/operation_context.h"
#include "muster/collective/shared_host.h"

namespace muster::detail {

class NativeHost : public SharedHost {
 public:
  /// All of it outlives this.
  struct Options {
    Communicator& communicator;
    HostGroup& group;
    std::shared_ptr<HostMemory> memory;
    GroupError& error;
    const std::vector<RankInfo>& ranks;
    Peers& peers;
  };

  explicit NativeHost(Options options);

  std::shared_ptr<void> share(size_t bytes) override;
  uint64_t offset_of(const void* data, size_t bytes) const override;
  void* at(int index, uint64_t offset) const override;
  void check(const std::string& during, const std::vector<int>& waited_for) const override;

 private:
  const Options options_;
};

}  // namespace muster::detail
