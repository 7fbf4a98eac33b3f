#include "muster/collective/engine.h"

#include <cstring>

#include "muster/base/cpu.h"
#include "muster/collective/communicator_options.h"

namespace muster::detail {
namespace {

/// A rank that shares with nobody.
class LoneHost : public SharedHost {
 public:
  explicit LoneHost(Communicator& communicator)
      : SharedHost({communicator.rank()}, 0, available_cores()), communicator_(communicator) {}

  std::shared_ptr<void> share(size_t bytes) override {
    // Other hosts of the same communicator may have several ranks, which tell each other an offset.
    const int64_t none = 0;
    std::vector<int64_t> offsets(static_cast<size_t>(communicator_.size()));
    communicator_.all_gather(&none, offsets.data(), 1, DType::kInt64);
    auto memory = communicator_.allocate(bytes);
    memset(memory.get(), 0, bytes);
    return memory;
  }
  // Nobody else uses it: an address will do.
  uint64_t offset_of(const void* data, size_t) const override { return reinterpret_cast<uint64_t>(data); }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it was an address
  void* at(int, uint64_t offset) const override { return reinterpret_cast<void*>(offset); }
  void check(const std::string& during, const std::vector<int>&) const override {
    communicator_.check(during);
  }

 private:
  Communicator& communicator_;
};

}  // namespace

std::unique_ptr<SharedHost> Engine::share_host(Communicator& communicator) {
  return std::make_unique<LoneHost>(communicator);
}

}  // namespace muster::detail
