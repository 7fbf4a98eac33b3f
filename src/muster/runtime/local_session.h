#pragma once

// Sessions that run in this process.

#include <memory>
#include <vector>

#include "muster/runtime/session_backend.h"
#include "muster/runtime/variables.h"

namespace muster::detail {

class LocalSession final : public SessionBackend {
 public:
  explicit LocalSession(Session::Options options) : options_(std::move(options)) {}

  std::shared_ptr<Callable::State> prepare(const Signature& signature) override;

 private:
  const Session::Options options_;
  Container container_;
};

}  // namespace muster::detail
