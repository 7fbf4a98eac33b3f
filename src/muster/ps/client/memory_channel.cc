#include <cstring>

#include "muster/base/copy.h"
#include "muster/base/error.h"
#include "muster/ps/client/channel.h"
#include "muster/shm/arena.h"

namespace muster::detail {
namespace {

constexpr size_t kTooLargeForCaches = size_t{4} << 20;

class MemoryChannel : public Channel {
 public:
  MemoryChannel(const ChannelOptions& options, Deadline deadline) : options_(options) {
    const size_t slices = options_.layout.size();
    slot_ = SessionSlot::make(options_.arena->allocate(SessionSlot::bytes(slices)));
    std::memset(slot_->offsets(), 0, slices * sizeof(uint64_t));
    connection_ = options_.endpoint->connect_local(
        options_.server.local_name, worker_channel_name(options_.job_id, options_.model_id), deadline);
    const Hello hello = {.shares_memory = 1,
                         .spec = options_.spec.fingerprint(),
                         .worker = options_.worker,
                         .incarnation = options_.incarnation,
                         .slot = options_.arena->offset_of(slot_)};
    connection_.send(&hello, sizeof(hello), deadline);
    connection_.send_descriptor(options_.arena->fd(), deadline);
    welcome_ = receive_welcome(connection_, deadline);
    store_ = Arena::open(connection_.receive_descriptor(deadline), Arena::Access::kReadOnly);
    doorbell_arena_ = Arena::open(connection_.receive_descriptor(deadline));
    view_.emplace(options_.layout, store_->at(welcome_.store));
    doorbell_ = reinterpret_cast<Doorbell*>(doorbell_arena_->at(welcome_.doorbell));
    if (options_.layout.bytes() >= kTooLargeForCaches) copy_ = stream_bytes;
  }

  ~MemoryChannel() override {
    connection_ = Connection();
    options_.arena->free(slot_);
  }

  const Welcome& welcome() const override { return welcome_; }

  void deliver(size_t slice, uint64_t /*sequence*/, const void* data) override {
    slot_->offsets()[slice] = data == nullptr ? 0 : options_.arena->offset_of(data);
  }

  void post(uint64_t number, const Request& request) override {
    slot_->request = request;
    slot_->posted.exchange(number);
    wake(*doorbell_);
  }

  Reply wait_reply(uint64_t number) override {
    wait([&] { return slot_->answered.load() >= number; });
    return slot_->reply;
  }

  void wait_consumed(uint64_t sequence) override {
    wait([&] { return slot_->consumed.load() >= sequence; });
    std::memset(slot_->offsets(), 0, options_.layout.size() * sizeof(uint64_t));
  }

  int64_t pull(int64_t at_least, std::span<void* const> slices, bool /*asked*/) override {
    return view_->read(at_least, {*slot_, *doorbell_, options_.spin_policy, [this] { check(); }},
                       [&](const StoreView::Range& range, const std::byte* data) {
                         const size_t element = size_of(options_.layout[range.slice].dtype);
                         copy_(static_cast<std::byte*>(slices[range.slice]) + range.begin * element, data,
                               range.count * element);
                       });
  }

  void wait_version(int64_t at_least) override {
    view_->read(at_least, {*slot_, *doorbell_, options_.spin_policy, [this] { check(); }},
                [](const StoreView::Range&, const std::byte*) {});
  }

  std::shared_ptr<const std::byte> parameters() const override { return {store_, view_->parameters()}; }

 private:
  template <typename Ready>
  void wait(const Ready& ready) {
    wait_until(slot_->doorbell, options_.spin_policy, ready, [this] { check(); });
  }

  void check() {
    options_.check();
    if (connection_.is_closed()) raise<PeerLost>("parameter server {} is gone", options_.index);
  }

  const ChannelOptions options_;
  Connection connection_;
  Welcome welcome_;
  SessionSlot* slot_ = nullptr;
  std::shared_ptr<Arena> store_;
  std::shared_ptr<Arena> doorbell_arena_;
  std::optional<StoreView> view_;
  Doorbell* doorbell_ = nullptr;
  void (*copy_)(void*, const void*, size_t) = copy_bytes;
};

}  // namespace

std::unique_ptr<Channel> open_memory_channel(const ChannelOptions& options, Deadline deadline) {
  return std::make_unique<MemoryChannel>(options, deadline);
}

}  // namespace muster::detail
