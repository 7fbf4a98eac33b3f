#include "muster/ps/stream.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "muster/base/copy.h"

namespace muster {
namespace {

using namespace std::chrono_literals;

constexpr size_t kAhead = size_t{64} * 1024;
constexpr auto kYielding = 200us;  // outlasts what a peer that is running needs to go on
constexpr auto kLongYield = 2ms;   // somebody else had the core
constexpr auto kWithoutYields = 50ms;

// What is left of parts that go or come bit by bit.
class Rest {
 public:
  explicit Rest(std::span<const iovec> parts) : parts_(parts.begin(), parts.end()) { drop(0); }

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

Stream::Stream(std::vector<Connection> connections, bool encrypted)
    : link_(std::move(connections)),
      encrypted_(encrypted),
      sending_(link_.is_on_this_host()),
      receiving_(link_.is_on_this_host()),
      ahead_(kAhead) {}

size_t Stream::try_send(std::span<const iovec> parts) {
  std::optional<MutexLock> lock;
  if (encrypted_) lock.emplace(mutex_);
  return link_.try_send(parts);
}

size_t Stream::try_receive(std::span<const iovec> parts) {
  std::optional<MutexLock> lock;
  if (encrypted_) lock.emplace(mutex_);
  return link_.try_receive(parts);
}

bool Stream::Waiting::yield() {
  const auto now = Deadline::Clock::now();
  if (!is_near || now < next) return false;
  if (until == Deadline::Clock::time_point()) until = now + kYielding;
  if (now > until) return false;
  std::this_thread::yield();
  const auto after = Deadline::Clock::now();
  if (after - now > kLongYield) next = after + kWithoutYields;
  return true;
}

void Stream::Waiting::wait(int fd, short events, const Check& check) {
  if (yield()) return;
  pollfd entry = {.fd = fd, .events = events, .revents = 0};
  poll(&entry, 1, 50);
  check();
}

void Stream::send(std::span<const iovec> parts, const Check& check) {
  for (Rest rest(parts); !rest.empty();) {
    const size_t moved = try_send(rest.parts());
    rest.drop(moved);
    if (moved == 0) sending_.wait(link_.send_fd(), POLLOUT, check);
    if (moved > 0) sending_.begin_anew();
  }
}

size_t Stream::send_some(std::span<const iovec> parts, bool patient) {
  size_t sent = 0;
  for (Rest rest(parts); !rest.empty();) {
    const size_t moved = try_send(rest.parts());
    rest.drop(moved);
    sent += moved;
    if (moved == 0 && !(patient && sending_.yield())) break;
    if (moved > 0) sending_.begin_anew();
  }
  return sent;
}

void Stream::receive(std::span<const iovec> parts, const Check& check) {
  Rest rest(parts);
  while (!rest.empty() && taken_ < read_) {
    const iovec& part = rest.parts().front();
    const size_t bytes = std::min(part.iov_len, read_ - taken_);
    copy_bytes(part.iov_base, ahead_.data() + taken_, bytes);
    taken_ += bytes;
    rest.drop(bytes);
  }
  if (rest.empty()) return;
  rest.add({ahead_.data(), ahead_.size()});
  while (rest.parts().size() > 1) {
    const size_t moved = try_receive(rest.parts());
    rest.drop(moved);
    if (moved == 0) receiving_.wait(link_.receive_fd(), POLLIN, check);
    if (moved > 0) receiving_.begin_anew();
  }
  taken_ = 0;
  read_ = rest.empty() ? ahead_.size() : ahead_.size() - rest.parts().front().iov_len;
}

}  // namespace muster
