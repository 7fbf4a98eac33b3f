#pragma once

// The exceptions that Muster throws. A caller catches the subclass that it can act on, or muster::Error for
// all. A message names the thing, its value, what was expected, and what to do.

#include <stdexcept>
#include <string>

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

}  // namespace muster
