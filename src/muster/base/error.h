#pragma once

// The exceptions that Muster throws. A caller catches the subclass that it can act on, or muster::Error for
// all. A message names the thing, its value, what was expected, and what to do.

#include <stdexcept>
#include <string>

#include <fmt/format.h>

namespace muster {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A value that the user or the caller gave is not acceptable: a flag, a cluster description, a shape.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// The time allowed for an operation passed; the message says who or what was still missing.
class DeadlineExceeded : public Error {
 public:
  using Error::Error;
};

/// A task that this operation needs has died, gone silent or left.
class PeerLost : public Error {
 public:
  using Error::Error;
};

/// The job was aborted; the message carries who aborted it and why.
class Aborted : public Error {
 public:
  using Error::Error;
};

/// The other side answered and will not have us: a wrong secret, a name that is taken, another job.
class Refused : public Error {
 public:
  using Error::Error;
};

/// Stored data is truncated or corrupt.
class DataLoss : public Error {
 public:
  using Error::Error;
};

/// The operating system refused: no port, no memory, no such program.
class SystemError : public Error {
 public:
  using Error::Error;
};

/// Throws `E` with a formatted message: raise<InvalidArgument>("port {} is not a port", port).
template <typename E, typename... Args>
[[noreturn]] void raise(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// "No such file or directory (ENOENT)" for an errno.
std::string describe_errno(int error);

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace muster

/// An invariant of our own. When it does not hold, the program is wrong: it says where, and aborts.
#define MUSTER_CHECK(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      ::muster::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                        \
  } while (false)
