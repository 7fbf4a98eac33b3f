#include "muster/collective/shared_host.h"

#include <cstring>

#include "muster/collective/communicator.h"
#include "muster/collective/engine.h"

namespace muster {
namespace {

/// A rank that shares with nobody.
class LoneHost : public SharedHost {
 public:
  explicit LoneHost(Communicator& communicator)
      : SharedHost({communicator.rank()}, 0), communicator_(communicator) {}

  std::shared_ptr<void> share(size_t bytes) override {
    // Other hosts of the same communicator may have several ranks, which tell each other a place.
    const int64_t nowhere = 0;
    std::vector<int64_t> places(static_cast<size_t>(communicator_.size()));
    communicator_.all_gather(&nowhere, places.data(), 1, DType::kInt64);
    auto memory = communicator_.allocate(bytes);
    memset(memory.get(), 0, bytes);
    return memory;
  }
  uint64_t place_of(const void* data, size_t) const override { return reinterpret_cast<uint64_t>(data); }
  void* at(int, uint64_t place) const override { return reinterpret_cast<void*>(place); }
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

}  // namespace muster
