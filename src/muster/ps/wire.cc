#include "muster/ps/wire.h"

#include <poll.h>

#include <array>

#include <fmt/format.h>

#include "muster/base/error.h"

namespace muster {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLongestReason = 4096;

}  // namespace

std::string worker_purpose(const std::string& job_id, const std::string& plan_id) {
  return fmt::format("ps/{}/{}/worker", job_id, plan_id);
}

std::string orders_purpose(const std::string& job_id, const std::string& plan_id) {
  return fmt::format("ps/{}/{}/orders", job_id, plan_id);
}

std::string more_purpose(const std::string& job_id, const std::string& plan_id, const Hello& hello,
                         uint32_t socket) {
  return fmt::format("ps-more/{}/{}/{}/{}/{}/{}", job_id, plan_id, hello.worker, hello.incarnation,
                     hello.link, socket);
}

void refuse(Connection& connection, const std::string& reason) {
  const std::string text = reason.substr(0, kLongestReason);
  Welcome welcome;
  welcome.refused = static_cast<uint32_t>(text.size());
  connection.send(&welcome, sizeof(welcome), Deadline::after(1s));
  connection.send(text.data(), text.size(), Deadline::after(1s));
}

Welcome receive_welcome(Connection& connection, Deadline deadline) {
  Welcome welcome;
  connection.receive(&welcome, sizeof(welcome), deadline);
  if (welcome.refused == 0) return welcome;
  std::string reason(std::min<size_t>(welcome.refused, kLongestReason), '\0');
  connection.receive(reason.data(), reason.size(), deadline);
  throw Refused(reason);
}

Stream::Stream(std::vector<Connection> connections, bool encrypted)
    : link_(std::move(connections)), encrypted_(encrypted) {}

size_t Stream::try_send(std::span<const iovec> parts) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (encrypted_) lock.lock();
  return link_.try_send(parts);
}

template <typename Transfer>
void Stream::transfer_all(std::span<const iovec> parts, short events, const Check& check,
                          const Transfer& transfer) {
  std::vector<iovec> left(parts.begin(), parts.end());
  size_t first = 0;
  while (first < left.size()) {
    size_t moved = transfer(std::span(left).subspan(first));
    if (moved == 0 && left[first].iov_len > 0) {
      pollfd entry = {
          .fd = events == POLLIN ? link_.receive_fd() : link_.send_fd(), .events = events, .revents = 0};
      poll(&entry, 1, 50);
      check();
      continue;
    }
    while (first < left.size() && moved >= left[first].iov_len) moved -= left[first++].iov_len;
    if (moved > 0) {
      left[first].iov_base = static_cast<std::byte*>(left[first].iov_base) + moved;
      left[first].iov_len -= moved;
    }
  }
}

void Stream::send(std::span<const iovec> parts, const Check& check) {
  transfer_all(parts, POLLOUT, check, [this](std::span<const iovec> left) { return try_send(left); });
}

void Stream::receive(std::span<const iovec> parts, const Check& check) {
  transfer_all(parts, POLLIN, check, [this](std::span<const iovec> left) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (encrypted_) lock.lock();
    return link_.try_receive(left);
  });
}

}  // namespace muster
