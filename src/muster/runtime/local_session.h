#pragma once

// Sessions that run in this process.

#include <memory>
#include <vector>

#include "muster/runtime/session_backend.h"
#include "muster/runtime/variables.h"
#include "muster/tensor/tensor_memory.h"

namespace muster::detail {

class LocalSession final : public SessionBackend {
 public:
  explicit LocalSession(Session::Options options);

  std::shared_ptr<Callable::State> prepare(const Signature& signature) override;

 private:
  const Session::Options options_;
  TensorMemory memory_;
  Container container_;
};

}  // namespace muster::detail
