#pragma once

// How a step or a request went, as a number and a text that cross the network: an exception on one side is
// the same on the other.
//
// Pure functions.

#include <cstdint>
#include <exception>
#include <string>

namespace muster::detail {

struct StepStatus {
  enum class Code : uint32_t {
    kOk,
    kInvalidArgument,
    kPeerLost,
    kAborted,
    kDeadlineExceeded,
    kRefused,
    kDataLoss,
    kSystemError,
    kOther,
  };
  Code code = Code::kOk;
  std::string text;

  bool ok() const { return code == Code::kOk; }

  /// Of an exception, without the stack that libtorch appends.
  static StepStatus of(const std::exception& error);

  /// From the network: a code that nobody knows is kOther.
  static StepStatus received(uint32_t code, std::string text);

  /// Throws the exception, unless all went well.
  void raise_if_failed() const;
};

}  // namespace muster::detail
