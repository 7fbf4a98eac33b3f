#include "muster/runtime/step_status.h"

#include <utility>

#include "muster/base/error.h"

namespace muster::detail {

StepStatus StepStatus::of(const std::exception& error) {
  const auto code = [&error] {
    if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return Code::kInvalidArgument;
    if (dynamic_cast<const PeerLost*>(&error) != nullptr) return Code::kPeerLost;
    if (dynamic_cast<const Aborted*>(&error) != nullptr) return Code::kAborted;
    if (dynamic_cast<const DeadlineExceeded*>(&error) != nullptr) return Code::kDeadlineExceeded;
    if (dynamic_cast<const Refused*>(&error) != nullptr) return Code::kRefused;
    if (dynamic_cast<const DataLoss*>(&error) != nullptr) return Code::kDataLoss;
    if (dynamic_cast<const SystemError*>(&error) != nullptr) return Code::kSystemError;
    return Code::kOther;
  }();
  return {code, text_without_stack(error)};
}

StepStatus StepStatus::received(uint32_t code, std::string text) {
  return {code <= static_cast<uint32_t>(Code::kOther) ? static_cast<Code>(code) : Code::kOther,
          std::move(text)};
}

void StepStatus::raise_if_failed() const {
  switch (code) {
    case Code::kOk:
      return;
    case Code::kInvalidArgument:
      throw InvalidArgument(text);
    case Code::kPeerLost:
      throw PeerLost(text);
    case Code::kAborted:
      throw Aborted(text);
    case Code::kDeadlineExceeded:
      throw DeadlineExceeded(text);
    case Code::kRefused:
      throw Refused(text);
    case Code::kDataLoss:
      throw DataLoss(text);
    case Code::kSystemError:
      throw SystemError(text);
    case Code::kOther:
      break;
  }
  throw Error(text);
}

}  // namespace muster::detail
