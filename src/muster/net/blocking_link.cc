#include "muster/net/blocking_link.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "muster/base/copy.h"
#include "muster/base/wait_registry.h"

namespace muster::detail {
namespace {

using namespace std::chrono_literals;

constexpr size_t kAhead = size_t{64} * 1024;
constexpr auto kYielding = 200us;  // outlasts what a peer that is running needs to go on
constexpr auto kLongYield = 2ms;   // somebody else had the core
constexpr auto kWithoutYields = 50ms;

// What is left of parts that go or come bit by bit.
class Unmoved {
 public:
  explicit Unmoved(std::span<const iovec> parts) : parts_(parts.begin(), parts.end()) { drop(0); }

  bool empty() const { return first_ == parts_.size(); }
  std::span<const iovec> parts() const { return std::span(parts_).subspan(first_); }
  void add(const iovec& part) { parts_.push_back(part); }

  void drop(size_t bytes) {
    while (!empty() && bytes >= parts_[first_].iov_len) bytes -= parts_[first_++].iov_len;
    if (bytes == 0) return;
    parts_[first_].iov_base = static_cast<std::byte*>(parts_[first_].iov_base) + bytes;
    parts_[first_].iov_len -= bytes;
  }

 private:
  std::vector<iovec> parts_;
  size_t first_ = 0;
};

}  // namespace

BlockingLink::BlockingLink(std::vector<Connection> connections, bool encrypted)
    : link_(std::move(connections)),
      encrypted_(encrypted),
      sending_(link_.is_on_this_host()),
      receiving_(link_.is_on_this_host()),
      ahead_(kAhead) {}

size_t BlockingLink::try_send(std::span<const iovec> parts) {
  std::optional<MutexLock> lock;
  if (encrypted_) lock.emplace(mutex_);
  return link_.try_send(parts);
}

size_t BlockingLink::try_receive(std::span<const iovec> parts) {
  std::optional<MutexLock> lock;
  if (encrypted_) lock.emplace(mutex_);
  return link_.try_receive(parts);
}

bool BlockingLink::Waiting::yield() {
  const auto now = Deadline::Clock::now();
  if (!is_near || now < next) return false;
  if (until == Deadline::Clock::time_point()) until = now + kYielding;
  if (now > until) return false;
  std::this_thread::yield();
  const auto after = Deadline::Clock::now();
  if (after - now > kLongYield) next = after + kWithoutYields;
  return true;
}

void BlockingLink::Waiting::wait(int fd, short events, const Check& check) {
  if (yield()) return;
  pollfd entry = {.fd = fd, .events = events, .revents = 0};
  poll(&entry, 1, 50);
  check();
}

void BlockingLink::get_on(Waiting& waiting) {
  waiting.begin_anew();
  wait_gets_on();
}

void BlockingLink::send(std::span<const iovec> parts, const Check& check) {
  for (Unmoved unmoved(parts); !unmoved.empty();) {
    const size_t moved = try_send(unmoved.parts());
    unmoved.drop(moved);
    if (moved == 0) sending_.wait(link_.send_fd(), POLLOUT, check);
    if (moved > 0) get_on(sending_);
  }
}

size_t BlockingLink::send_some(std::span<const iovec> parts, bool may_yield) {
  size_t sent = 0;
  for (Unmoved unmoved(parts); !unmoved.empty();) {
    const size_t moved = try_send(unmoved.parts());
    unmoved.drop(moved);
    sent += moved;
    if (moved == 0 && !(may_yield && sending_.yield())) break;
    if (moved > 0) sending_.begin_anew();
  }
  return sent;
}

void BlockingLink::receive(std::span<const iovec> parts, const Check& check) {
  Unmoved unmoved(parts);
  while (!unmoved.empty() && taken_ < read_) {
    const iovec& part = unmoved.parts().front();
    const size_t bytes = std::min(part.iov_len, read_ - taken_);
    copy_bytes(part.iov_base, ahead_.data() + taken_, bytes);
    taken_ += bytes;
    unmoved.drop(bytes);
  }
  if (unmoved.empty()) return;
  unmoved.add({ahead_.data(), ahead_.size()});
  while (unmoved.parts().size() > 1) {
    const size_t moved = try_receive(unmoved.parts());
    unmoved.drop(moved);
    if (moved == 0) receiving_.wait(link_.receive_fd(), POLLIN, check);
    if (moved > 0) get_on(receiving_);
  }
  taken_ = 0;
  read_ = unmoved.empty() ? ahead_.size() : ahead_.size() - unmoved.parts().front().iov_len;
}

}  // namespace muster::detail
