#pragma once

// A file descriptor that is closed when its owner ends. Not thread-safe, as an int is not; nothing blocks or
// throws.
//
//   Descriptor event(eventfd(0, EFD_CLOEXEC));
//   if (!event) raise<SystemError>("no event: {}", describe_errno(errno));

#include <unistd.h>

#include <utility>

namespace muster::detail {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}  ///< takes it over; below 0: none
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Descriptor() { reset(-1); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  /// Gives it away: the caller closes it.
  int release() { return std::exchange(fd_, -1); }

 private:
  void reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

  int fd_ = -1;
};

}  // namespace muster::detail
